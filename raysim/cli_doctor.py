"""`raysim doctor`: whether runs will work here, and what to do if not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from raysim.exits import guarded
from raysim.run import Overrides, execute, ray_checks, read_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raysim.config import RunConfig
    from raysim.doctor import Finding

# A round of FedFIP with all that it does, small enough for seconds.
_TINY = [
    *("rounds=1", "method=fedfip", "method.warmup_rounds=0", "method.fisher_samples=4"),
    *("data=digits_mini", "data.clients=4", "data.image_size=16", "model=cnn", "model.width=2"),
    *("participation.fraction=0.5", "output.tensorboard=false", "output.report=false"),
]


def doctor(overrides: Overrides = None) -> None:
    """Look at this machine and Ray as a run of these settings would, and run a short test.

    The test takes about 10 seconds on an idle machine.
    """
    raise typer.Exit(guarded(lambda: _doctor(overrides or [])))


def _doctor(words: list[str]) -> None:
    from raysim.doctor import State
    from raysim.errors import ClusterError
    from raysim.progress import plain_console

    config = read_config(words)
    console = plain_console()
    states = []
    for finding in _all(config, words):
        states.append(finding.state)
        console.print(f"{finding.state.value:8} {finding.what}: {finding.found}", soft_wrap=True)
        if finding.remedy:
            console.print(f"{'':8} -> {finding.remedy}", soft_wrap=True)
    problems = states.count(State.BAD)
    if problems:
        raise ClusterError(f"{problems} problem{'s' * (problems > 1)}, see above")
    warnings = states.count(State.DOUBTFUL)
    told = f"runs will work; {warnings} warning{'s' * (warnings > 1)}"
    console.print(told if warnings else "all is well")


def _all(config: RunConfig, words: list[str]) -> Iterator[Finding]:
    from raysim.doctor import machine_checks

    yield from machine_checks(config.output.dir)
    if config.execution.backend == "ray":
        yield from ray_checks(config, lambda: _self_test(words))
    else:
        yield _self_test(words)


def _self_test(words: list[str]) -> Finding:
    """Run one small round as the settings say and in this process: both must give equal bits."""
    import tempfile
    import time

    from raysim.doctor import Finding, State
    from raysim.errors import RunError, UserError
    from raysim.progress import plain_console

    own = [word for word in words if word.startswith("execution.")]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tiny = [*_TINY, f"output.dir={folder}"]
        try:
            here, there = (
                execute(read_config([*tiny, *more]), plain_console(quiet=True)).summary
                for more in (["execution.backend=inprocess"], own)
            )
        except (UserError, RunError) as error:
            return Finding("self-test", str(error), State.BAD, "see the message; it names the step")
    seconds = f"{time.perf_counter() - started:.0f} s"
    if here["weights_sha256"] != there["weights_sha256"]:
        remedy = "hosts differ in CPU or library versions: make them equal, or expect other digits"
        return Finding("self-test", "other bits than in this process", State.DOUBTFUL, remedy)
    return Finding("self-test", f"a round with and without Ray gives equal bits, in {seconds}")
