import copy
import csv
import io
import json
import shutil
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from methods import METHODS
from raysim.chart import Table
from raysim.cli import app
from raysim.compare import compare, p_value
from raysim.errors import RecordError
from raysim.record import Record
from raysim.table_text import (
    as_csv,
    joined,
    latex,
    letters,
    markdown,
    renamed,
    rich_table,
    transposed,
)

Finished = tuple[Path, CompletedProcess[str]]


@pytest.fixture
def make(finished: Finished, tmp_path: Path) -> Any:
    """Copy the finished run with other settings and figures."""
    source = finished[0]

    def made(name: str, avg: float, *, seed: int = 0, sha: str = "", **changes: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for name in ("metrics.parquet", "data.json"):
            shutil.copy(source / name, folder)
        config = copy.deepcopy(yaml.safe_load((source / "config.yaml").read_text()))
        config["seed"] = seed
        for key, value in changes.items():
            node = config
            *path, leaf = key.split("__")
            for part in path:
                node = node[part]
            node[leaf] = value
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        summary = json.loads((source / "summary.json").read_text())
        summary |= {"avg": avg, "seed": seed, "rounds": config["rounds"]}
        (folder / "summary.json").write_text(json.dumps(summary))
        environment = json.loads((source / "environment.json").read_text())
        if sha or seed:
            environment["partition_sha256"] = sha or f"of seed {seed}"
        (folder / "environment.json").write_text(json.dumps(environment))
        return folder

    return made


def records(*folders: Path) -> list[Record]:
    return [Record(folder, METHODS) for folder in folders]


def column(table: Table, name: str) -> list[Any]:
    at = table.columns.index(name)
    return [row[at] for row in table.rows]


def test_seeds_are_a_group_and_settings_name_it(make: Any) -> None:
    base = [make(f"a{s}", 80.0 + s, seed=s) for s in (0, 1, 2)]
    other = [make(f"b{s}", 84.0 + 2 * s, seed=s, method__keep_ratio=0.3) for s in (0, 1, 2)]
    found = compare(records(*base, *other))
    assert [group.name for group in found.groups] == [
        *("fedfip keep_ratio=0.5", "fedfip keep_ratio=0.3")
    ]
    assert column(found.figures, "seeds") == [3, 3]
    assert column(found.figures, "AVG") == [81.0, 86.0]
    assert column(found.figures, "AVG ±") == [1.0, 2.0]
    # Differences 4, 5, 6: mean 5, standard error 1/sqrt(3), t = 8.660 with 2 degrees of freedom.
    assert column(found.figures, "p of AVG")[1] == pytest.approx(0.01307, abs=1e-4)
    assert column(found.figures, "test")[1] == "paired, 3 seeds"
    assert found.differences is not None
    assert found.differences.rows == (("method.keep_ratio", "0.5", "0.3"),)


def test_p_values_need_two_seeds_and_something_that_varies() -> None:
    assert p_value({0: 1.0}, {0: 2.0}) is None
    assert p_value({0: 1.0, 1: 2.0}, {0: 2.0, 1: 3.0}) is None
    found = p_value({0: 1.0, 1: 2.0}, {7: 5.0, 8: 6.5})
    assert found is not None
    assert found[1] == "Welch"
    assert 0 < found[0] < 0.1


def test_other_data_or_partitions_are_never_compared_silently(make: Any) -> None:
    a, same_seed = make("a", 80.0), make("b", 80.0, sha="other", rounds=7)
    with pytest.raises(RecordError, match=r"who holds which image differs for seed 0.*\n--anyway"):
        compare(records(a, same_seed))
    dealt = make("c", 80.0, sha="other", data__partition={"kind": "iid"})
    with pytest.raises(RecordError, match=r"c is dealt otherwise than a: data.partition"):
        compare(records(a, dealt))
    small = make("d", 80.0, data__image_size=8)
    with pytest.raises(RecordError, match="image size differ"):
        compare(records(a, small))
    assert "dealt otherwise" in compare(records(a, dealt), anyway=True).warnings[0]


def test_seeds_of_other_partitions_are_no_pairs(make: Any) -> None:
    base = [make(f"a{s}", 80.0 + s, seed=s) for s in (0, 1, 2)]
    other = [make(f"b{s}", 84.0 + 2 * s, seed=s, data__clients=7) for s in (0, 1, 2)]
    found = compare(records(*base, *other), anyway=True)
    assert column(found.figures, "p of AVG") == [None, None]
    assert any(line.startswith("no p for other data") for line in found.notes)


def test_runs_that_are_not_done_or_stand_there_twice_are_named(make: Any) -> None:
    a, b = make("a", 80.0), make("b", 81.0)
    with pytest.raises(RecordError, match="the same experiment: leave one out"):
        compare(records(a, b))
    (b / "summary.json").write_text('{"status": "interrupted"}')
    told = r"b has not ended \(interrupted\): if it is not running, .*`raysim resume .*b`; or leave"
    with pytest.raises(RecordError, match=told):
        compare(records(a, b))
    with pytest.raises(RecordError, match="two runs or more"):
        compare(records(a))


def test_methods_of_other_keys_are_told_apart_by_what_both_have(make: Any) -> None:
    a = make("a", 80.0)
    b = make("b", 81.0, method={"name": "fedavg", "buffers": "average"}, local__lr=0.3)
    differences = compare(records(a, b)).differences
    assert differences is not None
    assert [row[0] for row in differences.rows] == ["local.lr", "method.name"]


def test_the_command_writes_all_formats(make: Any) -> None:
    folders = [str(make("a", 80.0)), str(make("b", 81.0, rounds=7))]
    shown = CliRunner().invoke(app, ["compare", *folders], env={"COLUMNS": "120"})
    assert shown.exit_code == 0
    assert "rounds" in shown.output
    assert "one seed each" in shown.output
    written = CliRunner().invoke(app, ["compare", "--csv", *folders]).output
    rows = list(csv.DictReader(io.StringIO(written)))
    assert [float(row["AVG"]) for row in rows] == [80.0, 81.0]
    for flag, word in (("--markdown", "| --- |"), ("--latex", r"\begin{tabular}")):
        assert word in CliRunner().invoke(app, ["compare", flag, *folders]).output
    both = CliRunner().invoke(app, ["compare", "--csv", "--latex", *folders])
    assert both.exit_code == 2


def test_a_pipe_is_given_whole_names_and_papers_what_differs(make: Any) -> None:
    much = {f"local__{key}": value for key, value in
            {"lr": 0.123456789, "momentum": 0.987654321, "batch_size": 12345}.items()}  # fmt: skip
    folders = [str(make("a", 80.0)), str(make("b", 0.4991, rounds=7, **much))]
    shown = CliRunner().invoke(app, ["compare", *folders]).output
    for word in ("local.batch_size", "0.123456789", "multiply-adds", "A: fedfip local.batch_size="):
        assert word in shown
    assert "…" not in shown
    paper = CliRunner().invoke(app, ["compare", "--latex", *folders]).output
    assert "% one seed each" in paper
    assert "% local.lr | 0.1" in paper
    assert " & 0.50 & " in paper
    text = CliRunner().invoke(app, ["compare", "--markdown", *folders]).output
    assert "\n- one seed each" in text
    assert "| local.momentum | " in text


def test_a_narrow_terminal_folds_what_it_cannot_hold() -> None:
    from rich.console import Console

    console = Console(width=30, force_terminal=True, color_system=None)
    with console.capture() as caught:
        console.print(rich_table(Table(("setting", "A"), (("data." + "x" * 40, "y" * 40),))))
    assert "…" not in caught.get()
    assert caught.get().count("x") == caught.get().count("y") == 40


def test_letters_stand_for_names() -> None:
    found = letters([f"run {i}" for i in range(28)])
    assert [found["run 0"], found["run 25"], found["run 27"]] == ["A", "Z", "AB"]
    table = renamed(Table(("setting", "run 0"), (("a", 0.5),), frozenset({"run 0"})), found)
    assert (table.columns, table.shown()) == (("setting", "A"), [["a", "0.50"]])


def test_tables_as_text() -> None:
    table = Table(
        ("run", "AVG", "AVG ±", "p"), (("a_b|c", 80.123, 1.5, None), ("d", 81.0, None, 0.5))
    )
    one = joined(table)
    assert one.rows == (("a_b|c", "80.12 ± 1.50", ""), ("d", "81.00", "0.5"))
    assert markdown(one).splitlines()[2] == r"| a_b\|c | 80.12 ± 1.50 |  |"
    assert r"a\_b|c & 80.12 $\pm$ 1.50 &  \\" in latex(one)
    assert as_csv(table).splitlines()[1] == "a_b|c,80.123,1.5,"
    assert transposed(one).rows[0] == ("AVG", "80.12 ± 1.50", "81.00")
