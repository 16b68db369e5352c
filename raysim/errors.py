"""Errors a user meets; each message names the value, the limit and the remedy."""

import traceback


class UserError(Exception):
    """Something the user can put right before anything runs (exit status 2)."""


class ConfigError(UserError):
    """A setting is unknown, malformed or out of range, or settings contradict each other."""


class DataError(UserError):
    """A data set is missing, unreadable or inconsistent."""


class ResumeError(UserError):
    """A run directory cannot be resumed as asked."""


class ClusterError(UserError):
    """The cluster cannot be reached or cannot hold what the run asks for."""


class RunError(Exception):
    """The run failed (exit status 1); the message says which client, round and phase."""


def failure(where: str, error: BaseException) -> RunError:
    """Return a `RunError` that says where an exception came up and keeps its traceback."""
    trace = "".join(traceback.format_exception(error))
    return RunError(f"{where}: {type(error).__name__}: {error}\n{trace}")


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived; `signum` becomes exit status 128 + signum.

    Derives from BaseException so that no handler for ordinary errors swallows it.
    """

    def __init__(self, signum: int) -> None:
        """Remember the signal's number."""
        super().__init__(f"signal {signum}")
        self.signum = signum
