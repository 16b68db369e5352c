"""Waiting for Ray: interruptible, in the run's own words, and not for what will never answer."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    ActorUnschedulableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from raysim.errors import RunError, UserError
from raysim.executor import PlaceLost
from raysim.signals import Signals

LOST = (
    RayActorError,
    ObjectLostError,
    OutOfMemoryError,
    WorkerCrashedError,
    ActorUnschedulableError,
)
"""What Ray raises when a process or node is gone, or an object that lay there."""
PROBE_S = 15.0
"""Seconds in which an actor that lives answers a question, also on a busy machine."""
_POLL_S = 0.2
_OUT_OF_MEMORY = ("NODE_OUT_OF_MEMORY", "running low on memory", "OutOfMemory")


class Patience:
    """Waits for calls to actors.

    A signal ends the waiting, never a call into Ray. An actor that is at work and does not get on
    for `hang_s` counts as lost.
    """

    def __init__(self, signals: Signals, hang_s: float) -> None:
        """Wait until a signal or a hung actor.

        Args:
            signals: polled while waiting.
            hang_s: longest time without progress of an actor, in seconds.
        """
        self._signals = signals
        self._hang_s = hang_s

    def poll(self) -> None:
        """Raise a pending signal."""
        self._signals.poll()

    def get(self, calls: Mapping[Any, "Member | None"]) -> list[Any]:
        """Return the results of calls, in order.

        Args:
            calls: object reference -> the actor that was called; None where it has no progress
                to show.

        Raises:
            PlaceLost: a process or node is gone, or an actor hangs.
        """
        refs, missing = list(calls), list(calls)
        pulses = {member: _Pulse(member) for member in calls.values() if member is not None}
        while missing:
            # One at a time, so that a dead host is noticed while the others are at work.
            done, missing = ray.wait(missing, num_returns=1, timeout=_POLL_S)
            self._signals.poll()
            for ref in done:
                _check(ref, calls[ref])
            for member in dict.fromkeys(calls[ref] for ref in missing):
                if member is not None and pulses[member].still_for() > self._hang_s:
                    ray.kill(member.actor)
                    raise PlaceLost(
                        f"{member} has not ended a step for {self._hang_s:g} s (execution.hang_s) "
                        "and was killed"
                    )
        return list(ray.get(refs))

    @contextmanager
    def calling(self, where: str) -> Iterator[None]:
        """Hold signals back from Ray for the block, and word its errors.

        Raises:
            PlaceLost: a process or node is gone.
            RunError: the called code raised; in its own words if it has them. Or Ray itself failed.
        """
        try:
            with self._signals.deferred():
                yield
        except PlaceLost as error:
            raise PlaceLost(f"{where}: {error}") from None
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError):
                raise cause from None
            if isinstance(cause, LOST):
                raise PlaceLost(f"{where}: a process {reason(cause)}") from None
            text = str(cause) if isinstance(cause, RunError) else f"{where}: {error}"
            raise RunError(text) from None
        except LOST as error:
            raise PlaceLost(f"{where}: a process {reason(error)}") from None
        except RayError as error:
            raise RunError(f"{where}: {error}") from None


def _check(ref: Any, member: "Member | None") -> None:
    """Raise what a call raised; a loss by the name of the place."""
    try:
        ray.get(ref)
    except LOST as error:
        raise PlaceLost(f"{member or 'a process'} {reason(error)}") from None


@dataclass(eq=False)
class Member:
    """An actor of the run, which counts its steps.

    Attributes:
        name: "the server", or a host with its number.
        actor: its handle.
        where: process and address, once it is up.
        node: Ray's id of its node, once it is up; before, of the one it was meant for.
        device: torch device, once it is up.
        processor: what it computes on, once it is up.
        index: a host's number.
    """

    name: str
    actor: Any
    where: str = ""
    node: str = ""
    device: str = ""
    processor: str = ""
    index: int = -1

    def is_up(self, found: Sequence[str]) -> None:
        """Remember what `ClientHost.ready` has returned."""
        self.where, self.node, self.device, self.processor = found

    def __str__(self) -> str:
        """Name the actor as messages do."""
        return f"{self.name}{f' ({self.where})' if self.where else ''}"


class _Pulse:
    """How long an actor has not got on."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._steps = -1
        self._since = self._asked_at = time.monotonic()
        self._asked: Any = None

    def still_for(self) -> float:
        """Ask the actor for its steps, now and then; returns the seconds since they last grew."""
        now = time.monotonic()
        if self._asked is None and now - self._asked_at > 1.0:
            self._asked, self._asked_at = self._member.actor.steps.remote(), now
        if self._asked is not None:
            done, _ = ray.wait([self._asked], timeout=0)
            if done:
                steps = ray.get(self._asked)
                self._asked = None
                if steps != self._steps:
                    self._steps, self._since = steps, now
        return now - self._since


def reason(error: BaseException) -> str:
    """Say why a place was lost, as what it did."""
    text = " ".join(str(error).split())
    if any(sign in text for sign in _OUT_OF_MEMORY):
        return (
            "was killed for want of memory (if it happens again, lower local.batch_size, "
            "execution.hosts or execution.state_memory_mb)"
        )
    if "creation task" in text:
        return f"did not start: {error}"
    return "died with its node" if "node" in text.lower() else "died"


def out_of_memory(error: BaseException) -> bool:
    """Tell whether a process was killed for want of memory."""
    return any(sign in str(error) for sign in _OUT_OF_MEMORY)
