"""Partitions as CSV files, so that two tools can share one.

A file has the columns `image` (`<domain>/<name>`), `split` (train, val or test) and `client` (from
0). Images that it does not list are unused.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raysim.data.shards import HELD_OUT, SPLITS, Labelled, Partition, partition_of
from raysim.errors import DataError
from raysim.files import aside
from raysim.settings import did_you_mean

HEADER = ("image", "split", "client")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an image lies in the data set."""

    split: str
    domain: int
    position: int


def write_partition(partition: Partition, dataset: Labelled, path: Path) -> None:
    """Write a partition whole or not at all; rows go by split, domain and position.

    Args:
        partition: who holds what.
        dataset: what the partition was made of.
        path: the CSV file, replaced if it is there.

    Raises:
        DataError: the file cannot be written.
    """
    try:
        with aside(path) as file:
            file.write((",".join(HEADER) + "\n").encode())
            for split in SPLITS:
                for domain, name in enumerate(dataset.domains):
                    lines = _lines_of(partition, dataset, split, domain, name)
                    file.writelines(line.encode() for line in lines)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error


def read_partition(
    path: Path, dataset: Labelled, num_clients: int, unseen: Sequence[str] = ()
) -> Partition:
    """Read a partition from a file.

    Args:
        path: the CSV file.
        dataset: the data set that its images are of.
        num_clients: M >= 1; the file's clients are 0..M-1.
        unseen: names of domains that no client may hold.

    Returns:
        M shards. After `write_partition` of the same data set, the partition that was written.

    Raises:
        DataError: the file is missing, malformed or does not fit the data set; the message has
            the line.
    """
    places = _places(dataset)
    owners = {
        split: {
            d: np.full(len(dataset.labels(name, split)), -1, np.int64)
            for d, name in enumerate(dataset.domains)
        }
        for split in SPLITS
    }
    example = min(places, default="")
    clients = {str(client): client for client in range(num_clients)}
    kept_out = {d for d, name in enumerate(dataset.domains) if name in unseen}
    lines: dict[str, int] = {}
    for line, (image, split, client) in _lines(path):
        place = places.get(image)
        if place is None:
            problem = f"{dataset.name} has no image {image!r}; one that it has is {example!r}"
        elif image in lines:
            problem = f"{image!r} is on line {lines[image]} already: an image has one owner"
        elif place.split != split:
            problem = _split_problem(image, split, place)
        elif client not in clients:
            problem = f"client {client!r} is not one of 0..{num_clients - 1} (data.clients)"
        elif place.domain in kept_out:
            domain = dataset.domains[place.domain]
            problem = f"{image!r} has a client, data.unseen keeps {domain} from all: leave one out"
        else:
            lines[image] = line
            owners[split][place.domain][place.position] = clients[client]
            continue
        raise DataError(f"{path}, line {line}: {problem}")
    partition = partition_of(owners, num_clients)
    _check_clients(partition, dataset, path)
    return partition


def _lines_of(
    partition: Partition, dataset: Labelled, split: str, domain: int, domain_name: str
) -> Iterator[str]:
    names = dataset.names(domain_name, split)
    held = [
        (int(position), client)
        for client, shard in enumerate(partition.shards)
        for position in shard.by_split[split].get(domain, ())
    ]
    for position, client in sorted(held):
        yield f"{_quoted(f'{domain_name}/{names[position]}')},{split},{client}\n"


def _quoted(text: str) -> str:
    """Quote a field if need be; `csv.writer` with line ends of LF leaves a bare CR unquoted."""
    if any(character in text for character in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _places(dataset: Labelled) -> dict[str, _Place]:
    """Return where each image lies, by its id."""
    return {
        f"{domain_name}/{name}": _Place(split, domain, position)
        for domain, domain_name in enumerate(dataset.domains)
        for split in SPLITS
        for position, name in enumerate(dataset.names(domain_name, split))
    }


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows below the header with the number of their last line."""
    expected = ",".join(HEADER)
    try:
        # Spreadsheets put a byte order mark first; utf-8-sig takes it away.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if header != list(HEADER):
                raise DataError(f"{path}, line 1: {','.join(header)!r}, must be {expected!r}")
            for row in reader:
                if len(row) == len(HEADER):
                    yield reader.line_num, row
                elif row:  # a blank line is no row
                    raise DataError(
                        f"{path}, line {reader.line_num}: {len(row)} columns, must be {expected}; "
                        "quote names that hold commas"
                    )
    except OSError as error:
        raise DataError(f"data.partition.path={path}: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a CSV file in UTF-8 ({error})") from error


def _split_problem(image: str, split: str, place: _Place) -> str:
    if split not in SPLITS:
        return f"no split {split!r}{did_you_mean(split, SPLITS)}"
    return (
        f"{image!r} is listed as {split} and is a {place.split} image here: "
        "set data.split to what the file was made with"
    )


def _check_clients(partition: Partition, dataset: Labelled, path: Path) -> None:
    """Refuse clients that cannot train, or that test a domain they do not train on."""
    idle = [client for client, shard in enumerate(partition.shards) if not shard.num_train]
    if idle:
        raise DataError(
            f"{path}: {len(idle)} of data.clients={len(partition.shards)} (the first is client "
            f"{idle[0]}) have no training image: lower data.clients or add rows"
        )
    for client, shard in enumerate(partition.shards):
        for split in HELD_OUT:
            for domain in sorted(shard.by_split[split].keys() - shard.train.keys()):
                raise DataError(
                    f"{path}: client {client} has {split} images of {dataset.domains[domain]} and "
                    "no training image of it: give it one or leave them out"
                )
