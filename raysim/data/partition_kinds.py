"""The kinds of partition that a configuration can ask for, as settings."""

import os
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from raysim.errors import ConfigError
from raysim.settings import Settings

Fraction = Annotated[float, Field(gt=0, le=1)]


class _Dealt(Settings):
    label_dirichlet: PositiveFloat | None = None
    """Concentration of each client's mixture over classes; null for no label skew."""
    min_examples: PositiveInt = 10
    """Training images that every client gets at least."""


class DomainDirichlet(_Dealt):
    """Each client's mixture over domains is a draw from a symmetric Dirichlet distribution."""

    kind: Literal["domain_dirichlet"] = "domain_dirichlet"
    alpha: PositiveFloat = 0.5
    """Concentration: near 0 one domain a client, large the same mixture for all."""


class DomainsPerClient(_Dealt):
    """Each client holds about equal parts of a fixed number of domains."""

    kind: Literal["domains_per_client"] = "domains_per_client"
    domains: PositiveInt = 2
    """Domains that each client holds."""


class SingleDomain(_Dealt):
    """Each client holds one domain; the clients of a domain have consecutive ids.

    With a fraction this is the protocol of FPL and FedHEAL: clients hold small disjoint parts of
    their domain, and most of its training images belong to nobody.
    """

    kind: Literal["single_domain"] = "single_domain"
    counts: dict[str, NonNegativeInt] | None = None
    """Clients of each domain, `data.clients` in all; a domain with none is unseen. Null spreads
    them as evenly as possible."""
    fraction: Fraction | None = None
    """Share of its domain's training images that each client holds, rounded down, the rest unused;
    null deals them all out."""
    all_classes: bool = False
    """Whether images are swapped in so that each client holds every class of its domain; needs
    `fraction`."""

    @model_validator(mode="after")
    def _fraction_fits(self) -> "SingleDomain":
        if self.fraction is not None and self.label_dirichlet is not None:
            raise ConfigError(
                "data.partition: fraction draws images whatever their class, label_dirichlet skews "
                "classes: leave one out"
            )
        if self.all_classes and self.fraction is None:
            raise ConfigError("data.partition.all_classes needs data.partition.fraction: set it")
        return self


class Iid(_Dealt):
    """Each client holds an equal random part of every domain."""

    kind: Literal["iid"] = "iid"


class Heterogeneous(_Dealt):
    """Between complete separation of the domains and the same mixture everywhere.

    Client c expects iid * n_d / M + (1 - iid) * n_d * [d in D_c] / |{c': d in D_c'}| of the n_d
    training images of domain d. Its main domains D_c are one domain if there are clients enough:
    each domain has a client, and each further client goes to the domain with most images a client.
    With fewer clients than domains, the largest domain first, each goes to the client with the
    fewest images so far. Clients differ in size as the formula says.

    Source: Bai, Bagchi and Inouye, "Benchmarking Algorithms for Federated Domain Generalization",
        ICLR 2024, heterogeneous partitioning.
    Deviates: the clients of a domain have consecutive ids, as in the authors' code; expected counts
        are rounded at random instead of giving what is left over to the first clients; a client
        below `min_examples` gets images from others.
    """

    kind: Literal["heterogeneous"] = "heterogeneous"
    iid: Annotated[float, Field(ge=0, le=1)] = 0.0
    """0 for main domains only, 1 for the same mixture everywhere."""


class FromFile(Settings):
    """Who holds which image is read from a CSV file; images that it does not list are unused."""

    kind: Literal["file"] = "file"
    path: Annotated[str, AfterValidator(lambda path: os.path.abspath(os.path.expanduser(path)))]
    """CSV file with the columns image (`<domain>/<name>`), split (train, val or test) and client
    (from 0)."""


DealtPartition = DomainDirichlet | DomainsPerClient | SingleDomain | Iid | Heterogeneous
AnyPartition = DealtPartition | FromFile
PartitionSettings = Annotated[AnyPartition, Field(discriminator="kind")]
PARTITIONS: dict[str, Any] = {c.model_fields["kind"].default: c for c in get_args(AnyPartition)}
"""The kinds of partition by name, the default first."""
