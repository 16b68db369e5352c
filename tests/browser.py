"""A headless browser for tests of pages; skips where there is none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
DRAWN = "html[data-drawn=all]"


@contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium, the system's or Playwright's own."""
    api = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    with api.sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=found)
        except api.Error as error:
            pytest.skip(f"no browser: {error.message.splitlines()[0]}")
        yield chromium
        chromium.close()


@contextmanager
def opened(chromium: Any, path: Path, *, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """Open a file without a network; the console has to stay silent."""
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: _note_remote(request.url, said))
    page.goto(path.as_uri())
    page.wait_for_selector(DRAWN, state="attached", timeout=60_000)
    yield page
    assert said == [], said
    context.close()


def _note_remote(url: str, said: list[str]) -> None:
    if not url.startswith(("file:", "data:", "blob:")):
        said.append(url)


def overlaps(page: Any) -> list[str]:
    """Return pairs of texts in one chart that lie on each other."""
    return list(page.evaluate(_OVERLAPS))


_OVERLAPS = """() => {
  const found = [];
  for (const plot of document.querySelectorAll('.plot')) {
    const texts = [...plot.querySelectorAll('svg.main-svg text')]
      .filter((t) => t.textContent && getComputedStyle(t).opacity !== '0')
      .filter((t) => !/rotate\\((?!0[,)])/.test(t.getAttribute('transform')))  // a box says little
      .map((t) => [t.textContent, t.getBoundingClientRect()]).filter(([, r]) => r.width > 0);
    texts.forEach(([a, r], i) => texts.slice(i + 1).forEach(([b, s]) => {
      const w = Math.min(r.right, s.right) - Math.max(r.left, s.left);
      const h = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
      if (w > 2 && h > 3) found.push(`${plot.parentElement.id}: ${a} | ${b}`);
    }));
  }
  return found;
}"""
