"""The commands `raysim data ...` and runs on data that users bring."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from raysim.cli import app
from raysim.data.datasets import open_dataset
from raysim.data.findings import KINDS
from raysim.data.partition import make_partition
from raysim.data.partition_file import write_partition
from raysim.data.partition_kinds import Iid
from raysim.data.settings import DataSettings
from raysim.data.sources import SOURCES
from raysim.run import read_config
from tests.data.preparing.hostile import FOUND, KEEP_ALL, build
from tests.toy import INPROCESS, ROOT, bits_of, command, environment, only_run, run_command

SAMPLES = Path(__file__).parents[2] / "shared" / "data"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="no sample data beside the project")
SMALL = ("rounds=2", "method=fedavg", "model=cnn", "model.width=4", "data.clients=4", INPROCESS)


def raysim(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, words)], env={"COLUMNS": "100"})


def write_images(
    root: Path, per_class: int = 12, domains: Iterable[str] = "ab", size: int = 16
) -> Path:
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
    """Brackets and colons in names mean something to what draws tables, but not here."""
    root = write_images(tmp_path / "bïlder und so", domains=("[red]", ":cat:"))
    out = tmp_path / "prepared"
    done = raysim("prepare", "image_folder", "--root", root, "--out", out, "--size", "16")
    assert done.exit_code == 0, done.output
    assert "48 images of 2 domains and 2 classes" in done.stdout
    words = [f"data.root={out}", "data=image_folder", "data.image_size=16"]
    ran = run_command(*words, *SMALL, "data.partition.min_examples=1", f"output.dir={tmp_path}/r")
    assert ran.returncode == 0, ran.stderr
    folder = only_run(tmp_path / "r")
    metrics = pd.read_parquet(folder / "metrics.parquet")
    assert set(metrics.domain) == {"[red]", ":cat:", "*"}
    assert re.search(r"model +┃ +:cat: ┃ +\[red\] ┃", ran.stdout), ran.stdout
    owners = pd.read_csv(folder / "partition.csv")
    assert (owners[owners.split == "train"].client.value_counts().sum(), len(owners)) == (40, 48)
    seen = raysim("inspect", "image_folder", "--root", out, "--out", tmp_path / "r.html")
    assert seen.exit_code == 0, seen.output
    assert "16 px" in seen.stdout
    assert "│ :cat:  │" in seen.stdout
    assert "│ [red]  │" in seen.stdout
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
    assert f"root: {root}\n" in (runs[0] / "config.yaml").read_text()


@pytest.mark.slow
def test_two_runs_at_once_prepare_the_same_data_once(tmp_path: Path, cache: Path) -> None:
    root = write_images(tmp_path / "raw")
    words = ["data=image_folder", f"data.root={root}", "data.image_size=16", *SMALL, "rounds=1"]
    words += ["data.partition.min_examples=1"]
    both = [
        subprocess.Popen(
            command(*words, f"output.dir={tmp_path}/{name}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(XDG_CACHE_HOME=str(cache)),
            cwd=ROOT,
        )
        for name in "ab"
    ]
    ended = [(*process.communicate(timeout=300), process.returncode) for process in both]
    assert [status for *_, status in ended] == [0, 0], ended
    assert bits_of(only_run(tmp_path / "a")) == bits_of(only_run(tmp_path / "b"))
    (prepared,) = (cache / "raysim" / "data").iterdir()
    names = {path.name.partition("-")[0] for path in prepared.iterdir()}
    assert names == {"a", "b", "manifest.json", "report.json"}
    assert len(list(prepared.iterdir())) == 4


@pytest.mark.slow
def test_a_run_whose_partition_file_changed_does_not_resume(tmp_path: Path) -> None:
    """Who holds what counts, not where the file lies."""
    dataset = open_dataset(DataSettings())
    path = tmp_path / "p.csv"
    write_partition(make_partition(dataset, Iid(), 4, 0), dataset, path)
    kind = "data.partition={kind: file, path: %s}"
    ran = run_command(*SMALL, "rounds=1", kind % path, f"output.dir={tmp_path}/r")
    assert ran.returncode == 0, ran.stderr
    folder = only_run(tmp_path / "r")
    moved = path.rename(tmp_path / "moved.csv")
    rows = moved.read_text().splitlines(keepends=True)
    path.write_text("".join(row for number, row in enumerate(rows) if number % 2 == 0))
    words = ["resume", str(folder), "rounds=2"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert f"not as in {folder}: data.partition.sha256." in refused.stderr
    on = run_command("--resume", folder, "rounds=2", f"data.partition.path={moved}")
    assert on.returncode == 0, on.stderr


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
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["refused.json"]
    page = tmp_path / "report.html"
    seen = raysim("inspect", "image_folder", f"data.root={tmp_path}/hostile", "--out", page)
    assert seen.exit_code == 2
    assert "--policy truncated=skip" in page.read_text()
    assert str(tmp_path / "hostile") in page.read_text()
    run = run_command("data=image_folder", f"data.root={tmp_path}/hostile", *SMALL, cwd=tmp_path)
    assert run.returncode == 2
    for text in (done.stderr, seen.stderr, run.stderr):
        assert "--policy truncated=skip (data.policy.truncated=skip for a run)" in text
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
        (["prepare", "image_folder", "--root", ".", "--out", "file://{here}/o"], "lies inside"),
        (["prepare", "pacs", "--root", "", "--out", "/o"], "root: is empty: give a folder"),
        (["prepare", "pacs", "--root", ".", "--out", ""], "out: is empty: give a folder"),
        (["prepare", "pacs", "--root", "/\udcff", "--out", "/o"], "the name is not UTF-8"),
        (["prepare", "pacs", "--root", ".", "--out", "/o", "--name", ""], "name: '': must be of"),
        (["prepare", "pacs", "--root", ".", "--out", "/o", "--name", "a/b"], "name: 'a/b': must"),
        (["prepare", "pacs", "--root", ".", "--out", "/o", "--name", "..x"], "name: '..x': must"),
        (["inspect", "pacs", "--root", ""], "data.root: is empty: give a folder, or null"),
        (["inspect", "pacs", "--root", "/\udcff"], "the name is not UTF-8"),
        (["inspect", "pets", "--root", "gone"], "gone: nothing is there; prepared data was expec"),
        (["inspect", "digits_mini", "--out", "/dev/null/x.png"], "x.png: File exists"),
        (["prepare", "pacs", "--root", ".", "--out", "/o", "--policy", "grey=skip"], "'gray'"),
        (["prepare", "pacs", "--root", ".", "--out", "/o", "--policy", "gray"], "KIND=error"),
        (["inspect", "digits_mini", "--out", "x.pdf"], "must end in"),
        (["inspect", "pacs"], r"data.root: where is pacs"),
        (["inspect", "digits_mini", "data.clientz=3"], "did you mean 'clients'"),
        (["inspect", "--root", "."], "say how it is laid out, `raysim data inspect NAME --root"),
        (["inspect", "--root", ".", "digits_mini"], "leave data.root out: digits_mini is part"),
        (["inspect", "pacz", "--root", "."], "did you mean 'pacs'"),
        (["inspect", "data.policy.grey=skip"], "data.policy: no kind of finding 'grey'; did you"),
        (["inspect", "--policy", "gray=skip"], "digits_mini needs no preparing, so that no policy"),
        (
            ["inspect", "pacs", "--root", "file:///nowhere"],
            "`raysim data prepare pacs --root FOLDER --out file:///nowhere --size 32`",
        ),
    ],
)
def test_wrong_words_are_exit_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = raysim(*(word.replace("{here}", str(tmp_path)) for word in words))
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_preparing_loads_no_torch(tmp_path: Path) -> None:
    """It would take seconds, and Ctrl-C in the midst of it would be lost."""
    root = write_images(tmp_path / "raw", per_class=1)
    words = ["-X", "importtime", "-m", "raysim.cli", "data", "prepare", "image_folder"]
    done = subprocess.run(
        [sys.executable, *words, "--root", root, "--out", tmp_path / "o", "--size", "16"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "raysim.data.preparing.prepare" in loaded
    assert "torch" not in loaded


def test_the_command_that_prepare_shows_is_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "raw")
    out = "~/two words #1: x"
    done = raysim(
        "prepare", "image_folder", "--root", "raw", "--out", out, "--name", "1e3", "--size", "16"
    )
    assert done.exit_code == 0, done.output
    (shown,) = re.findall(r"^use them: raysim run (.*)$", done.stdout, flags=re.MULTILINE)
    data = read_config(shlex.split(shown)).data
    assert (data.name, data.root) == ("1e3", str(tmp_path / "two words #1: x"))
    assert len(open_dataset(data).domains) == 2
    assert raysim("inspect", "1e3", "--root", "two words #1: x").exit_code == 0


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    root = write_images(tmp_path / "raw", per_class=1)
    (tmp_path / "cache").write_text("a file")
    seen = raysim("inspect", "image_folder", "--root", root, f"data.cache={tmp_path}/cache/x")
    assert seen.exit_code == 2
    assert "cannot be written: Not a directory" in seen.stderr
    assert "data.cache=FOLDER prepares it elsewhere" in seen.stderr


def test_pages_go_to_folders_that_are_made_and_name_what_they_show(tmp_path: Path) -> None:
    page = tmp_path / "new" / "folder" / "r.html"
    words = ["data.unseen=syn", "data.split={kind: holdout, val: 0.1, seed: null}", "seed=7"]
    seen = raysim("inspect", "data.partition.alpha=0.3", *words, "--out", page)
    assert seen.exit_code == 0, seen.output
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page.read_text()))
    assert facts["split rule"] == "holdout, test 0.2, val 0.1, use 1.0"
    assert facts["partition"].startswith("domain_dirichlet, ")
    assert "alpha 0.3" in facts["partition"]
    assert facts["partition"].endswith(", 20 clients")
    assert (facts["unseen"], facts["seed"]) == ("syn", "7")


def test_damaged_prepared_data_is_found(tmp_path: Path) -> None:
    root, out = write_images(tmp_path / "raw"), tmp_path / "o"
    raysim("prepare", "image_folder", "--root", root, "--out", out, "--size", "16")
    (file,) = out.glob("a-*.arrow")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    seen = raysim("inspect", "image_folder", "--root", out)
    assert seen.exit_code == 2
    assert file.name in seen.stderr


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 16 px images called pets."""
    folder = tmp_path_factory.mktemp("prepared")
    words = ["--root", write_images(folder / "raw"), "--out", folder / "pets", "--name", "pets"]
    done = raysim("prepare", "image_folder", *words, "--size", "16")
    assert done.exit_code == 0, done.output
    return folder / "pets"


@pytest.mark.parametrize("given", [["--root", "{}"], ["data.root={}"], ["pets", "--root", "{}"]])
def test_a_manifest_tells_name_and_size(prepared: Path, given: list[str]) -> None:
    seen = raysim("inspect", *(word.format(prepared) for word in given))
    assert seen.exit_code == 0, seen.output
    assert "pets: images of 2 classes, 16 px" in seen.stdout
    smaller = raysim("inspect", *(word.format(prepared) for word in given), "data.image_size=8")
    assert "pets: images of 2 classes, 8 px" in smaller.stdout


def test_the_name_given_has_to_be_the_manifests(prepared: Path) -> None:
    seen = raysim("inspect", "pacs", "--root", prepared)
    assert seen.exit_code == 2
    assert "holds pets, not pacs" in seen.stderr


def test_policies_for_prepared_data_are_refused(prepared: Path) -> None:
    seen = raysim("inspect", "--root", prepared, "--policy", "gray=skip")
    assert seen.exit_code == 2
    assert f"data.policy: {prepared} needs no preparing" in seen.stderr


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
