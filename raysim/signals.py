"""SIGINT and SIGTERM as an exception that arrives between two consistent states.

Plain Python may be interrupted anywhere. Ray's compiled calls may not: an exception that a signal
handler raises inside them surfaces as a SystemError. They are made inside `deferred`, and loops
that wait for them call `poll`.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from raysim.errors import Interrupted


class Signals:
    """Turns the first SIGINT or SIGTERM into `Interrupted`; a later one acts as it would without.

    Installed after `ray.init`, which puts handlers of its own in place.
    """

    def __init__(self) -> None:
        """Nothing is installed yet."""
        self._depth = 0
        self._pending = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take over both signals for the block; outside the main thread nothing can be taken."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self._arrive) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def poll(self) -> None:
        """Raise what is pending; for waiting loops inside one `deferred` block of their own."""
        if self._pending and self._depth == 1:
            self._interrupt()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold a signal back until the block is done."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self._pending and not self._depth:
            self._interrupt()

    def _arrive(self, signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._pending = signum
        if not self._depth:
            self._interrupt()

    def _interrupt(self) -> None:
        """Raise once: what saves the last complete round must not be interrupted again."""
        signum, self._pending = self._pending, 0
        raise Interrupted(signum)
