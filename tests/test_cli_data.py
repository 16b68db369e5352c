"""The commands `raysim data ...` and runs on data that users bring."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from raysim.cli import app
from raysim.data.findings import KINDS
from raysim.data.sources import SOURCES
from tests.data.preparing.hostile import FOUND, KEEP_ALL, build
from tests.toy import INPROCESS, only_run, run_command

SAMPLES = Path(__file__).parents[2] / "shared" / "data"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="no sample data beside the project")
SMALL = ("rounds=2", "method=fedavg", "model=cnn", "model.width=4", "data.clients=4", INPROCESS)


def raysim(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, words)], env={"COLUMNS": "100"})


def write_images(root: Path, per_class: int = 12, domains: str = "ab", size: int = 16) -> Path:
    """Write a folder of two classes that differ in brightness."""
    draw = np.random.default_rng(0)
    for domain in domains:
        for label, name in enumerate(("dark", "light")):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number in range(per_class):
                pixels = draw.integers(0, 100, (size, size, 3)) + 120 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return root


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_list_names_every_source_and_kinds_every_kind() -> None:
    listed, kinds = raysim("list").stdout, raysim("kinds").stdout
    assert all(name in listed for name in ("digits_mini", *SOURCES))
    assert all(kind in kinds for kind in KINDS)


def test_prepare_then_run_then_inspect(tmp_path: Path) -> None:
    root, out = write_images(tmp_path / "bïlder und so"), tmp_path / "prepared"
    done = raysim("prepare", "image_folder", "--root", root, "--out", out, "--size", "16")
    assert done.exit_code == 0, done.output
    assert "48 images of 2 domains and 2 classes" in done.stdout
    words = [f"data.root={out}", "data=image_folder", "data.image_size=16"]
    ran = run_command(*words, *SMALL, "data.partition.min_examples=1", f"output.dir={tmp_path}/r")
    assert ran.returncode == 0, ran.stderr
    folder = only_run(tmp_path / "r")
    metrics = pd.read_parquet(folder / "metrics.parquet")
    assert set(metrics.domain) == {"a", "b", "*"}
    owners = pd.read_csv(folder / "partition.csv")
    assert (owners[owners.split == "train"].client.value_counts().sum(), len(owners)) == (40, 48)
    seen = raysim("inspect", "image_folder", "--root", out, "--out", tmp_path / "r.html")
    assert seen.exit_code == 0, seen.output
    assert "16 px" in seen.stdout
    assert "without clients" in seen.stdout  # 20 clients cannot have 10 images each
    assert "dark" in (tmp_path / "r.html").read_text()


def test_a_raw_root_is_prepared_in_the_cache_once(tmp_path: Path, cache: Path) -> None:
    root = write_images(tmp_path / "raw")
    words = ["data=image_folder", f"data.root={root}", "data.image_size=16", *SMALL]
    words += ["data.partition.min_examples=1"]
    first = run_command(*words, f"output.dir={tmp_path}/a", XDG_CACHE_HOME=str(cache))
    assert first.returncode == 0, first.stderr
    (prepared,) = (cache / "raysim" / "data").iterdir()
    stamp = (prepared / "manifest.json").stat().st_mtime_ns
    again = run_command(*words, f"output.dir={tmp_path}/b", XDG_CACHE_HOME=str(cache))
    assert again.returncode == 0, again.stderr
    assert (prepared / "manifest.json").stat().st_mtime_ns == stamp
    runs = [only_run(tmp_path / name) for name in "ab"]
    assert len({(run / "metrics.parquet").read_bytes() for run in runs}) == 1
    assert f"root: {prepared}" in (runs[0] / "config.yaml").read_text()


def test_a_run_that_moved_its_data_resumes_and_other_data_does_not(tmp_path: Path) -> None:
    out = tmp_path / "prepared"
    root = write_images(tmp_path / "raw")
    raysim("prepare", "image_folder", "--root", root, "--out", out, "--size", "16")
    words = ["data=image_folder", "data.image_size=16", *SMALL, "data.partition.min_examples=1"]
    ran = run_command(*words, f"data.root={out}", f"output.dir={tmp_path}/r")
    assert ran.returncode == 0, ran.stderr
    folder = only_run(tmp_path / "r")
    out.rename(tmp_path / "moved")
    on = run_command("--resume", folder, "rounds=3", f"data.root={tmp_path}/moved")
    assert on.returncode == 0, on.stderr
    other = write_images(tmp_path / "other", per_class=11)
    raysim("prepare", "image_folder", "--root", other, "--out", tmp_path / "o", "--size", "16")
    refused = run_command("--resume", folder, "rounds=4", f"data.root={tmp_path}/o")
    assert refused.returncode == 2
    assert "data.sha256" in refused.stderr


def test_bad_input_is_exit_2_with_a_report_and_nothing_else(tmp_path: Path, cache: Path) -> None:
    build(tmp_path / "hostile")
    done = raysim(
        "prepare", "image_folder", "--root", tmp_path / "hostile", "--out", tmp_path / "o"
    )
    assert done.exit_code == 2
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["report.json"]
    page = tmp_path / "report.html"
    seen = raysim("inspect", "image_folder", "--root", tmp_path / "hostile", "--out", page)
    assert seen.exit_code == 2
    for text in (done.stderr, seen.stderr, page.read_text()):
        assert "truncated=skip" in text
    run = run_command("data=image_folder", f"data.root={tmp_path}/hostile", *SMALL, cwd=tmp_path)
    assert run.returncode == 2
    assert "truncated=skip" in run.stderr
    assert not list(tmp_path.glob("runs/*"))


def test_policies_let_the_hostile_folder_pass_and_count_everything(
    tmp_path: Path, cache: Path
) -> None:
    build(tmp_path / "hostile")
    words: list[str] = []
    for kind, policy in KEEP_ALL.items():
        words += ["--policy", f"{kind}={policy}"]
    out = tmp_path / "o"
    done = raysim("prepare", "image_folder", "--root", tmp_path / "hostile", "--out", out, *words)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads((out / "report.json").read_text())["findings"]
    assert {kind: item["count"] for kind, item in found.items()} == FOUND
    assert all(f"{kind}: " in done.stdout for kind in FOUND)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prepare", "pacz", "--root", "raw", "--out", "o"], "did you mean 'pacs'"),
        (["prepare", "pacs", "--root", "nowhere", "--out", "o"], "not found: pacs"),
        (["prepare", "image_folder", "--root", ".", "--out", "o"], "lies inside"),
        (["prepare", "pacs", "--root", ".", "--out", "/o", "--policy", "grey=skip"], "'gray'"),
        (["prepare", "pacs", "--root", ".", "--out", "/o", "--policy", "gray"], "KIND=error"),
        (["inspect", "digits_mini", "--out", "x.pdf"], "must end in"),
        (["inspect", "pacs"], r"data.root: where is pacs"),
        (["inspect", "digits_mini", "data.clientz=3"], "did you mean 'clients'"),
    ],
)
def test_wrong_words_are_exit_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = raysim(*words)
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")


def test_damaged_prepared_data_is_found(tmp_path: Path) -> None:
    root, out = write_images(tmp_path / "raw"), tmp_path / "o"
    raysim("prepare", "image_folder", "--root", root, "--out", out, "--size", "16")
    file = out / "a.arrow"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    seen = raysim("inspect", "image_folder", "--root", out)
    assert seen.exit_code == 2
    assert "a.arrow" in seen.stderr


@needs_samples
def test_pacs_as_people_have_it(tmp_path: Path, cache: Path) -> None:
    root = shutil.copytree(SAMPLES / "raw_samples" / "pacs", tmp_path / "pacs")
    words = ["data=pacs", f"data.root={root}", "data.image_size=32", *SMALL]
    words += ["data.partition.min_examples=1", "data.unseen=[sketch]"]
    done = run_command(*words, f"output.dir={tmp_path}/r", XDG_CACHE_HOME=str(cache))
    assert done.returncode == 0, done.stderr
    summary = json.loads((only_run(tmp_path / "r") / "summary.json").read_text())
    assert list(summary["domains"]) == ["art_painting", "cartoon", "photo"]
    assert list(summary["unseen"]) == ["sketch"]


@needs_samples
def test_pacs_as_parquet_has_the_published_counts(tmp_path: Path) -> None:
    out = tmp_path / "pacs"
    words = ["prepare", "parquet", "--root", SAMPLES / "pacs", "--name", "pacs", "--out", out]
    done = raysim(*words, "--size", "16")
    assert done.exit_code == 0, done.output
    report = json.loads((out / "report.json").read_text())
    counted = {domain["name"]: domain["images"] for domain in report["domains"]}
    assert counted == {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    assert report["domains"][3]["splits"] == {"train": 3531, "test": 398}
