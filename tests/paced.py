"""FedFIP in no hurry: `method=tests/paced.py:PacedFedFIP`."""

import time
from pathlib import Path

from methods.fedfip import FedFIP
from raysim.method import ServerView
from raysim.tensors import Arrays

_PAUSE_S = 1.0


class PacedFedFIP(FedFIP):
    """FedFIP whose rounds pause as long as a file is there, so that hosts come up meanwhile."""

    pace: str = ""

    def broadcast(self, server: ServerView) -> Arrays:
        if Path(self.pace).is_file():
            time.sleep(_PAUSE_S)
        return super().broadcast(server)
