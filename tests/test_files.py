"""Files that appear whole or not at all."""

from pathlib import Path

import pytest

from raysim.files import aside, write_aside


def test_a_file_takes_its_place_at_the_end_of_the_block(tmp_path: Path) -> None:
    write_aside(tmp_path / "x", b"old")
    with aside(tmp_path / "x") as file:
        file.write(b"new")
        file.flush()
        assert (tmp_path / "x").read_bytes() == b"old"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"new"}


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    write_aside(tmp_path / "x", b"old")

    def write_half() -> None:
        with aside(tmp_path / "x") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"old"}


def test_a_place_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_aside(tmp_path / "nowhere" / "x", b"new")
