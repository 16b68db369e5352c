import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from raysim.data.partition import make_partition
from raysim.data.partition_file import read_partition, write_partition
from raysim.data.partition_kinds import AnyPartition, DomainDirichlet, FromFile, Iid, SingleDomain
from raysim.errors import ConfigError, DataError


class Named:
    """Domains of images with given names; the splits take turns: train, train, val, test."""

    name = "named"
    classes = ("cat", "dog")

    def __init__(self, names: dict[str, list[str]]) -> None:
        self.domains = tuple(names)
        self._names = names

    def names(self, domain: str, split: str) -> list[str]:
        turns = {"train": (0, 1), "val": (2,), "test": (3,)}[split]
        return [name for turn, name in enumerate(self._names[domain]) if turn % 4 in turns]

    def labels(self, domain: str, split: str) -> NDArray[np.int64]:
        return np.arange(len(self.names(domain, split))) % 2


def numbered(size: int, domains: str = "ab") -> Named:
    return Named({domain: [f"{number}.png" for number in range(size)] for domain in domains})


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(["image,split,client", *rows, ""]), encoding="utf-8")
    return path


# In `numbered(8)`, images 0, 1, 4 and 5 of a domain train, 2 and 6 validate, 3 and 7 test.
GOOD = ("a/0.png,train,0", "b/1.png,train,1", "a/3.png,test,0")


def test_rows_go_by_split_domain_and_position(tmp_path: Path) -> None:
    dataset = numbered(8)
    path = tmp_path / "p.csv"
    write_partition(make_partition(dataset, Iid(min_examples=1), 1, 0), dataset, path)
    train = [f"{domain}/{number}.png,train,0" for domain in "ab" for number in (0, 1, 4, 5)]
    val = [f"{domain}/{number}.png,val,0" for domain in "ab" for number in (2, 6)]
    test = [f"{domain}/{number}.png,test,0" for domain in "ab" for number in (3, 7)]
    assert lines_of(path) == ["image,split,client", *train, *val, *test, ""]
    assert os.listdir(tmp_path) == ["p.csv"]


@pytest.mark.parametrize(
    "kind",
    [
        DomainDirichlet(label_dirichlet=0.5),
        SingleDomain(fraction=0.2),
        SingleDomain(counts={"a": 5, "b": 0}),
    ],
)
def test_a_partition_survives_the_round_trip(kind: AnyPartition, tmp_path: Path) -> None:
    dataset = numbered(400)
    partition = make_partition(dataset, kind, 5, 3)
    write_partition(partition, dataset, tmp_path / "p.csv")
    again = make_partition(dataset, FromFile(path=str(tmp_path / "p.csv")), 5, 99)
    assert again.digest() == partition.digest()
    assert sum(len(rows) for shard in again.shards for rows in shard.val.values()) > 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
        min_size=4,
        max_size=12,
        unique=True,
    )
)
def test_any_name_survives_the_round_trip(names: list[str], tmp_path: Path) -> None:
    dataset = Named({"art, old": names, "\u00e9\U0001f600": names})
    partition = make_partition(dataset, Iid(min_examples=1), 2, 0)
    write_partition(partition, dataset, tmp_path / "p.csv")
    assert read_partition(tmp_path / "p.csv", dataset, 2).digest() == partition.digest()


def test_images_that_are_not_listed_are_unused(tmp_path: Path) -> None:
    shards = read_partition(write(tmp_path / "p.csv", *GOOD), numbered(8), 2).shards
    assert [{d: rows.tolist() for d, rows in shard.train.items()} for shard in shards] == [
        {0: [0]},
        {1: [1]},
    ]
    assert [{d: rows.tolist() for d, rows in shard.test.items()} for shard in shards] == [
        {0: [0]},
        {},
    ]


def test_files_of_a_spreadsheet_are_read_too(tmp_path: Path) -> None:
    """A byte order mark, CRLF, blank lines and quotes change nothing."""
    plain = read_partition(write(tmp_path / "p.csv", *GOOD), numbered(8), 2)
    rows = ["image,split,client", *(f'"{row.split(",")[0]}",{row[8:]}' for row in GOOD), "", ""]
    (tmp_path / "q.csv").write_text("\r\n".join(rows), encoding="utf-8-sig", newline="")
    assert read_partition(tmp_path / "q.csv", numbered(8), 2).digest() == plain.digest()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a/9.png,train,0", r"named has no image 'a/9.png'; one that it has is 'a/0.png'"),
        ("0.png,train,0", "no image '0.png'"),
        ("a/0.png,train,1", "'a/0.png' is on line 2 already"),
        ("a/4.png,train,2", r"client '2' is not one of 0..1 \(data.clients\)"),
        ("a/4.png,train,-1", "client '-1' is not"),
        ("a/4.png,train,1.0", "client '1.0' is not"),
        ("a/4.png,train,", "client '' is not"),
        ("a/4.png,test,0", "listed as test and is a train image here: set data.split"),
        ("a/4.png,trian,0", "no split 'trian'; did you mean 'train'"),
        ("a/4.png,train", "2 columns, must be image,split,client"),
        ("a/4.png,train,0,9", "4 columns"),
    ],
)
def test_wrong_rows_are_refused_by_line(row: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", *GOOD, row)
    with pytest.raises(DataError, match=rf"p\.csv, line 5: .*{message}"):
        read_partition(path, numbered(8), 2)


@pytest.mark.parametrize("header", ["", "image,client,split", "a/0.png,train,0", "image;split"])
def test_a_wrong_header_is_refused(header: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(header + "\na/0.png,train,0\n")
    with pytest.raises(DataError, match=r"line 1: .*, must be 'image,split,client'"):
        read_partition(tmp_path / "p.csv", numbered(8), 1)


@pytest.mark.parametrize("content", [b"image,split,client\n\xff\xfe", b'image,split,client\n"a'])
def test_what_is_no_csv_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"p\.csv: not a CSV file in UTF-8"):
        read_partition(tmp_path / "p.csv", numbered(8), 1)


def test_a_missing_file_is_refused_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.partition.path=.*p\.csv: No such file"):
        make_partition(numbered(8), FromFile(path=str(tmp_path / "p.csv")), 1, 0)


def test_clients_without_a_training_image_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", *GOOD, "a/7.png,test,2")
    with pytest.raises(DataError, match=r"2 of data.clients=4 \(the first is client 2\) have no"):
        read_partition(path, numbered(8), 4)


def test_clients_that_test_a_domain_they_do_not_train_on_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", *GOOD, "a/7.png,test,1")
    with pytest.raises(DataError, match="client 1 has test images of a and no training image"):
        read_partition(path, numbered(8), 2)


def test_unseen_domains_may_not_be_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", *GOOD)
    with pytest.raises(DataError, match=r"line 3: 'b/1.png' has a client, data.unseen keeps b"):
        make_partition(numbered(8), FromFile(path=str(path)), 2, 0, unseen=["b"])
    with pytest.raises(ConfigError, match=r"data.unseen: no domain 'x'"):
        make_partition(numbered(8), FromFile(path=str(path)), 2, 0, unseen=["x"])
    write(path, "a/0.png,train,0", "a/1.png,train,1")
    for unseen in (["b"], []):  # asked for, or because no row of the file has it
        partition = make_partition(numbered(8), FromFile(path=str(path)), 2, 0, unseen)
        assert [list(shard.train) for shard in partition.shards] == [[0], [0]]
        assert [list(guest.train) for guest in partition.guests] == [[1]]


def test_a_partition_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    dataset = numbered(8)
    partition = make_partition(dataset, Iid(min_examples=1), 1, 0)
    with pytest.raises(DataError, match=r"cannot write .*: No such file or directory"):
        write_partition(partition, dataset, tmp_path / "no" / "p.csv")
    (tmp_path / "p.csv").write_text("old")
    with pytest.raises(IndexError):  # half-way through
        write_partition(partition, numbered(4), tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == "old"
    assert os.listdir(tmp_path) == ["p.csv"]


def test_large_files_come_back_whole(tmp_path: Path) -> None:
    dataset = numbered(30_000, "abcd")
    partition = make_partition(dataset, DomainDirichlet(), 100, 0)
    write_partition(partition, dataset, tmp_path / "p.csv")
    again = read_partition(tmp_path / "p.csv", dataset, 100)
    assert len(lines_of(tmp_path / "p.csv")) == 120_002
    assert again.digest() == partition.digest()
