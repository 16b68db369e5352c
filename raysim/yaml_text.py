"""YAML as settings need it: exponents and booleans as in version 1.2, and no key twice."""

import re
from contextlib import suppress
from typing import Any

import yaml

from raysim.errors import ConfigError


def parse_yaml(text: str, source: str) -> Any:
    """Return the plain values of a YAML text.

    Args:
        text: one YAML document.
        source: how errors name it.

    Raises:
        ConfigError: not valid YAML, or a key stands twice in one section.
    """
    try:
        with suppress(yaml.YAMLError, ValueError):
            return yaml.load(text, Loader=_FastLoader)
        return yaml.load(text, Loader=_Loader)  # it shows the place of what is wrong
    except (yaml.YAMLError, ValueError) as error:  # the latter of a date that there is not
        raise ConfigError(f"{source}: not valid YAML: {error}") from None


class _Rules(yaml.constructor.SafeConstructor, yaml.resolver.Resolver):
    """Of a loader for which 1e-5 is a number, off and no are words, and keys are unique."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class's own name
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a second value for a key, which would silently win."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} stands twice", key_node.start_mark
                )
            seen.add(key_node.value if isinstance(key_node, yaml.ScalarNode) else id(key_node))
        return super().construct_mapping(node, deep)


_Rules.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
_Rules.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|false|True|False|TRUE|FALSE)$"), list("tfTF")
)


class _Loader(_Rules, yaml.SafeLoader):
    """In Python."""


class _FastLoader(_Rules, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """In C where PyYAML has it: a tenth of the time, and messages that show less."""
