"""Preparing again, after interruptions, and at the same time as others."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raysim.data.images import resize
from raysim.data.listing import Listing, Record
from raysim.data.prepared import read_manifest, verify
from raysim.errors import DataError, RunError
from tests.data.preparing import hostile
from tests.data.preparing.hostile import encoded, picture
from tests.data.preparing.toy import (
    SIZE,
    Halt,
    Noise,
    contents,
    domain_file,
    first_call,
    go,
    image_files,
    names,
    opened,
    rows,
    shrunk,
    slow_rows,
    stop_after,
    stored,
)

ROOT = Path(__file__).parents[3]


# ---- once is enough -------------------------------------------------------------------------


def edit(manifest: Path, **changes: object) -> None:
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))


def refuse(done: int, total: int) -> None:
    raise AssertionError("decoded again")


def test_a_second_call_does_nothing(tmp_path: Path) -> None:
    listing = Listing({"one": image_files(tmp_path / "raw", 3)})
    first = go(listing, tmp_path / "out")
    before = contents(tmp_path / "out")
    assert go(listing, tmp_path / "out", progress=refuse) == first
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    "change",
    [
        lambda raw, out: os.utime(raw / "1.png", (1, 1)),
        lambda raw, out: (raw / "1.png").write_bytes(encoded(picture(77))),
        lambda raw, out: domain_file(out, "one").unlink(),
        lambda raw, out: domain_file(out, "one").write_bytes(b"short"),
        lambda raw, out: (out / "manifest.json").unlink(),
        lambda raw, out: edit(out / "manifest.json", format=2),
        lambda raw, out: edit(out / "manifest.json", classes=["b", "a"]),
    ],
    ids=["touched", "changed", "lost", "damaged", "no manifest", "other version", "edited"],
)
def test_changes_are_noticed(tmp_path: Path, change: Callable[[Path, Path], object]) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    listing = Listing({"one": image_files(raw, 3)})
    go(listing, out)
    change(raw, out)
    manifest = go(listing, out)
    verify(str(out))
    pixels = stored(out, manifest, "one").pixels
    np.testing.assert_array_equal(
        pixels[1],
        resize(np.asarray(Image.open(raw / "1.png")).transpose(2, 0, 1), SIZE),
    )


def test_another_request_replaces_the_former_result(tmp_path: Path) -> None:
    hostile.write(tmp_path, {"mine.arrow": b"not a result", "notes.txt": b"mine"})
    go(Listing({"one": rows([1]), "two": rows([2])}), tmp_path)
    go(Listing({"two": rows([2]), "three": rows([3])}), tmp_path, size=4)
    assert names(tmp_path) == [
        "manifest.json",
        "mine.arrow",
        "notes.txt",
        "report.json",
        "three.arrow",
        "two.arrow",
    ]
    verify(str(tmp_path))


def test_a_file_that_was_opened_never_shows_the_pixels_of_a_later_result(tmp_path: Path) -> None:
    file = opened(tmp_path, go(Listing({"one": rows([1, 2])}), tmp_path), "one")
    pixels = np.empty((1, 3, SIZE, SIZE), np.uint8)
    file.read_pixels(np.array([1]), pixels)
    np.testing.assert_array_equal(pixels[0], shrunk(2))
    assert file.labels.tolist() == [0, 1]
    go(Listing({"one": rows([3, 4])}), tmp_path, policy={"gray": "skip"})
    with pytest.raises(DataError, match=r"\.arrow: cannot be read .* prepared anew meanwhile"):
        file.read_pixels(np.array([1]), pixels)


def test_a_former_manifest_cannot_have_other_files_removed(tmp_path: Path) -> None:
    (tmp_path / "precious.arrow").write_bytes(b"mine")
    out = tmp_path / "out"
    go(Listing({"one": rows([1])}), out)
    text = (out / "manifest.json").read_text()
    file = domain_file(out, "one").name
    (out / "manifest.json").write_text(text.replace(file, "../precious.arrow"))
    go(Listing({"two": rows([1])}), out)
    assert (tmp_path / "precious.arrow").read_bytes() == b"mine"


# ---- interruptions --------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupted_call_is_taken_up(tmp_path: Path, processes: int) -> None:
    listing = Listing({"one": rows(range(12)), "two": rows(range(20, 26))})
    go(listing, tmp_path / "whole")
    with pytest.raises(Halt):
        go(listing, tmp_path / "out", progress=stop_after(8), processes=processes, chunk_records=4)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert first_call(listing, tmp_path / "out", chunk_records=4) >= 8
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"", lambda data: None])
def test_damaged_chunks_are_decoded_again(
    tmp_path: Path, damage: Callable[[bytes], bytes | None]
) -> None:
    listing, out = Listing({"one": rows(range(12))}), tmp_path / "out"
    go(listing, tmp_path / "whole")
    with pytest.raises(Halt):
        go(listing, out, progress=stop_after(12), chunk_records=4)
    first, second, _ = sorted((out / ".partial").glob("chunk-*.arrow"))
    left = damage(second.read_bytes())
    if left is None:  # another chunk's content under its name
        second.write_bytes(first.read_bytes())
    else:
        second.write_bytes(left)
    assert first_call(listing, out, chunk_records=4) == 8
    assert contents(out) == contents(tmp_path / "whole")


def test_chunks_of_another_request_are_thrown_away(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Halt):
        go(Listing({"one": rows(range(12))}), out, progress=stop_after(8), chunk_records=4)
    assert first_call(Listing({"one": rows(range(11))}), out, chunk_records=4) == 0
    assert names(out) == ["manifest.json", "one.arrow", "report.json"]


def test_chunks_of_another_length_are_not_mistaken(tmp_path: Path) -> None:
    listing, out = Listing({"one": rows(range(12))}), tmp_path / "out"
    go(listing, tmp_path / "whole")
    with pytest.raises(Halt):
        go(listing, out, progress=stop_after(8), chunk_records=4)
    assert first_call(listing, out, chunk_records=3) == 0
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("blocked", ["two", "manifest"])
def test_a_result_that_is_put_in_part_leaves_the_former_one_and_is_made_good(
    tmp_path: Path, blocked: str
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    former = Listing({"one": rows([40]), "old": rows([41])})
    listing = Listing({"one": rows([1]), "two": rows([2])})
    go(listing, whole)
    manifest = go(former, out)
    if blocked == "manifest":  # a folder cannot be replaced by a file
        saved = (out / "manifest.json").rename(tmp_path / "saved")
        (out / "manifest.json").mkdir()
    else:
        obstacle = out / domain_file(whole, "two").name
        obstacle.mkdir()
    with pytest.raises(DataError, match="cannot be written: Is a directory"):
        go(listing, out)
    assert (out / domain_file(whole, "one").name).is_file()
    if blocked == "manifest":
        (out / "manifest.json").rmdir()
        saved.rename(out / "manifest.json")
    else:
        obstacle.rmdir()
    assert read_manifest(str(out)) == manifest
    verify(str(out))
    go(listing, out)
    assert contents(out) == contents(whole)


def test_what_is_left_beside_a_result_is_cleared_away(tmp_path: Path) -> None:
    """A process that is killed right after the manifest is written leaves its staging folder."""
    listing = Listing({"one": rows(range(3))})
    manifest = go(listing, tmp_path)
    hostile.write(tmp_path / ".partial", {"chunk-000-00000000-4.arrow": b"x", "lock": b"1"})
    assert go(listing, tmp_path) == manifest
    assert names(tmp_path) == ["manifest.json", "one.arrow", "report.json"]


SCRIPT = """
import sys
from tests.data.preparing.toy import Listing, go, slow_rows
if __name__ == "__main__":
    listing = Listing({"one": slow_rows(0.2)})  # a signal comes in time on a busy machine, too
    go(listing, sys.argv[1], processes=int(sys.argv[2]), chunk_records=4)
"""


def start(tmp_path: Path, out: Path, processes: int) -> subprocess.Popen[bytes]:
    """Start a slow preparation in a process group of its own, and wait for its first chunks."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(out), str(processes)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    until = time.monotonic() + 180
    while len(list(out.glob(".partial/chunk-*.arrow"))) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    return process


def group_is_gone(group: int) -> bool:
    """Wait until no process of a group is left but zombies."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        stats = (path / "stat" for path in Path("/proc").iterdir() if path.name.isdigit())
        alive = []
        for stat in stats:
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            alive += [stat] if int(fields[2]) == group and fields[0] != "Z" else []
        if not alive:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_killed_in_mid_course_it_is_taken_up_with_the_same_bits(
    tmp_path: Path, processes: int
) -> None:
    listing = Listing({"one": slow_rows()})
    process = start(tmp_path, tmp_path / "out", processes)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert first_call(listing, tmp_path / "out", chunk_records=4) >= 8
    go(listing, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    process = start(tmp_path, tmp_path / "out", 2)
    process.kill()
    process.wait()
    assert group_is_gone(process.pid)


@pytest.mark.slow
def test_interrupted_by_ctrl_c_the_workers_end_in_silence(tmp_path: Path) -> None:
    process = start(tmp_path, tmp_path / "out", 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, text = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert text.count(b"Traceback") == 1, text.decode()
    assert group_is_gone(process.pid)
    assert len(list((tmp_path / "out" / ".partial").glob("chunk-*.arrow"))) >= 2


def test_a_killed_worker_is_told_and_its_work_is_not_lost(tmp_path: Path) -> None:
    deadly = Record("x.png", "a", "", Noise(99, 1.0, killer=True))
    listing = Listing({"one": [*rows(range(12)), deadly]})
    with pytest.raises(RunError, match="was killed, perhaps for want of memory: run the same"):
        go(listing, tmp_path / "out", processes=2, chunk_records=4)
    assert not (tmp_path / "out" / "manifest.json").exists()
    whole = Listing({"one": [*rows(range(12)), Record("x.png", "a", "", Noise(99))]})
    assert first_call(whole, tmp_path / "out", chunk_records=4) == 12


# ---- others, and full disks -----------------------------------------------------------------


def test_a_second_process_may_wait_for_the_result(tmp_path: Path) -> None:
    listing = Listing({"one": rows(range(3))})
    begun, waits = threading.Event(), threading.Event()
    said: list[str] = []

    def hold_on(done: int, total: int) -> None:
        begun.set()
        assert waits.wait(20)

    def on_wait(text: str) -> None:
        said.append(text)
        waits.set()

    with ThreadPoolExecutor(1) as other:
        first = other.submit(go, listing, tmp_path, progress=hold_on)
        assert begun.wait(20)
        second = go(listing, tmp_path, progress=refuse, on_wait=on_wait)
        assert first.result() == second
    me = os.getpid()
    assert said == [f"{tmp_path}: waiting for another prepare (process {me}) that is writing there"]
    assert names(tmp_path) == ["manifest.json", "one.arrow", "report.json"]


def test_who_waits_for_one_that_fails_does_the_work(tmp_path: Path) -> None:
    hostile.write(tmp_path / ".partial", {})
    with (tmp_path / ".partial" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifest = go(Listing({"one": rows(range(3))}), tmp_path, on_wait=lambda _: lock.close())
    assert read_manifest(str(tmp_path)) == manifest
    verify(str(tmp_path))


def test_two_at_once_do_each_other_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / ".partial"
    folder.mkdir()
    listing = Listing({"one": rows(range(3))})
    with (folder / "lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "chunk-000000.arrow").write_bytes(b"someone's work")
        with pytest.raises(DataError, match=r"another prepare \(process 4711\) is writing there"):
            go(listing, tmp_path)
        assert sorted(contents(tmp_path)) == [".partial/chunk-000000.arrow", ".partial/lock"]
        assert (folder / "chunk-000000.arrow").read_bytes() == b"someone's work"
    go(listing, tmp_path)
    assert not folder.exists()


def test_a_full_disk_is_told_and_what_is_done_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing, out = Listing({"one": rows(range(12))}), tmp_path / "out"
    synced = os.fsync
    room = iter(range(3))  # the fingerprint and two chunks

    def fsync(file: int) -> None:
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        synced(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(DataError, match=r"No space left on device.* is kept in .*\.partial"):
            go(listing, out, chunk_records=4)
    assert not list(out.rglob("*.tmp"))
    assert first_call(listing, out, chunk_records=4) == 8
