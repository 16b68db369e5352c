"""Scalars of each round as TensorBoard event files."""

from pathlib import Path

from tensorboardX import SummaryWriter


class TensorBoard:
    """Writes event files."""

    def __init__(self, folder: Path, done: int) -> None:
        """Open the writer.

        Args:
            folder: where event files go.
            done: complete rounds; events of later ones, from before a resume, are hidden.
        """
        self._writer = SummaryWriter(str(folder), purge_step=done + 1)

    def log(self, round_: int, scalars: dict[str, float]) -> None:
        """Write a round's scalars."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, round_)

    def close(self, summary: dict[str, object]) -> None:
        """Flush and close the files."""
        self._writer.close()
