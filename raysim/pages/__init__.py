"""Pages: self-contained HTML files that open offline, made from the Jinja2 templates beside this.

`base.html.j2` is the frame (style, heading, contents), `charts.html.j2` the frame of pages with
charts, `parts.html.j2` holds what pages share, and each page is a template that extends a frame. A
page loads nothing, and its content security policy allows no script but the two that draw charts,
named by their hashes: names from strangers' files can do no harm.
"""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

_SCRIPTS = {
    "plotly": ("plotly", "package_data/plotly.min.js"),
    "charts": ("raysim.pages", "charts.js"),
}


def render_page(template: str, **values: object) -> str:
    """Fill a template.

    Args:
        template: file name in this folder.
        **values: what the template shows; text is escaped.

    Returns:
        HTML that UTF-8 can encode: file names that are no text are shown with escapes.
    """
    page = _environment().get_template(template).render(**values)
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


@cache
def _script(name: str) -> Markup:
    """Return a script's text; its own `</script` would end it, which neither has."""
    package, path = _SCRIPTS[name]
    return Markup(files(package).joinpath(path).read_text(encoding="utf-8"))


@cache
def _script_hashes() -> str:
    """Return the scripts as a content security policy names them."""
    digests = (hashlib.sha256(_script(name).encode()).digest() for name in _SCRIPTS)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("raysim", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.globals |= {"script": _script, "script_hashes": _script_hashes}
    return environment
