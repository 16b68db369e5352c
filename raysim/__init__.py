"""Federated learning under domain shift, simulated on Ray so that results repeat bit for bit."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("raysim")
except PackageNotFoundError:  # a checkout shipped by `ray job submit`, not installed
    __version__ = "0+checkout"
