"""Processes are killed, hang or fail on purpose; what comes out are the bits of a quiet run."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raysim.checkpoint import latest_checkpoint
from raysim.errors import RunError
from raysim.tensors import digest
from tests.killing import (
    FAULTY,
    before,
    eventually,
    fault,
    faulty_config,
    host_pid,
    is_running,
    kill,
    leftovers,
    on_ray,
    run_on_ray,
    server_pid,
)
from tests.toy import (
    CLI,
    INPROCESS,
    ROOT,
    ToyRun,
    bits_of,
    command,
    environment,
    only_run,
    run_command,
    run_toy,
)

slow = pytest.mark.slow

Run = tuple[ToyRun, list[str]]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ToyRun]:
    """Return the undisturbed run of a method in this process."""
    known: dict[str, ToyRun] = {}

    def run(method: str) -> ToyRun:
        if method not in known:
            folder = tmp_path_factory.mktemp(f"quiet-{method}")
            known[method] = run_toy(faulty_config(method), folder)
        return known[method]

    return run


def same_bits(found: ToyRun, wanted: ToyRun) -> bool:
    """Tell whether metrics, weights, server memory and all clients' states are the same."""
    a, b = found.snapshot, wanted.snapshot
    return (
        found.bits == wanted.bits
        and digest(a.memory) == digest(b.memory)
        and a.clients.keys() == b.clients.keys()
        and all(digest(a.clients[c]) == digest(b.clients[c]) for c in b.clients)
    )


def struck(method: str, folder: Path, *faults: str, **settings: Any) -> Run:
    """Run a method on two hosts with faults."""
    config = faulty_config(method, faults, folder / "flags", **on_ray(**settings))
    found = run_on_ray(config, folder)
    once = [f for f in faults if f.endswith("once")]
    assert len(list((folder / "flags").iterdir())) == len(once), "not every fault has struck"
    return found


def test_the_quiet_runs_have_something_to_lose(quiet: Callable[..., ToyRun]) -> None:
    for method in FAULTY:
        assert len(quiet(method).snapshot.clients) == 10
        assert quiet(method).summary["recoveries"] == 0
    assert quiet("fedfip").snapshot.memory.keys() >= {"mask", "prototypes"}


def test_host_and_server_killed_at_work(
    local_ray: str, quiet: Callable[..., ToyRun], tmp_path: Path
) -> None:
    faults = [fault("kill", "fit", 1, 3), fault("kill", "aggregate-fit", 2)]
    found, told = struck("fedfip", tmp_path, *faults, state_memory_mb=0)
    assert same_bits(found, quiet("fedfip"))
    assert not (tmp_path / "states").exists()
    assert found.summary["recoveries"] == 2
    assert "; round 2 is run again" in told[0]
    assert "host " in told[0]
    assert told[1].startswith("started anew: host ")
    assert "round 3" in told[2]
    assert told[3] == "started anew: the server"
    assert not leftovers()


HOST_FAULTS = {
    "first phase": ("fedfip", [fault("kill", "importance", 2, 7)]),
    "second phase": ("fedfip", [fault("kill", "fit", 0, 9)]),
    "evaluation": ("ditto", [fault("kill", "evaluate", 1, 4)]),
    "every round": ("ditto", [fault("kill", "fit", r, 3 * r) for r in range(3)]),
    "two in one round": ("private_head", [fault("kill", "fit", 1, c) for c in (0, 1)]),
    "the same client again": ("private_head", [fault("kill", "fit", 1, 5)] * 3),
    "training and evaluation": (
        "ditto",
        [fault("kill", "fit", 1, 2), fault("kill", "evaluate", 1, 2), fault("kill", "fit", 2, 2)],
    ),
}


@slow
@pytest.mark.parametrize("case", HOST_FAULTS)
def test_a_host_killed(
    local_ray: str, quiet: Callable[..., ToyRun], case: str, tmp_path: Path
) -> None:
    method, faults = HOST_FAULTS[case]
    found, told = struck(method, tmp_path, *faults)
    assert same_bits(found, quiet(method))
    # Two that die in one round may be noticed at once.
    assert 1 <= found.summary["recoveries"] <= len(faults)
    if case != "two in one round":
        assert found.summary["recoveries"] == len(faults)
    assert any("started anew: host" in line for line in told)


@slow
@pytest.mark.parametrize("hook", ["aggregate-importance", "broadcast-fit", "broadcast-evaluate"])
def test_the_server_killed(
    local_ray: str, quiet: Callable[..., ToyRun], hook: str, tmp_path: Path
) -> None:
    found, told = struck("fedfip", tmp_path, fault("kill", hook, 2))
    assert same_bits(found, quiet("fedfip"))
    assert found.summary["recoveries"] == 1
    assert told[1] == "started anew: the server"


MOMENTS: dict[str, tuple[str, int]] = {
    "before what it staged is fetched": ("commit", 2),
    "after that, before it commits": ("_states.absorb", 2),
    "before the evaluation": ("evaluate", 2),
    "between two phases": ("run_phase", 2),
    "at the very end": ("costs", 1),
}


@slow
@pytest.mark.parametrize("victim", [host_pid, server_pid], ids=["host", "server"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_between_steps(
    local_ray: str, quiet: Callable[..., ToyRun], victim: Any, moment: str, tmp_path: Path
) -> None:
    call, nth = MOMENTS[moment]
    method = "fedfip" if moment == "between two phases" else "ditto"

    def prepare(executor: Any) -> None:
        pid = victim(executor)
        *path, name = call.split(".")
        before(getattr(executor, path[0]) if path else executor, name, nth, lambda: kill(pid))

    found, _ = run_on_ray(faulty_config(method, **on_ray()), tmp_path, prepare)
    assert same_bits(found, quiet(method))
    # At the end a dead host is no longer missed.
    wanted = 0 if moment == "at the very end" and victim is host_pid else 1
    assert found.summary["recoveries"] == wanted


@slow
def test_a_host_that_hangs_is_killed_and_named(
    local_ray: str, quiet: Callable[..., ToyRun], tmp_path: Path
) -> None:
    found, told = struck("private_head", tmp_path, fault("sleep", "fit", 1, 4), hang_s=5, retries=9)
    assert same_bits(found, quiet("private_head"))
    assert found.summary["recoveries"] >= 1, "a busy machine may make more of it"
    assert told[0].startswith("round 2, phase 'fit': host 0 (pid ")
    assert "has not ended a step for 5 s (execution.hang_s) and was killed" in told[0]


@slow
@pytest.mark.parametrize("hook", ["aggregate-fit", "broadcast-evaluate"])
def test_a_server_that_hangs_is_killed_and_named(
    local_ray: str, quiet: Callable[..., ToyRun], hook: str, tmp_path: Path
) -> None:
    found, told = struck("fedfip", tmp_path, fault("sleep", hook, 1), hang_s=5, retries=9)
    assert same_bits(found, quiet("fedfip"))
    assert found.summary["recoveries"] >= 1, "a busy machine may make more of it"
    assert ": the server has not ended a step for 5 s (execution.hang_s) and was killed" in told[0]


@slow
def test_all_hosts_hang_at_once(
    local_ray: str, quiet: Callable[..., ToyRun], tmp_path: Path
) -> None:
    faults = [fault("sleep", "fit", 1, c) for c in (4, 5)]
    found, _ = struck("private_head", tmp_path, *faults, hang_s=5, retries=9)
    assert same_bits(found, quiet("private_head"))


@slow
@pytest.mark.parametrize("hook", ["fit", "evaluate"])
def test_a_stopped_process_hangs_too(
    local_ray: str, quiet: Callable[..., ToyRun], hook: str, tmp_path: Path
) -> None:
    pids: list[int] = []
    config = faulty_config(
        "ditto", [fault("stop", hook, 1, 4)], tmp_path / "flags", **on_ray(hang_s=5, retries=9)
    )
    found, told = run_on_ray(config, tmp_path, lambda e: pids.append(host_pid(e)))
    assert same_bits(found, quiet("ditto"))
    assert f"host 0 (pid {pids[0]}" in told[0]
    assert eventually(lambda: not is_running(pids[0])), "the stopped process is still there"


@slow
def test_a_host_stopped_at_the_end_of_the_round_hangs_too(
    local_ray: str, quiet: Callable[..., ToyRun], tmp_path: Path
) -> None:
    def prepare(executor: Any) -> None:
        pid = host_pid(executor)
        before(executor._states, "absorb", 2, lambda: os.kill(pid, signal.SIGSTOP))

    found, _ = run_on_ray(faulty_config("ditto", **on_ray(hang_s=5, retries=9)), tmp_path, prepare)
    assert same_bits(found, quiet("ditto"))
    assert found.summary["recoveries"] >= 1, "a busy machine may make more of it"


def test_a_client_that_raises_is_named_and_not_tried_again(local_ray: str, tmp_path: Path) -> None:
    bad = fault("raise", "fit", 1, 3)
    with pytest.raises(RunError) as caught:
        struck("fedfip", tmp_path, bad)
    text = str(caught.value)
    assert text.startswith("client 3 (domains: ")
    assert "failed in round 2, phase 'fit': ValueError: a cable was pulled" in text
    assert "in client_step\n" in text, "the client's own traceback"
    assert "in _strike\n" in text
    assert latest_checkpoint(tmp_path / "checkpoints").round == 1
    assert (tmp_path / "flags" / "0").exists()
    assert not leftovers()


@slow
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_nan_in_an_update(local_ray: str, policy: str, tmp_path: Path) -> None:
    config = faulty_config(
        "private_head",
        [fault("nan", "fit", 1, 3)],
        tmp_path / "flags",
        **on_ray(),
        **{"participation.nonfinite": policy},
    )
    if policy == "skip":
        run, _ = run_on_ray(config, tmp_path)
        assert run.summary["skipped_updates"] == 1
        return
    with pytest.raises(RunError, match=r"client 3 \(domains: .*round 2, phase 'fit': NonFinite"):
        run_on_ray(config, tmp_path)
    assert latest_checkpoint(tmp_path / "checkpoints").round == 1


@slow
def test_losses_in_a_row_are_bounded(local_ray: str, tmp_path: Path) -> None:
    bad = fault("kill", "fit", 1, 3, every=True)
    with pytest.raises(RunError) as caught:
        struck("private_head", tmp_path, bad, retries=1)
    text = str(caught.value)
    assert text.startswith("round 2, phase 'fit': host ")
    assert text.endswith("; round 2 is given up after 2 losses in a row (execution.retries)")
    assert latest_checkpoint(tmp_path / "checkpoints").round == 1


@slow
def test_without_retries_the_first_loss_ends_the_run(local_ray: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="given up after 1 losses in a row"):
        struck("private_head", tmp_path, fault("kill", "fit", 1, 3), retries=0)


@slow
@pytest.mark.parametrize("method", ["ditto", "fedfip"])
def test_spilled_states_have_the_same_bits_also_after_a_loss(
    local_ray: str, quiet: Callable[..., ToyRun], method: str, tmp_path: Path
) -> None:
    seen: list[int] = []

    def prepare(executor: Any) -> None:
        look = lambda: seen.append(len(list((tmp_path / "states").rglob("*.safetensors"))))  # noqa: E731
        before(executor, "evaluate", 1, look)

    faults = [fault("kill", "fit", 1, 3)]
    config = faulty_config(method, faults, tmp_path / "flags", **on_ray(state_memory_mb=0))
    found, _ = run_on_ray(config, tmp_path, prepare)
    assert same_bits(found, quiet(method))
    assert seen[0] >= 20, "driver and hosts have a file for each of the ten clients"
    assert not leftovers()
    assert not (tmp_path / "states").exists()


@slow
def test_hosts_of_a_node_without_the_run_directory_clear_up(
    local_ray: str, quiet: Callable[..., ToyRun], tmp_path: Path
) -> None:
    homes: list[Path] = []

    def prepare(executor: Any) -> None:
        temporary = Path(tempfile.gettempdir()) / f"raysim-states-{os.getuid()}"
        found = [temporary / str(host_pid(executor, index)) for index in range(2)]
        before(executor, "evaluate", 1, lambda: homes.extend(p for p in found if p.is_dir()))

    config = faulty_config("ditto", **on_ray(state_memory_mb=0))
    # Its parent is not there when the hosts start.
    found, _ = run_on_ray(config, tmp_path, prepare, spill=tmp_path / "elsewhere" / "states")
    assert same_bits(found, quiet("ditto"))
    assert len(homes) == 2
    assert not [home for home in homes if home.exists()]


@slow
def test_clients_that_move_keep_their_bits(local_ray: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"participation.fraction": 0.3, "rounds": 6}
    quiet = run_toy(faulty_config("ditto", **settings), tmp_path / "quiet")
    moves: list[Any] = []

    def prepare(executor: Any) -> None:
        crew = executor._crew
        original = crew.move
        crew.move = lambda moved: (moves.append(dict(moved)), original(moved))

    config = faulty_config("ditto", **settings, **on_ray(3))
    found, told = run_on_ray(config, tmp_path / "moving", prepare)
    assert same_bits(found, quiet)
    assert moves, "no cohort was lopsided enough"
    assert not told


@slow
def test_as_many_hosts_start_anew_as_there_is_room_for(
    local_ray: str,
    quiet: Callable[..., ToyRun],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cluster.crew.hosts_that_fit", lambda *_: 2)

    def prepare(executor: Any) -> None:
        pids = [host_pid(executor, index) for index in (0, 2)]
        before(executor, "run_phase", 2, lambda: [kill(pid) for pid in pids])

    found, told = run_on_ray(faulty_config("ditto", **on_ray(3)), tmp_path, prepare)
    assert same_bits(found, quiet("ditto"))
    assert found.summary["recoveries"] == 1
    assert re.fullmatch(
        r"started anew: host 0; \d clients of host 2 live elsewhere now", told[1]
    ), told


@slow
def test_a_loss_while_another_is_made_good(
    local_ray: str,
    quiet: Callable[..., ToyRun],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cluster.crew.hosts_that_fit", lambda *_: 1)

    def prepare(executor: Any) -> None:
        first, second = host_pid(executor, 0), host_pid(executor, 1)
        before(executor, "run_phase", 2, lambda: kill(first))
        before(executor._crew, "move", 1, lambda: kill(second))

    found, told = run_on_ray(faulty_config("ditto", **on_ray(2)), tmp_path, prepare)
    assert same_bits(found, quiet("ditto"))
    assert found.summary["recoveries"] == 2
    assert told[1].startswith("making good what was lost: host 1 (pid ")
    assert told[-1] == "started anew: host 1"


# Whole runs of the command line, beside a session that the test holds ---------------------------


@contextmanager
def running(local_ray: str, folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a run that joins the tests' Ray and give it when its third round is done."""
    token = {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH")}
    with subprocess.Popen(
        command(*CLI, "execution.hosts=2", *words, f"output.dir={folder}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(RAY_ADDRESS=local_ray, **token),
        cwd=ROOT,
    ) as process:
        try:
            for line in process.stdout or []:
                if line.startswith("round 3/6"):
                    break
            yield process
        finally:
            process.kill()


@slow
@pytest.mark.parametrize(
    ("signum", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_driver_that_ends_leaves_no_actor(
    local_ray: str,
    finished: tuple[Path, subprocess.CompletedProcess[str]],
    signum: int,
    status: int,
    tmp_path: Path,
) -> None:
    with running(local_ray, tmp_path, "execution.state_memory_mb=0") as process:
        assert sorted(leftovers(wait_s=0)) == ["ClientHost", "ClientHost", "ServerActor"]
        process.send_signal(signum)
        _, errors = process.communicate(timeout=180)
    assert process.returncode == status
    assert not leftovers(wait_s=60)
    assert ray_is_free()
    folder = only_run(tmp_path)
    if signum != signal.SIGKILL:
        assert not (folder / "states").exists()
        assert f"--resume {folder}" in errors
    token = {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH")}
    words = ["--resume", str(folder), "execution.hosts=1"]
    done = run_command(*words, RAY_ADDRESS=local_ray, **token)
    assert done.returncode == 0, done.stderr
    assert bits_of(folder) == bits_of(finished[0])
    assert not (folder / "states").exists(), "what the killed run left is cleared up, too"
    assert not leftovers()


def ray_is_free() -> bool:
    """Tell whether all CPUs of the tests' Ray can be had, after a while."""
    import ray

    total = ray.cluster_resources()["CPU"]
    return eventually(lambda: ray.available_resources().get("CPU") == total)


@slow
def test_a_failed_client_ends_the_command_with_its_words(local_ray: str, tmp_path: Path) -> None:
    token = {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH")}
    flags = tmp_path / "flags"
    flags.mkdir()
    done = run_command(
        *("method.name=tests/killing.py:FaultyDitto", "rounds=3", "data.clients=10"),
        *("data.image_size=16", "model.name=cnn", "model.width=4", "data.partition.alpha=100"),
        f"method.faults={[fault('raise', 'fit', 1, 3)]}",
        *(f"method.flags={flags}", "execution.hosts=2", f"output.dir={tmp_path / 'runs'}"),
        RAY_ADDRESS=local_ray,
        **token,
    )
    assert done.returncode == 1
    assert "raysim: the run failed: client 3 (domains: " in done.stderr
    assert "failed in round 2, phase 'fit': ValueError: a cable was pulled" in done.stderr
    assert done.stderr.count("in _strike") == 1, "its own traceback, once"
    assert "1 of 3 rounds are saved; go on with" in done.stderr
    assert not leftovers()


def test_a_damaged_checkpoint_is_said_on_resume(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    file = folder / "checkpoints" / "round_00006" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    done = run_command("--resume", str(folder), "execution.backend=inprocess")
    assert done.returncode == 0, done.stderr
    assert "round_00006 is damaged; going on from round_00004\n" in done.stdout
    assert bits_of(folder) == bits_of(finished[0])


@slow
@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("mount") is None, reason="needs mount")
def test_a_read_only_output_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    if os.geteuid() == 0:  # root writes through permissions
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("needs the right to mount a tmpfs")
    else:
        folder.chmod(0o500)
    try:
        done = run_command(*CLI, INPROCESS, f"output.dir={folder}")
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(folder)], check=True)
    assert done.returncode == 2
    assert f"output.dir={folder}: " in done.stderr
    assert "Traceback" not in done.stderr


@slow
def test_a_disk_that_fills_up_ends_the_run_with_the_last_round_saved(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    words = ["output.checkpoint_every=1", f"output.dir={folder}"]
    try:
        done = run_command(*CLI, INPROCESS, *words)
        run = only_run(folder)
        saved = latest_checkpoint(run / "checkpoints").round
        litter = [p.name for p in (run / "checkpoints").iterdir() if "writing" in p.name]
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert done.returncode == 1
    assert "raysim: the run failed: " in done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert f"{saved} of 6 rounds are saved; go on with" in done.stderr
    assert 1 <= saved < 6
    assert litter == []
