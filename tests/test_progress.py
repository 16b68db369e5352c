import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from raysim.cli import app
from raysim.federation import RoundSummary
from raysim.progress import Bar, Eta, JsonLines, Lines, Silent, describe, display, plain_console
from tests.toy import INPROCESS, only_run

SUMMARY: dict[str, Any] = {
    "method": "fedfip",
    "dataset": "digits_mini",
    "seed": 0,
    "rounds": 3,
    "domains": {"mnist": 95.0, "syn": 85.0},
    "avg": 90.0,
    "std": 7.07,
    "last": {"avg": 89.0, "std": 8.0},
    "personal": {"avg": 88.0, "std": 6.0},
    "unseen": {},
}


def after(round_: int, **more: Any) -> RoundSummary:
    evaluation = {"avg": 90.0, "std": 7.07, "domains": {}, "personal": None, "unseen": {}}
    given = {"cohort": 10, "loss": 0.5, "evaluation": evaluation, "seconds": 2.0}
    return RoundSummary(round=round_, **(given | more))


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=80, markup=False)


def text_of(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def test_a_line_has_all_there_is_to_know_of_a_round() -> None:
    figures = {"kept_units": 60.0, "reactivated": 1.25}
    assert describe(after(2, figures=figures), Eta(5, 1)) == [
        *("10 clients", "loss 0.500", "AVG 90.00", "STD  7.07"),
        *("60+1.2 units", "2.0 s", "0:00:06 left"),
    ]
    assert describe(after(5, evaluation=None), Eta(5, 0))[2:] == ["2.0 s", "0:00:00 left"]


def test_logs_get_a_plain_line_a_round_and_a_table() -> None:
    shown = console(terminal=False)
    with display(shown, 3, 0) as progress:
        assert type(progress) is Lines
        progress.on_start(Path("/runs/a"))
        progress.on_round(after(1))
        progress.on_notice("a host was lost")
    progress.on_end(SUMMARY, Path("/runs/a"))
    lines = text_of(shown).splitlines()
    assert lines[0] == "writing to /runs/a"
    assert lines[1].startswith("round 1/3  10 clients  loss 0.500  AVG 90.00")
    assert lines[2] == "a host was lost"
    assert lines[-1] == "run directory: /runs/a"


def test_terminals_get_a_bar_with_the_figures_below() -> None:
    shown = console(terminal=True)
    with display(shown, 3, 0) as progress:
        assert type(progress) is Bar
        progress.on_round(after(1))
        progress.on_notice("a host was lost")
        progress.on_round(after(2))
    assert "a host was lost" in text_of(shown)
    assert "2/3" in text_of(shown)
    assert "10 clients  loss 0.500" in text_of(shown)


def test_a_quiet_console_shows_nothing() -> None:
    assert type(display(plain_console(quiet=True), 3, 0)) is Silent


def test_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonLines(3, 0) as progress:
        progress.on_start(Path("/runs/a"))
        progress.on_round(after(1, figures={"loss": float("nan")}))
        progress.on_notice("a host was lost")
    progress.on_end(SUMMARY, Path("/runs/a"))
    progress.on_failure(OSError("disk full"), Path("/runs/a"), 2)
    start, one, notice, end, failed = map(json.loads, capsys.readouterr().out.splitlines())
    assert start == {"event": "start", "folder": "/runs/a"}
    assert failed == {"event": "failed", "folder": "/runs/a", "error": "disk full", "rounds": 2}
    assert (one["event"], one["round"], one["rounds"], one["eta_s"]) == ("round", 1, 3, 4.0)
    assert one["evaluation"]["avg"] == 90.0
    assert one["figures"] == {"loss": None}, "NaN is no JSON"
    assert notice == {"event": "notice", "text": "a host was lost"}
    assert end["summary"] == SUMMARY


SMALL = [
    *("rounds=1", "method=fedavg", "data.clients=20", "data.image_size=16", "model=cnn"),
    *("model.width=4", "participation.fraction=0.1", "output.report=false"),
    *("output.tensorboard=false", INPROCESS),
]


def test_quiet_prints_the_run_directory_and_json_nothing_but_json(tmp_path: Path) -> None:
    quiet = CliRunner().invoke(app, ["run", "--quiet", *SMALL, f"output.dir={tmp_path / 'a'}"])
    assert quiet.stdout == f"{only_run(tmp_path / 'a')}\n"
    logged = CliRunner().invoke(app, ["run", "--log-json", *SMALL, f"output.dir={tmp_path / 'b'}"])
    events = [json.loads(line)["event"] for line in logged.stdout.splitlines()]
    assert events == ["start", "round", "end"]
