"""What is wrong, or worth knowing, about a data set's files: kinds, policies and the report.

A policy says what happens to what was found: `error` stops before anything is written, `skip`
leaves the images out, `keep` takes them (converted or corrected as the kind says).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from typing_extensions import TypedDict  # typing's own is not enough for pydantic before 3.12

from raysim.errors import ConfigError
from raysim.settings import did_you_mean

Policy = Literal["error", "skip", "keep"]
POLICIES: tuple[Policy, ...] = ("error", "skip", "keep")
HAPPENED: Mapping[Policy, str] = {"error": "stopped", "skip": "left out", "keep": "taken"}
"""What a policy has done to what was found."""
NAMES_SHOWN = 20
"""File names that a report lists of each kind."""
_NAMES_IN_A_LINE = 3


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finding.

    Attributes:
        policy: what happens unless the user says otherwise.
        meaning: what was found, in a few words that follow a count.
        allowed: the policies that make sense.
    """

    policy: Policy
    meaning: str
    allowed: tuple[Policy, ...] = POLICIES


class Found(TypedDict):
    """What was found of one kind, as reports and manifests hold it."""

    count: int
    policy: Policy
    meaning: str
    names: list[str]


_LOST: tuple[Policy, ...] = ("error", "skip")
KINDS: Mapping[str, Kind] = {
    "hidden": Kind("skip", "hidden or system files (.DS_Store, Thumbs.db, __MACOSX)", _LOST),
    "other_file": Kind("skip", "files that are no images by their extension", _LOST),
    "symlink": Kind("keep", "symbolic links inside the root"),
    "outside_root": Kind("error", "paths that leave the root"),
    "link_loop": Kind("error", "symbolic links that lead back to a folder above", _LOST),
    "missing_file": Kind("error", "files that a list names and that are not there", _LOST),
    "empty_file": Kind("error", "images of zero bytes", _LOST),
    "archive": Kind("error", "archives or documents named like images", _LOST),
    "unreadable": Kind("error", "images that cannot be decoded", _LOST),
    "truncated": Kind("error", "images that end too early", _LOST),
    "bomb": Kind("error", "images of more pixels than is safe to decode", _LOST),
    "wrong_extension": Kind("keep", "images of another format than their extension says"),
    "gray": Kind("keep", "gray images, made RGB"),
    "palette": Kind("keep", "palette images, made RGB"),
    "alpha": Kind("keep", "images with transparency, made RGB on black"),
    "cmyk": Kind("keep", "CMYK images, made RGB"),
    "deep": Kind("keep", "images of 16 bits or more a channel, scaled to 8"),
    "rotated": Kind("keep", "images turned upright as their EXIF orientation says"),
    "non_ascii": Kind("keep", "names with characters outside ASCII, or spaces"),
    "label_range": Kind("keep", "labels that did not start at 0, renumbered", ("error", "keep")),
    "class_spelling": Kind(
        "error", "class names that differ by case or spaces only, taken as one", ("error", "keep")
    ),
    "empty_class": Kind("skip", "class folders without an image in any domain", _LOST),
    "missing_class": Kind("keep", "classes without an image in a domain", ("error", "keep")),
    "empty_domain": Kind("error", "domains without an image", _LOST),
    "no_split": Kind("keep", "images in no part of their domain's official split, unused by it"),
    "duplicate": Kind("keep", "images with the pixels of another one in their domain"),
    "duplicate_across_splits": Kind("keep", "training images with the pixels of a test image"),
    "label_conflict": Kind("keep", "images with the pixels of one of another class"),
}


@dataclass
class Findings:
    """Findings by kind: how many, and the names of the first ones in order of reading.

    Attributes:
        counts: how many of each kind.
        names: the first `NAMES_SHOWN` names of each kind, with a detail where there is one.
    """

    counts: dict[str, int] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, name: str, detail: str = "") -> None:
        """Count one finding.

        Args:
            kind: one of `KINDS`.
            name: the file, folder, class or domain, relative to the root.
            detail: what was found there, in a few words.
        """
        self._add(kind, 1, [f"{name} ({detail})" if detail else name])

    def merge(self, other: "Findings") -> None:
        """Add what another one holds, after what is here."""
        for kind, count in other.counts.items():
            self._add(kind, count, other.names[kind])

    def _add(self, kind: str, count: int, names: list[str]) -> None:
        if kind not in KINDS:
            raise KeyError(kind)
        self.counts[kind] = self.counts.get(kind, 0) + count
        shown = self.names.setdefault(kind, [])
        shown += names[: NAMES_SHOWN - len(shown)]

    def errors(self, policies: Mapping[str, Policy]) -> list[str]:
        """Return the kinds that were found and that the policies do not let pass."""
        return [kind for kind in KINDS if kind in self.counts and policies[kind] == "error"]

    def as_json(self, policies: Mapping[str, Policy]) -> dict[str, Found]:
        """Return count, policy, meaning and first names of each kind that was found."""
        return {
            kind: {
                "count": self.counts[kind],
                "policy": policies[kind],
                "meaning": KINDS[kind].meaning,
                "names": self.names[kind],
            }
            for kind in KINDS
            if kind in self.counts
        }


def first_names(names: Sequence[str], count: int) -> str:
    """Return a few names of one kind of finding in one line.

    Args:
        names: the first ones, as `Findings` and `Findings.as_json` hold them.
        count: how many were found in all.
    """
    more = ", ..." if count > _NAMES_IN_A_LINE else ""
    return ", ".join(names[:_NAMES_IN_A_LINE]) + more


def policy_option(kind: str, policy: Policy) -> str:
    """Return what a user writes to choose a policy, in the commands on data and in a run."""
    return f"--policy {kind}={policy} (data.policy.{kind}={policy} for a run)"


def resolve_policies(chosen: Mapping[str, str]) -> dict[str, Policy]:
    """Return every kind's policy.

    Args:
        chosen: the policies that the user sets, by kind.

    Raises:
        ConfigError: an unknown kind, or a policy that makes no sense for it.
    """
    policies = {kind: known.policy for kind, known in KINDS.items()}
    for kind, policy in chosen.items():
        if kind not in KINDS:
            raise ConfigError(f"policy: no kind of finding {kind!r}{did_you_mean(kind, KINDS)}")
        matching = [allowed for allowed in KINDS[kind].allowed if allowed == policy]
        if not matching:
            choice = " or ".join(KINDS[kind].allowed)
            raise ConfigError(f"policy: {kind}={policy}: must be {choice}")
        policies[kind] = matching[0]
    return policies
