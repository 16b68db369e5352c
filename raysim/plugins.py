"""Methods from outside the package: a class in a user's file, or an installed entry point.

A class from a file is known to no import system, so its instances travel to other processes as
the file's text and their own settings, and are built anew there.
"""

import hashlib
import sys
from collections import ChainMap
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raysim.errors import ConfigError

if TYPE_CHECKING:
    from raysim.method import Method

GROUP = "raysim.methods"
"""Entry points of this group are methods: `my_method = "my_package.my_module:MyMethod"`."""


def find_method(name: str) -> "type[Method] | None":
    """Return the method that a name outside the package's table means, or None.

    Args:
        name: `path/to/file.py:ClassName`, or the name of an entry point of `GROUP`.

    Raises:
        ConfigError: the file or the class is missing, fails to import, or is no method.
    """
    path, separator, class_name = name.rpartition(":")
    if separator and path.endswith(".py"):
        try:
            code = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"method.name={name}: {error}") from None
        return method_from_source(code, path, class_name)
    if name.endswith(".py"):
        raise ConfigError(f"method.name={name}: name the class in the file too, {name}:MyMethod")
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                return _checked(point.load(), name)
            except (ImportError, AttributeError) as error:
                raise ConfigError(f"method.name={name}: {point.value}: {error}") from error
    return None


def or_kept(
    methods: "Mapping[str, type[Method]]", name: str, kept: Path
) -> "Mapping[str, type[Method]]":
    """Return methods, and with them a user's own as a run kept it, if its file is not there now.

    Args:
        methods: classes by name.
        name: of the run's method, as its config gives it.
        kept: the copy of the file in the run directory, if the method came from one.

    Raises:
        ConfigError: see `find_method`.
    """
    path, _, class_name = name.rpartition(":")
    if not kept.is_file() or Path(path).is_file():
        return methods
    code = kept.read_text(encoding="utf-8")
    return ChainMap({name: method_from_source(code, path, class_name)}, dict(methods))


def method_from_source(code: str, origin: str, class_name: str) -> "type[Method]":
    """Return a method class from a file's text.

    Args:
        code: Python source.
        origin: the file, for messages and tracebacks.
        class_name: the class in it.

    Raises:
        ConfigError: see `find_method`.
    """
    module_name = f"raysim_method_{hashlib.sha256(code.encode()).hexdigest()[:16]}"
    if module_name not in sys.modules:
        module = ModuleType(module_name)
        module.__file__ = origin
        sys.modules[module_name] = module
        try:
            exec(compile(code, origin, "exec"), module.__dict__)  # the user's own code, by request
        except (Exception, SystemExit) as error:
            del sys.modules[module_name]
            raise ConfigError(f"{origin}: {type(error).__name__}: {error}") from error
    found = getattr(sys.modules[module_name], class_name, None)
    if found is None:
        raise ConfigError(f"{origin} has no class {class_name}")
    method = _checked(found, f"{origin}:{class_name}")
    if method.__module__ != module_name:
        raise ConfigError(f"{origin}: {class_name} is imported there: name a class of the file")
    method.source = (code, origin, class_name)
    return method


def rebuild(source: tuple[str, str, str], settings: dict[str, Any]) -> "Method":
    """Build an instance of a class from a file; what unpickling one calls."""
    return method_from_source(*source).model_validate(settings)


def _checked(found: Any, name: str) -> "type[Method]":
    from raysim.method import Method

    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"method.name={name}: not a subclass of raysim.method.Method")
    return found
