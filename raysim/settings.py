"""The base class of every configuration section and the wording of its errors."""

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError


class Settings(BaseModel):
    """A frozen, typed section: unknown keys are refused, attribute docstrings are descriptions."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _no_boolean_numbers(cls, values: Any) -> Any:
        """Refuse true and false where pydantic would read them as 1 and 0."""
        for key, value in values.items() if isinstance(values, dict) else ():
            names = (n for n, f in cls.model_fields.items() if key == n or key in aliases(f))
            field = cls.model_fields.get(next(names, ""))
            if isinstance(value, bool) and field is not None and field.annotation is not bool:
                message = "true and false mean nothing here"
                raise PydanticCustomError("boolean", message, {"key": key})
        return values


class Named(Settings):
    """A section that is chosen by name."""

    name: str

    @property
    def label(self) -> str:
        """The name as results show it: the class alone if it comes from a file."""
        return self.name.rpartition(":")[2]


def aliases(field: Any) -> list[str]:
    """Return the further names that a pydantic field goes by."""
    alias = field.validation_alias
    return [str(choice) for choice in getattr(alias, "choices", [alias] if alias else [])]


def alias(name: str, *symbols: str) -> Any:
    """Return field metadata that lets a key go by a paper's symbols too."""
    return Field(validation_alias=AliasChoices(name, *symbols))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest known word, or the whole list if none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
