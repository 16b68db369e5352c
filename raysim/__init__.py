"""Federated learning under domain shift, simulated on Ray so that results repeat bit for bit."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.api import load_run, run
    from raysim.record import Record

    __version__: str

_HOMES = {"load_run": "raysim.api", "Record": "raysim.record"}


def __getattr__(name: str) -> Any:
    """Import what the API offers when it is asked for: `import raysim` stays light."""
    from importlib import import_module

    if name == "__version__":
        return _version()
    if name == "run":  # the module, which can be called
        return import_module("raysim.run")
    if name not in _HOMES:
        raise AttributeError(f"module 'raysim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # imports the email package

    try:
        return version("raysim")
    except PackageNotFoundError:  # a checkout shipped by `ray job submit`, not installed
        return "0+checkout"


__all__ = ["Record", "__version__", "load_run", "run"]
