"""The `data` section of a run's configuration."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt

from raysim.data.findings import Policy, resolve_policies
from raysim.data.partition_kinds import DomainDirichlet, PartitionSettings
from raysim.data.places import check_text, is_uri
from raysim.errors import ConfigError
from raysim.settings import Settings

Share = Annotated[float, Field(ge=0, lt=1)]


def _absolute(root: str) -> str:
    """Make a path mean the same in every working directory; URIs do already."""
    if not root:
        raise ConfigError("data.root: is empty: give a folder, or null for none")
    check_text(root)
    return root if is_uri(root) else os.path.abspath(os.path.expanduser(root))


def _as_list(names: object) -> object:
    """Take one name for a list of one."""
    return (names,) if isinstance(names, str) else names


def _of_known_kinds(policy: dict[str, Policy]) -> dict[str, Policy]:
    try:
        resolve_policies(policy)
    except ConfigError as error:
        raise ConfigError(f"data.{error}") from None
    return policy


class SplitSettings(Settings):
    """Which images train, which validate and which test; images of equal pixels stay together."""

    kind: Literal["auto", "official", "stratified", "holdout", "mod10"] = "auto"
    """`official`: as the source has it; `stratified`: the same shares of every class; `holdout`:
    shares of the domain at random (FDSE: test 0.1, val 0.1); `mod10`: the last two of every ten
    images test (FedHEAL, FPL); `auto`: official where a domain has it, else stratified."""
    test: Share = 0.2
    """Share of a domain's images that test, where the rule cuts it."""
    val: Share = 0.0
    """Share held out for validation: of a domain's images where the rule cuts the domain, of its
    training images where the source or `mod10` says what tests."""
    use: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the training images, the same of every class, that clients hold in all; the others
    are in no split."""
    seed: NonNegativeInt | None = 0
    """What random cuts derive from; null is the run's seed."""


class AugmentSettings(Settings):
    """Random changes to training images, drawn anew in each epoch."""

    crop_padding: Annotated[int, Field(ge=0, le=64)] = 0
    """Pixels of black border that a crop of the old size is taken from; 0 does not crop."""
    flip: bool = False
    """Mirror every other image, at random."""

    @property
    def on(self) -> bool:
        """Whether images change at all."""
        return self.crop_padding > 0 or self.flip


class DataSettings(Settings):
    """Which images, cut how into clients."""

    name: str = "digits_mini"
    """Data set; `raysim data list` names them."""
    root: Annotated[str, AfterValidator(_absolute)] | None = None
    """Folder or URI of prepared data, or folder of the data as people have it; embedded data sets
    need none."""
    classes: str | tuple[str, ...] | None = None
    """Classes to read, in the order of their labels, or the name of a subset; null takes all."""
    cache: Path | None = None
    """Where data that is not prepared yet is prepared; null is the user's cache folder."""
    policy: Annotated[dict[str, Policy], AfterValidator(_of_known_kinds)] = Field(
        default_factory=dict
    )
    """What happens to findings of a kind while preparing; `raysim data kinds` names them."""
    clients: PositiveInt = 20
    """Number of clients."""
    partition: PartitionSettings = DomainDirichlet()
    """How examples are dealt to clients."""
    unseen: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()
    """Domains that no client trains on; each is tested as a new client."""
    split: SplitSettings = SplitSettings()
    """How a domain's images are split."""
    image_size: Annotated[int, Field(ge=8, le=512)] = 32
    """Side of the square images in pixels."""
    normalize: Literal["half", "imagenet", "none"] = "half"
    """Mean and standard deviation that images are normalised by: 0.5, ImageNet's, or 0 and 1."""
    augment: AugmentSettings = AugmentSettings()
    """Random changes to training images."""
