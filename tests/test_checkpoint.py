import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.checkpoint import discard_after, latest_checkpoint, save_checkpoint
from raysim.errors import ResumeError
from raysim.messages import Snapshot
from raysim.tensors import digest

EXPERIMENT = {"seed": 0, "method": {"name": "fedavg"}}


def snapshot(value: float = 1.0) -> Snapshot:
    return Snapshot(
        model={"w": np.full((2, 3), value, np.float32), "empty": np.zeros((0, 4), np.float32)},
        memory={"mask": np.array([True, False]), "p": np.full(3, value)},
        clients={
            0: {"units": np.arange(3), "x": np.full(2, value, np.float32)},
            11: {"one": np.float64(value).reshape(())},
        },
    )


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.parquet"
    path.write_bytes(b"rows")
    return path


def save(tmp_path: Path, metrics: Path, round_: int, keep: int = 9, value: float = 1.0) -> Path:
    return save_checkpoint(
        tmp_path / "checkpoints", round_, snapshot(value), EXPERIMENT, metrics, keep
    )


def same(a: Snapshot, b: Snapshot) -> bool:
    return (
        digest(a.model) == digest(b.model)
        and digest(a.memory) == digest(b.memory)
        and a.clients.keys() == b.clients.keys()
        and all(digest(a.clients[c]) == digest(b.clients[c]) for c in a.clients)
    )


def test_what_was_saved_is_read_back_to_the_bit(tmp_path: Path, metrics: Path) -> None:
    path = save(tmp_path, metrics, 5)
    assert path.name == "round_00005"
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert (found.round, found.experiment, found.path) == (5, EXPERIMENT, path)
    assert same(found.load(), snapshot())
    assert found.metrics.read_bytes() == b"rows"


def test_nothing_in_it_can_run_code(tmp_path: Path, metrics: Path) -> None:
    files = [p for p in save(tmp_path, metrics, 1).rglob("*") if p.is_file()]
    assert {p.suffix for p in files} == {".safetensors", ".json", ".parquet"}


def test_only_the_newest_are_kept(tmp_path: Path, metrics: Path) -> None:
    for round_ in range(1, 6):
        save(tmp_path, metrics, round_, keep=2)
    folder = tmp_path / "checkpoints"
    assert sorted(p.name for p in folder.iterdir()) == ["round_00004", "round_00005"]


def test_many_rounds_sort_by_number(tmp_path: Path, metrics: Path) -> None:
    for round_ in (99_999, 100_000):
        save(tmp_path, metrics, round_, keep=1)
    assert latest_checkpoint(tmp_path / "checkpoints").round == 100_000


def test_the_same_round_is_replaced(tmp_path: Path, metrics: Path) -> None:
    save(tmp_path, metrics, 3)
    save(tmp_path, metrics, 3, value=2.0)
    assert same(latest_checkpoint(tmp_path / "checkpoints").load(), snapshot(2.0))


@pytest.mark.parametrize("name", ["model.safetensors", "memory.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "flipped"])
def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, metrics: Path, name: str, damage: str
) -> None:
    save(tmp_path, metrics, 4)
    file = save(tmp_path, metrics, 5, value=2.0) / name
    spoil(file, damage)
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found.round == 4
    assert found.passed_over == ("round_00005",)
    assert same(found.load(), snapshot())


@pytest.mark.parametrize("name", ["clients/000000.safetensors", "metrics.parquet"])
def test_damage_to_a_client_or_the_metrics_counts_too(
    tmp_path: Path, metrics: Path, name: str
) -> None:
    save(tmp_path, metrics, 4)
    spoil(save(tmp_path, metrics, 5) / name, "flipped")
    assert latest_checkpoint(tmp_path / "checkpoints").round == 4


def spoil(file: Path, damage: str) -> None:
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
        return
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = bytearray()
    else:
        content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_every_bit_of_the_manifest_that_matters_is_checked(tmp_path: Path, metrics: Path) -> None:
    save(tmp_path, metrics, 4)
    manifest = save(tmp_path, metrics, 5) / "checkpoint.json"
    whole = json.loads(manifest.read_text())
    broken: list[dict[str, Any]] = [
        whole | {"format": 99},
        whole | {"sha256": {}},
        {k: v for k, v in whole.items() if k != "round"},
        {k: v for k, v in whole.items() if k != "experiment"},
    ]
    for tree in broken:
        manifest.write_text(json.dumps(tree))
        assert latest_checkpoint(tmp_path / "checkpoints").round == 4


def test_half_written_folders_are_no_checkpoints(tmp_path: Path, metrics: Path) -> None:
    path = save(tmp_path, metrics, 4)
    path.with_name(".writing-1-round_00005").mkdir()
    path.with_name("round_00006").mkdir()
    path.with_name("round_00007").write_text("a file")
    assert latest_checkpoint(tmp_path / "checkpoints").round == 4


def test_none_at_all_is_said(tmp_path: Path, metrics: Path) -> None:
    with pytest.raises(ResumeError, match="no complete checkpoint"):
        latest_checkpoint(tmp_path / "checkpoints")
    spoil(save(tmp_path, metrics, 2) / "checkpoint.json", "missing")
    with pytest.raises(ResumeError, match="damaged: round_00002"):
        latest_checkpoint(tmp_path / "checkpoints")


def test_a_failed_save_leaves_the_old_ones_and_no_litter(
    tmp_path: Path, metrics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, metrics, 4)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, metrics, 5)
    monkeypatch.undo()
    folder = tmp_path / "checkpoints"
    assert [p.name for p in folder.iterdir()] == ["round_00004"]
    assert same(latest_checkpoint(folder).load(), snapshot())


def test_later_remains_are_discarded_on_resume(tmp_path: Path, metrics: Path) -> None:
    save(tmp_path, metrics, 4)
    spoil(save(tmp_path, metrics, 5) / "model.safetensors", "truncated")
    folder = tmp_path / "checkpoints"
    assert discard_after(folder, latest_checkpoint(folder)) == ["round_00005"]
    assert [p.name for p in folder.iterdir()] == ["round_00004"]


def test_all_damaged_ones_are_named_newest_first(tmp_path: Path, metrics: Path) -> None:
    for round_ in (4, 5, 6):
        save(tmp_path, metrics, round_)
    folder = tmp_path / "checkpoints"
    assert latest_checkpoint(folder).passed_over == ()
    for name in ("round_00005", "round_00006"):
        spoil(folder / name / "memory.safetensors", "flipped")
    assert latest_checkpoint(folder).passed_over == ("round_00006", "round_00005")


@pytest.mark.parametrize("file", ["model.safetensors", "clients/000011.safetensors"])
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, metrics: Path, file: str) -> None:
    save(tmp_path, metrics, 4)
    path = save(tmp_path, metrics, 5) / file
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 61):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        assert latest_checkpoint(tmp_path / "checkpoints").round == 4
    path.write_bytes(whole)
    assert latest_checkpoint(tmp_path / "checkpoints").round == 5


def test_states_are_saved_one_by_one(tmp_path: Path, metrics: Path) -> None:
    alive: list[int] = []

    class OneAtATime(dict[int, Any]):
        def __getitem__(self, client: int) -> Any:
            alive.append(client)
            return {"x": np.full(3, client, np.float32)}

    clients = OneAtATime(dict.fromkeys((7, 2, 30)))
    folder = tmp_path / "checkpoints"
    whole = Snapshot(model={}, memory={}, clients=clients)
    save_checkpoint(folder, 1, whole, EXPERIMENT, metrics, 2)
    assert alive == [2, 7, 30]
    assert list(latest_checkpoint(folder).load().clients) == [2, 7, 30]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("size", [2**17, 2**18, 2**20])
def test_a_full_disk_leaves_the_old_ones_and_no_litter(
    small_disk: Path, metrics: Path, size: int
) -> None:
    folder = small_disk / "checkpoints"
    save_checkpoint(folder, 4, snapshot(), EXPERIMENT, metrics, 9)
    big = Snapshot(
        model={"w": np.zeros(size // 4, np.float32)},
        memory={},
        clients={0: {"x": np.zeros(size // 4, np.float32)}},
    )
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(folder, 5, big, EXPERIMENT, metrics, 9)
    assert [p.name for p in folder.iterdir()] == ["round_00004"]
    assert same(latest_checkpoint(folder).load(), snapshot())
    save_checkpoint(folder, 5, snapshot(2.0), EXPERIMENT, metrics, 9)
    assert latest_checkpoint(folder).round == 5


def test_a_read_only_folder_is_said(metrics: Path, small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    save_checkpoint(folder, 4, snapshot(), EXPERIMENT, metrics, 9)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match="Read-only"):
        save_checkpoint(folder, 5, snapshot(), EXPERIMENT, metrics, 9)
    assert latest_checkpoint(folder).round == 4
