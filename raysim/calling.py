"""Lets `from raysim import run` be called, though `raysim.run` is also a module."""

import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.record import Record


class RunModule(ModuleType):
    """The class of the module `raysim.run`: calling it is `raysim.api.run`.

    A package has one attribute of a name, and importing a submodule sets it, so that a function of
    the same name would be there or not by what was imported before.
    """

    def __call__(
        self,
        preset: str | os.PathLike[str] | None = None,
        /,
        *,
        quiet: bool = False,
        **settings: Any,
    ) -> "Record":
        """See `raysim.api.run`."""
        from raysim.api import run

        return run(preset, quiet=quiet, **settings)
