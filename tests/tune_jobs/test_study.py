"""Studies on a real Ray: what they leave on the cluster and in their folder."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import ray
import typer
from ray import tune
from rich.console import Console
from typer.testing import CliRunner

from raysim.config import RunConfig
from raysim.errors import ClusterError, Interrupted, ResumeError, RunError
from raysim.run import execute
from tests.toy import bits_of, only_run, toy_config
from tune_jobs import search, study, table
from tune_jobs.outcome import Outcome
from tune_jobs.study import Plan, _Stop, conducted, new_study, read_study

ASKED = {"kind": "search"}


def base(folder: Path, **more: Any) -> RunConfig:
    """Return a config whose rounds take a tenth of a second."""
    settings: dict[str, Any] = {
        "rounds": 2,
        "data.clients": 20,
        "participation.fraction": 0.1,
        "evaluation.every": 1,
        "output.dir": str(folder),
        "data.split": {"val": 0.2},
    }
    return toy_config(**settings | more)


def conduct(plan: Plan, folder: Path) -> tuple[Sequence[Outcome], str]:
    """Run a study; returns its outcomes and what was said."""
    said = StringIO()
    console = Console(file=said, width=200)
    with (
        contextlib.redirect_stdout(said),  # a study speaks to the terminal of now
        conducted(plan, folder, console, "tune_jobs.search") as outcomes,
    ):
        pass
    return outcomes, said.getvalue()


def plain(folder: Path, **more: Any) -> tuple[bytes, str]:
    """Return the bits of the same run by itself, in this process."""
    config = base(folder / f"plain-{time.monotonic_ns()}", **more)
    execute(config, Console(quiet=True))
    return bits_of(only_run(config.output.dir))


def leaks() -> list[str]:
    """Return what lives on the cluster after some seconds' grace, and should not."""
    import ray._private.state as state

    for _ in range(300):
        actors = [a["ActorClassName"] for a in state.actors().values() if a["State"] != "DEAD"]
        table = ray.util.placement_group_table().values()
        groups = [group["name"] or "group" for group in table if group["state"] != "REMOVED"]
        free = ray.available_resources().get("CPU", 0)
        busy = [] if free == ray.cluster_resources()["CPU"] else [f"{free} CPU free"]
        left = [*actors, *groups, *busy]
        if not left:
            return []
        time.sleep(0.1)
    return left


@pytest.mark.usefixtures("local_ray")
def test_one_trial_raises_and_the_rest_end(tmp_path: Path) -> None:
    config = base(tmp_path, method={"name": "failing_fedavg", "culprit": -1})
    values = [{"method.culprit": -1, "local.lr": 0.1}, {"local.lr": -1.0}]
    folder = new_study(config, "search", ASKED)
    outcomes, said = conduct(Plan(base=config, values=tune.grid_search(values)), folder)
    assert leaks() == []
    good, bad = outcomes
    assert (good.status, bad.status) == ("done", "failed")
    assert (good.folder / "metrics.parquet").exists()
    failures = json.loads((folder / "failures.json").read_text())
    assert list(failures) == [bad.trial]
    assert failures[bad.trial]["error"].startswith("local.lr: must lie in (0, 10]")
    assert f"{good.trial}  culprit=-1 lr=0.1: done, val AVG" in said
    assert f"{bad.trial}  lr=-1: failed: " in said
    assert "1 of 2 trials failed" in said
    assert str(folder) in said
    assert "╭" not in said  # Tune's own boxes


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_trials_with_hosts_queue_and_a_stopped_one_frees_them(tmp_path: Path) -> None:
    """Three CPUs hold one trial of 1 + 1; the scheduler stops the second at round 1."""
    config = base(tmp_path, execution={"backend": "ray", "hosts": 1})
    folder = new_study(config, "search", ASKED)
    plan = Plan(
        base=config,
        values=tune.grid_search([{"local.lr": lr} for lr in (0.1, 1e-5)]),
        scheduler=tune.schedulers.ASHAScheduler(
            time_attr="round", max_t=2, grace_period=1, reduction_factor=2
        ),
    )
    outcomes, said = conduct(plan, folder)
    assert leaks() == []
    assert [outcome.status for outcome in outcomes] == ["done", "stopped"]
    assert "1 at once, a host each" in said
    # Where it ran changes no bit.
    assert bits_of(outcomes[0].folder) == plain(tmp_path, **{"local.lr": 0.1})


@pytest.mark.usefixtures("local_ray")
def test_a_trial_that_never_fits_is_refused_at_once_and_leaves_no_folder(tmp_path: Path) -> None:
    config = base(tmp_path, execution={"backend": "ray", "hosts": 9})
    folder = new_study(config, "search", ASKED)
    plan = Plan(base=config, values=tune.grid_search([{"local.lr": 0.1}]))
    with pytest.raises(ClusterError, match="10 CPU in all; the cluster has 3 CPU"):
        conduct(plan, folder)
    assert not folder.exists()


def outcome(status: Any, error: str = "") -> Outcome:
    return Outcome(trial=status, values={"a": 1}, status=status, folder=Path("x"), error=error)


def test_a_study_of_failures_only_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [outcome("failed", "no room\nat all")]
    monkeypatch.setattr(study, "_run", lambda plan, folder, console, whole: (0, found))
    with pytest.raises(RunError, match=r"every trial failed: see .*failures\.json"):
        conduct(Plan(base=base(tmp_path), values={}), tmp_path)
    assert json.loads((tmp_path / "failures.json").read_text())["failed"]["error"] == (
        "no room\nat all"
    )


def test_a_stopped_study_is_concluded_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [outcome("done"), outcome("unfinished")]
    monkeypatch.setattr(study, "_run", lambda plan, folder, console, whole: (signal.SIGTERM, found))
    (tmp_path / "failures.json").write_text("of before")
    said, seen = StringIO(), []
    folder = tmp_path
    with (
        pytest.raises(Interrupted) as stopped,
        conducted(
            Plan(base=base(tmp_path), values={}),
            folder,
            Console(file=said, width=200),
            "tune_jobs.table",
        ) as outcomes,
    ):
        seen += outcomes
    assert seen == found
    assert stopped.value.signum == signal.SIGTERM
    assert f"python -m tune_jobs.table --resume {folder}" in said.getvalue()
    assert "stopped after 1 trial; go on" in said.getvalue()
    assert not (tmp_path / "failures.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_stopped_study_goes_on(tmp_path: Path) -> None:
    more = {"rounds": 12, "participation.fraction": 0.5}
    config = base(tmp_path, **more)
    folder = new_study(config, "search", ASKED)
    rates = (0.1, 0.05)
    plan = Plan(base=config, values=tune.grid_search([{"local.lr": lr} for lr in rates]))
    runs = folder / "runs"

    def interrupt() -> None:
        while not list(runs.glob("*/checkpoints/round_*")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted):
        conduct(plan, folder)
    assert leaks() == []
    outcomes, _ = conduct(plan, folder)
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    assert len(list(runs.iterdir())) == 2
    for lr, outcome in zip(rates, outcomes, strict=True):
        assert bits_of(outcome.folder) == plain(tmp_path, **more, **{"local.lr": lr})


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_tunes_and_the_second_ends_all(signum: int) -> None:
    told, before = [], signal.getsignal(signum)
    stop = _Stop()
    with stop.listening():
        signal.signal(signal.SIGUSR1, lambda *_: told.append("save"))
        signal.raise_signal(signum)
        assert (stop.signum, told) == (signum, ["save"])
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signum) == before


def test_a_signal_before_tune_listens_ends_the_study() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(Interrupted) as stopped, _Stop().listening():
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGUSR1) == before


def test_what_is_asked_for_can_be_read_again(tmp_path: Path) -> None:
    folder = new_study(base(tmp_path), "search", ASKED | {"samples": 3})
    assert read_study(folder, "search") == {"kind": "search", "samples": 3}
    with pytest.raises(ResumeError, match="not a table"):
        read_study(folder, "table")
    with pytest.raises(ResumeError, match=r"no study\.yaml"):
        read_study(tmp_path, "search")


def test_a_damaged_study_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    for module, kind in ((search, "search"), (table, "table")):
        folder = new_study(base(tmp_path), kind, {"kind": kind})
        app = typer.Typer()
        app.command()(getattr(module, kind))
        done = CliRunner().invoke(app, ["--resume", str(folder)])
        assert done.exit_code == 2, done.output
        assert f"{folder}: config: must be given" in done.stderr


def test_two_studies_never_share_a_folder(tmp_path: Path) -> None:
    folders = {new_study(base(tmp_path), "search", ASKED) for _ in range(3)}
    assert len(folders) == 3
