"""Finished runs as cells of a table; rows that are tuned first; rows from a file."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raysim import run
from raysim.config import RunConfig
from raysim.errors import ConfigError
from raysim.run import read_config
from tests.toy import only_run
from tests.tune_jobs.test_table import SMALL, asked, call
from tune_jobs.outcome import Outcome
from tune_jobs.reuse import REUSED, finished, take_over
from tune_jobs.study import TUNE
from tune_jobs.table_settings import TableSettings
from tune_jobs.tables import caption
from tune_jobs.tuning import best, judged
from tune_jobs.variants import rows_of

TINY: dict[str, Any] = {
    **{"method": "fedavg", "data": {"clients": 20, "image_size": 16}, "rounds": 1},
    **{"model": {"name": "cnn", "width": 4}, "participation": {"fraction": 0.1}},
    **{"execution": {"backend": "inprocess"}},
}
CELL = {"method": "fedavg", "seed": 0}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one finished run, deep in it."""
    folder = tmp_path_factory.mktemp("there")
    run(quiet=True, **TINY, output={"dir": folder / "deep" / "er", "tensorboard": False})
    return folder


def base(**more: str) -> RunConfig:
    words = [*SMALL, "method=fedavg", *(f"{key}={value}" for key, value in more.items())]
    return read_config(words)


def taken(there: Path, study: Path, cell: Mapping[str, Any], **more: str) -> list[Outcome]:
    return take_over(base(**more), [cell], [there], study)


def test_a_finished_run_is_a_cell_wherever_it_ran(there: Path, tmp_path: Path) -> None:
    # Where it runs, what it writes and where the data's cache lies make no difference.
    (found,) = taken(there, tmp_path, CELL, **{"execution.hosts": "3", "data.cache": "/some"})
    assert found.status == "done"
    assert found.values == CELL
    assert found.folder.parent == tmp_path / REUSED
    original = only_run(there / "deep" / "er")
    assert found.summary() == json.loads((original / "summary.json").read_text())
    copied = {path.name for path in found.folder.iterdir()}
    assert copied == {path.name for path in original.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("cell", "more"),
    [
        ({"seed": 1}, {}),
        ({"method": "fedprox"}, {}),
        ({"local.lr": 0.05}, {}),
        ({}, {"rounds": "2"}),
        ({}, {"data.split.val": "0.2"}),
        ({}, {"evaluation.last": "2"}),
    ],
)
def test_another_experiment_is_not_taken(
    there: Path, tmp_path: Path, cell: dict[str, Any], more: dict[str, str]
) -> None:
    assert taken(there, tmp_path, CELL | cell, **more) == []
    assert not list(tmp_path.iterdir())


def test_what_is_not_a_finished_run_is_passed_over(there: Path, tmp_path: Path) -> None:
    original = only_run(there / "deep" / "er")
    damages = {
        "stopped": lambda p: _change(p / "summary.json", status="stopped"),
        "other": lambda p: _change(p / "environment.json", data_sha256="0" * 64),
        "cut": lambda p: (p / "summary.json").write_text('{"status": "do'),
        "strange": lambda p: (p / "config.yaml").write_text("method: {name: nobody}"),
        "bare": lambda p: (p / "environment.json").unlink(),
        "none": lambda p: (p / "config.yaml").write_text(""),
        "list": lambda p: (p / "summary.json").write_text("[]"),
        "null": lambda p: (p / "environment.json").write_text("null"),
        "old": lambda p: _change(p / "summary.json", last=None),
        "edited": lambda p: _change(p / "environment.json", method_sha256="0" * 64),
        "half.part": lambda p: None,
    }
    for name, damage in damages.items():
        shutil.copytree(original, tmp_path / "runs" / name)
        damage(tmp_path / "runs" / name)
    assert [path.name for _, path in finished(tmp_path / "runs")] == ["other"]
    assert taken(tmp_path / "runs", tmp_path / "study", CELL) == []


def test_a_run_of_a_method_file_counts_while_the_file_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = "from methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
    file.write_text(text)
    settings = TINY | {"method": f"{file}:Mine", "output": {"dir": tmp_path / "runs"}}
    run(quiet=True, **settings)
    assert len(list(finished(tmp_path / "runs"))) == 1
    file.write_text(text + "\n    title = 'another'\n")
    assert not list(finished(tmp_path / "runs"))


def _change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_study_that_has_begun_keeps_to_what_it_took(there: Path, tmp_path: Path) -> None:
    begun, fresh = tmp_path / "begun", tmp_path / "fresh"
    (begun / TUNE).mkdir(parents=True)
    assert taken(there, begun, CELL) == []
    assert len(taken(there, fresh, CELL)) == 1
    (fresh / TUNE).mkdir()
    assert len(taken(tmp_path / "nothing", fresh, CELL)) == 1


def test_a_copy_that_cannot_be_written_says_so(there: Path, tmp_path: Path) -> None:
    (tmp_path / REUSED).write_text("a file")
    with pytest.raises(ConfigError, match=r"output\.dir: .*reused"):
        taken(there, tmp_path, CELL)


# Rows -------------------------------------------------------------------------------------------


def test_rows_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my_rows.yaml"
    file.write_text("plain: {method: fedavg}\n'0.5': {method.rho: 0.5, method: fedfip}\n")
    settings = asked(rows=file)
    assert settings.title == "my rows"
    assert [row.label for row in settings.rows] == ["plain", "0.5"]
    assert settings.rows[1].values == {"method": "fedfip", "method.rho": 0.5}
    assert settings.baseline == "plain"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected rows"),
        ("[fedavg]", "expected rows"),
        ("a: fedavg", "a: expected the row's keys"),
        ("a: {local.lr: 0.1}", "a: expected the row's keys"),
        ("a: {method: fedavg}\nb: {method: fedavg}", "a and b are the same"),
        ("a: {method: fedavg", "flow mapping"),
        ("a: {method: fedavg, seed: 3}", "seed is not for one row"),
        ("a: {method: fedavg, data.name: pacs}", "data.name is not for one row"),
        ("a: {method: fedavg, local: {lr: 0.1}}", "local is not for one row"),
        ("a: {method: fedavg, 3: 4}", "3 is not for one row"),
    ],
)
def test_a_file_that_is_no_rows(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "rows.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        rows_of(file)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rows", "x.yaml"], "--methods and --rows exclude each other"),
        (["--tune", "local.lr"], "expected KEY=VALUE"),
        (["--tune", "seed=1,2"], "only method.*, model.*, local.*"),
        (["--tune", "data.split.val=0.1,0.2"], "only method.*, model.*, local.*"),
        (["--tune", "local.lr=0.1,0.1"], "a value twice"),
        (["--tune", "local.lr=0.1", "--tune", "local.lr=0.2"], "expected KEY=VALUE"),
        (["--tune", "local.lr=0.1", "local.lr=0.2"], "fedavg has local.lr set already"),
        (["fedavg:data.split.val=0.1"], "fedavg:: data.split.val is not for one row"),
        (["--data", "digits_mini,digits_mini"], "digits_mini twice"),
        (["--tune", "local.rl=0.1"], "did you mean 'lr'"),
        (["--tune", "local.lr=fast"], "local.lr"),
        (["--tune", "local.lr=0.1", "fedavg:local.lr=0.2"], "fedavg has local.lr set already"),
        (["--reuse", "/no/such"], "no such folder"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    result = call("--methods", "fedavg", *SMALL, f"output.dir={tmp_path}", *words)
    assert result.exit_code == 2, result.output
    assert said in result.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_one_field_under_two_names_is_tuned_once_or_not_at_all() -> None:
    with pytest.raises(ConfigError, match=r"fedfip has method\.lambda set already"):
        asked("fedfip:method.lambda=0.1", methods="fedfip", tune=["method.contrastive_weight=0.2"])
    with pytest.raises(ConfigError, match="contrastive_weight twice"):
        asked(methods="fedfip", tune=["method.lambda=0.1", "method.contrastive_weight=0.2"])


def test_what_is_wrong_with_a_row_names_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.yaml"
    file.write_text("first: {method: fedavg}\nsecond: {method: moon, method.muu: 1}\n")
    with pytest.raises(ConfigError, match=r"second: method\.muu"):
        asked(rows=file)


# Tuning -----------------------------------------------------------------------------------------


def tuned_settings(**more: Any) -> TableSettings:
    return asked(tune=["local.lr=0.1,0.2", "local.epochs=1,2"], seeds=2, **more)


def test_every_row_is_tried_with_the_same_values() -> None:
    settings = tuned_settings()
    trials = settings.trials()
    assert len(trials) == 2 * 4
    assert [t["method"] for t in trials] == ["fedavg"] * 4 + ["fedfip"] * 4
    tried = [(t["local.lr"], t["local.epochs"], t["seed"]) for t in trials[:4]]
    assert tried == [(0.1, 1, 0), (0.1, 2, 0), (0.2, 1, 0), (0.2, 2, 0)]


def test_what_is_chosen_holds_for_all_seeds_of_a_row() -> None:
    settings = tuned_settings()
    one, two = {"local.lr": 0.1, "local.epochs": 2}, {"local.lr": 0.2, "local.epochs": 1}
    cells = settings.model_copy(update={"chosen": (one, two)}).cells()
    found = [(c["method"], c["seed"], c["local.lr"], c["local.epochs"]) for c in cells]
    assert found == [
        *(("fedavg", 0, 0.1, 2), ("fedfip", 0, 0.2, 1)),
        *(("fedavg", 1, 0.1, 2), ("fedfip", 1, 0.2, 1)),
    ]
    words = caption(settings.model_copy(update={"chosen": (one, two)}))
    assert "fedavg lr=0.1 epochs=2, fedfip lr=0.2 epochs=1" in words


def trial(folder: Path, name: str, figures: Any) -> Outcome:
    place = folder / name
    place.mkdir()
    (place / "summary.json").write_text(json.dumps({"val": figures}))
    return Outcome(trial=name, values={}, status="done", folder=place)


def val(avg: float, std: float, personal: float | None = None) -> dict[str, Any]:
    own = None if personal is None else {"last": {"avg": personal, "std": 0.0}}
    return {"avg": 0.0, "std": 0.0, "last": {"avg": avg, "std": std}, "personal": own}


def test_the_highest_validation_avg_wins_then_the_lower_std_then_the_first(tmp_path: Path) -> None:
    figures = {"low": (50, 1), "wide": (60, 9), "best": (60, 5), "later": (60, 5)}
    outcomes = [trial(tmp_path, name, val(*pair)) for name, pair in figures.items()]
    assert best(outcomes, "avg") == 2


def test_personal_models_are_judged_where_there_are_any() -> None:
    assert judged(val(50, 1, 70), "personal")["avg"] == 70
    assert judged(val(50, 1, 70), "avg")["avg"] == 50
    assert judged(val(50, 1), "personal")["avg"] == 50


def table_words(folder: Path, *words: str) -> list[str]:
    tune = ["--tune", "local.lr=0.05,0.1", "--seeds", "2"]
    return ["--methods", "fedavg,fedprox", *tune, *SMALL, f"output.dir={folder}", *words]


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_tuned_table_and_the_same_again_from_its_runs(tmp_path: Path) -> None:
    first = call(*table_words(tmp_path / "first"))
    assert first.exit_code == 0, first.output
    assert "data.split.val=0.2" in first.output
    study = only_run(tmp_path / "first")
    trials = pd.read_parquet(study / "tuning" / "trials.parquet")
    assert len(trials) == 4
    runs = pd.read_parquet(study / "runs.parquet").set_index("row")
    for row, own in trials.groupby("method"):
        wanted = own.loc[own["val_avg"].idxmax(), "local.lr"]
        assert set(runs.loc[row, "local.lr"]) == {wanted}
    assert "2 of 4 runs are there already" in first.output, "the winners are not run again"
    # Only the small files are left, and somewhere else.
    for path in study.rglob("summary.json"):
        home = tmp_path / "pool" / path.parent.name
        home.mkdir(parents=True)
        for name in ("config.yaml", "environment.json", "summary.json"):
            shutil.copy2(path.parent / name, home)
    again = call(*table_words(tmp_path / "again", "--reuse", str(tmp_path / "pool")))
    assert again.exit_code == 0, again.output
    assert "4 of 4 runs are there already" in again.output
    second = only_run(tmp_path / "again")
    assert (second / "table.md").read_text() == (study / "table.md").read_text()
    assert not (second / "tune").exists()
    resumed = call("--resume", str(study))
    assert resumed.exit_code == 0, resumed.output
    assert (second / "table.md").read_text() == (study / "table.md").read_text()
