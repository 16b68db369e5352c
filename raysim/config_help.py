"""Every key of a config with its default and what it does, from the schema's own docstrings."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import yaml

from raysim.config import RunConfig
from raysim.data.partition_kinds import PARTITIONS
from raysim.settings import Settings, aliases

if TYPE_CHECKING:
    from raysim.method import Method


def config_help(name: str, method: "type[Method]") -> str:
    """Return a YAML text in which each key stands below what it does.

    Args:
        name: of the method, as a config gives it.
        method: whose hyperparameters are told; what is not the default's is in `raysim methods`.
    """
    lines = [
        "# Every key with its default. Give them as YAML (raysim run --config FILE) or on the",
        "# command line (raysim run method.rho=0.5 data.clients=100).",
        f"# Method keys are those of {name}; others: raysim run method=NAME --help-config",
        *_section(RunConfig, "", {"method": method}, {"method.name": name}),
    ]
    return "\n".join(lines) + "\n"


def config_keys(method: "type[Method]") -> list[str]:
    """Return the dotted keys that `config_help` tells of."""
    return [key for key, _ in _leaves(RunConfig, "", {"method": method})]


def _section(
    cls: type[Settings], prefix: str, stands_for: dict[str, Any], given: Mapping[str, str]
) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, field in cls.model_fields.items():
        inner = stands_for.get(name) or _settings_of(field.annotation)
        description = " ".join((field.description or "").split())
        choices = _choices(field.annotation)
        if choices:
            description += f" One of {', '.join(choices)}."
        symbols = [alias for alias in aliases(field) if alias != name]
        if symbols:
            description += f" Also {', '.join(symbols)}."
        if not indent:
            yield ""
        for line in _wrapped(description or (inner.__doc__ or "").split("\n")[0]):
            yield f"{indent}# {line}"
        if name == "partition":
            yield f"{indent}{name}:"
            yield from _partitions(f"{prefix}{name}.")
        elif inner is not None:
            yield f"{indent}{name}:"
            yield from _section(inner, f"{prefix}{name}.", stands_for, given)
        else:
            yield f"{indent}{name}: {given.get(prefix + name) or _value(field)}"


def _partitions(prefix: str) -> Iterator[str]:
    """Tell the keys of the default kind, and what the others have beside as comments."""
    indent = "  " * prefix.count(".")
    first, *others = PARTITIONS.items()
    yield from (f"{indent}# {line}" for line in _wrapped(_summary(first[1])))
    yield from _section(first[1], prefix, {}, {})
    for kind, cls in others:
        yield from (f"{indent}# {line}" for line in _wrapped(f"or kind: {kind}. {_summary(cls)}"))
        for name, field in cls.model_fields.items():
            if name not in first[1].model_fields:
                described = " ".join((field.description or "").split())
                own = f"{name}: {_value(field)}  {described}"
                yield from (f"{indent}#   {line}" for line in _wrapped(own))


def _summary(cls: type[Settings]) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def _choices(annotation: Any) -> list[str]:
    """Return the words that a field takes, if it takes several."""
    words = [str(v) for v in get_args(annotation) if isinstance(v, str)]
    if words and get_origin(annotation) is Literal:
        return words if len(words) > 1 else []
    return next(filter(None, map(_choices, get_args(annotation))), [])


def _leaves(
    cls: type[Settings], prefix: str, stands_for: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    for name, field in cls.model_fields.items():
        inner = stands_for.get(name) or _settings_of(field.annotation)
        if inner is not None:
            yield from _leaves(inner, f"{prefix}{name}.", stands_for)
        else:
            yield f"{prefix}{name}", field.description or ""


def _settings_of(annotation: Any) -> type[Settings] | None:
    """Return the section that an annotation means, if it means one."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, Settings) else None
    return next(filter(None, map(_settings_of, get_args(annotation))), None)


def _value(field: Any) -> str:
    """Return a field's default as YAML; one that must be given is empty."""
    if field.is_required():
        return ""
    default = field.get_default(call_default_factory=True)
    plain = list(default) if isinstance(default, tuple) else default
    if not isinstance(plain, int | float | list | dict | str | None):
        plain = str(plain)
    text = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True)
    return text.strip().removesuffix("...").strip()


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 96)
