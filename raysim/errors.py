"""Errors a user meets; each message names the value, the limit and the remedy."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Something the user can put right before anything runs (exit status 2)."""


class ConfigError(UserError):
    """A setting is unknown, malformed or out of range, or settings contradict each other."""


class DataError(UserError):
    """A data set is missing, unreadable or inconsistent."""


class ResumeError(UserError):
    """A run directory cannot be resumed as asked."""


class RecordError(UserError):
    """A run directory cannot be read, or runs cannot be compared as asked."""


class ClusterError(UserError):
    """The cluster cannot be reached or cannot hold what the run asks for."""


class RunError(Exception):
    """The run failed (exit status 1); the message says which client, round and phase."""


# Signs in messages of libraries, and what the user can do. The first that fits is told.
_REMEDIES = {
    r"CUDA out of memory|CUDA error: out of memory": (
        "the GPU's memory is full: lower local.batch_size, data.image_size or model.width, set "
        "local.precision=bf16, or let fewer hosts share a GPU (execution.hosts, "
        "execution.gpus_per_host=1)"
    ),
    r"NaN or infinity": (
        "training diverged: lower local.lr, set local.max_grad_norm (10 is a start), or let such "
        "updates sit out with participation.nonfinite=skip"
    ),
    r"No space left on device|Disk quota exceeded": (
        "the disk is full: free some space, then `raysim resume RUN_DIR`; a lower "
        "output.keep_checkpoints needs less, output.dir can lie on another disk in a new run"
    ),
    r"Version mismatch": (
        "Ray and Python must have the same versions here and on the cluster: run from an "
        "environment like the cluster's, or submit the run as a job (ray job submit)"
    ),
    r"exceeds the maximum size": (
        "what Ray copies to the cluster is too large: keep runs and data out of the working "
        "directory, or name them in a .rayignore file there (lines as in .gitignore)"
    ),
}


def remedy(error: BaseException) -> str:
    """Return what the user can do about an exception of a library, "" if nothing is known."""
    text = f"{type(error).__name__}: {error}"
    return next((told for sign, told in _REMEDIES.items() if re.search(sign, text)), "")


def failure(where: str, error: BaseException) -> RunError:
    """Return a `RunError` that says where an exception came up, its remedy and its traceback."""
    trace = "".join(traceback.format_exception(error))
    told = [f"{where}: {type(error).__name__}: {error}", remedy(error), trace]
    return RunError("\n".join(filter(None, told)))


@contextmanager
def telling(where: str) -> Iterator[None]:
    """Turn what a method's hook raises in the block into a `RunError` that says where."""
    try:
        yield
    except (UserError, RunError):
        raise
    except Exception as error:
        raise failure(where, error) from error


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived; `signum` becomes exit status 128 + signum.

    Derives from BaseException so that no handler for ordinary errors swallows it.
    """

    def __init__(self, signum: int) -> None:
        """Remember the signal's number."""
        super().__init__(f"signal {signum}")
        self.signum = signum
