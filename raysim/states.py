"""Private client states: in memory up to a budget, in files beyond it, with the same bits."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from raysim.tensors import Arrays, num_bytes


def save_arrays(arrays: Arrays, path: Path) -> None:
    """Write named arrays as safetensors.

    Raises:
        OSError: the disk is full or read-only.
    """
    try:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    except SafetensorError as error:  # what it makes of a full disk
        raise OSError(f"{path}: {error}") from error


class StateFiles(Mapping[int, Arrays]):
    """States in a folder, one safetensors file a client, read when asked for."""

    def __init__(self, folder: Path) -> None:
        """Look at a folder, which need not exist."""
        self._folder = folder

    def path(self, client: int) -> Path:
        """Return where a client's state lies."""
        return self._folder / f"{client:06d}.safetensors"

    def __getitem__(self, client: int) -> Arrays:
        """Read a client's state."""
        if not self.path(client).exists():
            raise KeyError(client)
        return load_file(self.path(client))

    def __iter__(self) -> Iterator[int]:
        """Yield the clients in ascending order."""
        return iter(sorted(int(path.stem) for path in self._folder.glob("*.safetensors")))

    def __len__(self) -> int:
        """Return the number of clients."""
        return sum(1 for _ in self)


class ClientStates(Mapping[int, Arrays]):
    """The states of many clients.

    What fits into the budget stays in memory, what does not goes to a file at once: clients are
    visited one after the other, so that throwing out the oldest would throw out the next one.
    """

    def __init__(self, budget: int, folder: Path) -> None:
        """Start empty.

        Args:
            budget: bytes to keep in memory.
            folder: where files go; made when the first one is written.
        """
        self._budget = budget
        self._folder = folder
        self._held: dict[int, Arrays] = {}
        self._bytes = 0
        self._files = StateFiles(folder)
        self._on_disk: set[int] = set()

    @property
    def bytes_in_memory(self) -> int:
        """Bytes of the states that are in memory."""
        return self._bytes

    def put(self, client: int, state: Arrays) -> None:
        """Take a state in place of the client's former one.

        Raises:
            OSError: the state does not fit into the budget and cannot be written.
        """
        self.drop(client)
        self._hold(client, state)
        if self._bytes > self._budget:
            self._spill(client)

    def absorb(self, other: "ClientStates") -> None:
        """Take over all states of another store, which is empty afterwards.

        Raises:
            OSError: what does not fit into the budget cannot be written; nothing has changed here.
        """
        room = self._budget - self._bytes
        room += sum(num_bytes(self._held[client]) for client in other if client in self._held)
        for client, state in sorted(other._held.items()):
            room -= num_bytes(state)
            if room < 0:
                room += num_bytes(state)
                other._spill(client)
        if other._on_disk:
            self._folder.mkdir(parents=True, exist_ok=True)
        for client in other:  # from here on nothing needs space
            self.drop(client)
            if client in other._on_disk:
                os.replace(other._files.path(client), self._files.path(client))
                self._on_disk.add(client)
            else:
                self._hold(client, other._held[client])
        other._held, other._bytes, other._on_disk = {}, 0, set()

    def drop(self, client: int) -> None:
        """Forget a client's state, if there is one."""
        self._bytes -= num_bytes(self._held.pop(client, {}))
        if client in self._on_disk:
            self._on_disk.discard(client)
            self._files.path(client).unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget all states and remove their files."""
        self._held, self._bytes, self._on_disk = {}, 0, set()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __getitem__(self, client: int) -> Arrays:
        """Return a client's state; one on disk is read anew each time."""
        return self._held[client] if client in self._held else self._read(client)

    def __iter__(self) -> Iterator[int]:
        """Yield the clients in ascending order."""
        return iter(sorted(self._held.keys() | self._on_disk))

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._held) + len(self._on_disk)

    def _hold(self, client: int, state: Arrays) -> None:
        self._held[client] = state
        self._bytes += num_bytes(state)

    def _spill(self, client: int) -> None:
        """Move a state from memory to its file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        save_arrays(self._held[client], self._files.path(client))
        self._bytes -= num_bytes(self._held.pop(client))
        self._on_disk.add(client)

    def _read(self, client: int) -> Arrays:
        if client not in self._on_disk:
            raise KeyError(client)
        return self._files[client]
