"""Which keys a row of a table may set, and which can be tuned: what rows share stays equal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from raysim.errors import ConfigError
from raysim.settings import Named, aliases

_OF_A_ROW = re.compile(
    r"(method|model|data\.partition)(\..+)?|(local|participation|data\.augment)\..+|"
    r"data\.(clients|image_size)|rounds"
)
_OF_TUNING = re.compile(r"(method|model|local|participation)\..+")


def canonical(key: str, method: type[Named]) -> str:
    """Return a key by its field's name where it has another one, as `method.rho`."""
    for name, field in method.model_fields.items():
        if key in {f"method.{alias}" for alias in aliases(field)}:
            return f"method.{name}"
    return key


def check_row(where: str, keys: Iterable[object]) -> None:
    """Refuse keys that rows of one table share.

    Args:
        where: what sets them, for the message.
        keys: dotted ones.

    Raises:
        ConfigError: there is one.
    """
    for key in keys:
        if not isinstance(key, str) or not _OF_A_ROW.fullmatch(key):
            raise ConfigError(
                f"{where}: {key} is not for one row: rows differ in method, model, local.*, "
                "participation.*, rounds, data.partition, data.clients, data.image_size and "
                "data.augment.* (dotted keys); data sets, splits and seeds are the table's"
            )


def check_tuned(
    tuned: Iterable[str], label: str, own: Mapping[str, object], method: type[Named]
) -> None:
    """Refuse tuned keys that are not for tuning, or that are set otherwise, under whatever name.

    Args:
        tuned: dotted keys.
        label: of a row.
        own: what it sets, by dotted key, and what the command line sets for all.
        method: the row's.

    Raises:
        ConfigError: there is one.
    """
    names = {canonical(key, method): key for key in own}
    seen: set[str] = set()
    for key in tuned:
        if not _OF_TUNING.fullmatch(key):
            raise ConfigError(
                f"--tune {key}: only method.*, model.*, local.* and participation.* can be tuned"
            )
        name = canonical(key, method)
        if name in seen:
            raise ConfigError(f"--tune {key}: {name} twice")
        if name in names:
            raise ConfigError(f"--tune {key}: {label} has {names[name]} set already")
        seen.add(name)
