"""Validating a section of settings: what is wrong, by dotted key and in words."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from raysim.data.partition_kinds import PARTITIONS
from raysim.errors import ConfigError
from raysim.settings import Settings, aliases, did_you_mean


def validate(cls: type[Any], values: Mapping[str, Any], prefix: str) -> Any:
    """Return the section that plain values make.

    Args:
        cls: its class.
        values: by key.
        prefix: of the keys, in messages.

    Raises:
        ConfigError: a line for each key that is wrong.
    """
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        reasons: dict[str, list[str]] = {}  # a union gives one reason a branch
        for problem in error.errors():
            key, reason = _explain(cls, problem)
            reasons.setdefault(key, []).append(reason)
        lines = [f"{prefix}{key}: {', or '.join(dict.fromkeys(r))}" for key, r in reasons.items()]
        raise ConfigError("\n".join(lines)) from None


def _explain(cls: type[Settings], problem: Any) -> tuple[str, str]:
    """Return the dotted key of a pydantic problem, and its reason in words."""
    *path, leaf = problem["loc"] or ("",)
    section = _section(cls, path)
    loc = ("", *problem["loc"])
    parts = [
        str(part)
        for before, part in itertools.pairwise(loc)
        if not (before == "partition" and part in PARTITIONS) and not _is_branch(part)
    ]
    key = ".".join(parts)
    if problem["type"] == "boolean":
        return ".".join([*parts, problem["ctx"]["key"]]), problem["msg"]
    if problem["type"] == "extra_forbidden":
        known = _field_names(section)
        twice = str(leaf) in known  # an alias beside the name that it stands for
        return key, "given twice" if twice else f"unknown key{did_you_mean(str(leaf), known)}"
    if problem["type"] == "union_tag_invalid":
        kind = problem["ctx"]["tag"]
        return f"{key}.kind", f"no partition {kind!r}{did_you_mean(str(kind), PARTITIONS)}"
    value = problem.get("input")
    shown = "" if isinstance(value, dict | Settings) else f", got {value!r}"
    words = _WORDS.get(problem["type"].partition("_")[0], "")
    bounds = _range(section, parts[-1]) if parts and problem["type"] not in _UNBOUNDED else ""
    if bounds and words:
        bounds = bounds.replace("must lie", words)
    return key, f"{bounds or words or problem['msg'][0].lower() + problem['msg'][1:]}{shown}"


_WORDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "path": "must be a path",
    "model": "must be a section of `key: value` lines",
    "missing": "must be given, it has no default",
}
_UNBOUNDED = {"value_error"}
_BRANCHES = ("int", "float", "constrained-int", "constrained-float")


def _is_branch(part: Any) -> bool:
    """Tell pydantic's names for branches of a union from keys."""
    return isinstance(part, str) and ("[" in part or part in _BRANCHES)


def _section(cls: type[Any], path: Sequence[Any]) -> type[Any]:
    """Follow a location inside the config to the section class that it names."""
    for part in path:
        field = cls.model_fields.get(str(part))
        if part in PARTITIONS:
            cls = PARTITIONS[part]
        elif field is not None and isinstance(field.annotation, type):
            cls = field.annotation
    return cls


def _range(section: type[Any], name: str) -> str:
    """Word the bounds of a numeric field, e.g. "must lie in (0, 1]"."""
    fields = section.model_fields
    field = fields.get(name) or next((f for f in fields.values() if name in aliases(f)), None)
    if field is None:
        return ""
    bounds = {
        bound: getattr(item, bound)
        for item in field.metadata
        for bound in ("gt", "ge", "lt", "le")
        if getattr(item, bound, None) is not None
    }
    if not bounds:
        return ""
    low = next((f"{b}{bounds[k]}" for k, b in (("gt", "("), ("ge", "[")) if k in bounds), "(-inf")
    high = next((f"{bounds[k]}{b}" for k, b in (("lt", ")"), ("le", "]")) if k in bounds), "inf)")
    return f"must lie in {low}, {high}"


def _field_names(cls: type[Any]) -> list[str]:
    return [*cls.model_fields, *(a for f in cls.model_fields.values() for a in aliases(f))]
