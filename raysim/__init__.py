"""Federated learning under domain shift, simulated on Ray so that results repeat bit for bit."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.api import load_run, run
    from raysim.record import Record

try:
    __version__ = version("raysim")
except PackageNotFoundError:  # a checkout shipped by `ray job submit`, not installed
    __version__ = "0+checkout"

_HOMES = {"load_run": "raysim.api", "Record": "raysim.record"}


def __getattr__(name: str) -> Any:
    """Import what the API offers when it is asked for: `import raysim` stays light."""
    from importlib import import_module

    if name == "run":  # the module, which can be called
        return import_module("raysim.run")
    if name not in _HOMES:
        raise AttributeError(f"module 'raysim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


__all__ = ["Record", "__version__", "load_run", "run"]
