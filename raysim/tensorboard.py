"""Scalars of each round as TensorBoard event files."""

from pathlib import Path

from raysim.federation import RoundSummary


class TensorBoard:
    """An observer that writes event files; does nothing when switched off."""

    def __init__(self, folder: Path, enabled: bool, done: int) -> None:
        """Open the writer.

        Args:
            folder: where event files go.
            enabled: whether to write at all.
            done: complete rounds; events of later ones, from before a resume, are hidden.
        """
        self._writer = None
        if enabled:
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=done + 1)

    def on_round(self, summary: RoundSummary) -> None:
        """Write a round's scalars."""
        if self._writer is None:
            return
        scalars = {f"round/{name}": value for name, value in summary.figures.items()}
        for key, value in (summary.evaluation or {}).items():
            if key == "domains":
                scalars |= {f"accuracy/{name}": accuracy for name, accuracy in value.items()}
            elif key == "personal" and value:
                scalars |= {f"personal/{name}": figure for name, figure in value.items()}
            elif key == "unseen":
                scalars |= {
                    f"unseen/{d}_{m}": v for d, own in value.items() for m, v in own.items()
                }
            elif key in ("avg", "std"):
                scalars[f"accuracy/{key.upper()}"] = value
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, summary.round)

    def on_notice(self, text: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Flush and close the files."""
        if self._writer is not None:
            self._writer.close()
