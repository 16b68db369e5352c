"""FedFIP: Fisher-informed pruning for domain-sensitive FL (Lin, Yuan, Xu, Wang, CVPR 2026).

    F_j^(k) = E_x[(dL/dw_j)^2]     Ft_j = sum_k a_k F_j^(k)     F^(g) = sum_i n_i/n Ft_i
    M = top rho of F^(g)           R_i = 1[Ft_i > phi] (1 - M)  M_i = M or R_i            (DSFP)
    V^(k) = F^(k) M / sum F^(k) M  p^(k) <- mu p^(k) + (1 - mu) mean_i V_i^(k)
    L_i = L_task - lambda sum_k log softmax_k'(cos(V^(k), p^(k')) / tau)[k]               (DSR)
    w_j <- sum_i n_i/n w_ij  for j in M, everything else stays where it is                (SA)

| symbol | field | default | from |
|---|---|---|---|
| rho | keep_ratio | 0.5 | paper sweeps 0.2 ... 0.8; a share that is KEPT |
| phi | reactivation_threshold | 1.0 | not in the paper; on importances over their layer's mean |
| mu | prototype_momentum | 0.5 | paper: 0.4 or 0.5 |
| lambda | contrastive_weight | 0.01 | paper: 0.005 or 0.01 |
| tau | contrastive_temperature | 1 | paper: none |
| - | dsfp, dsr, sa, mask | true, fisher | paper; other values are its ablation, and controls |
| - | contrastive_gradient | surrogate | paper: no second-order operations |
| - | scope, fisher, fisher_point | inner, gate, masked | sliceable, comparable, revivable |
| - | fisher_samples, ranking, mask_every, min_keep, warmup_rounds | 32, raw, 5, .05, 5 | measured |
| - | reactivation | private | measured: joint, the paper's, costs half a point |
| - | reactivation_scale, reactivation_cap, private_lr | layer_mean, 0.1, 0.01 | chosen with phi |

Up: C importances (when a mask is formed), the shared slice, a structure vector a domain. Down: the
shared slice, prototypes, the mask. Private: reactivated channels, importances by domain.

Deviates: the paper was read in a digest. Importances are sampled, those of channel gates, and taken
at the masked point, where a pruned unit keeps a non-zero one and can return. The mask has an exact
size and a reserve in every layer; preset `literal` undoes all but that size and one unit a layer.
The dense model is broadcast, with pruned units as last shared; the shared slice alone is counted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional

from raysim.aggregation import Partial, Weighted
from raysim.channels import Mask, layer_mean_scores, num_units, same_profile, select_units
from raysim.fisher import batch_importance, domain_means, sampled_rows, scored_loss, set_gates
from raysim.messages import Costs
from raysim.method import ClientView, Method, ServerState, ServerView, Update, as_entry, weighted
from raysim.models import ChannelModel
from raysim.private_units import fit_private, private_state, with_private
from raysim.seeds import Stream, generator
from raysim.settings import alias
from raysim.structures import Structure, covered_means, filter_magnitudes
from raysim.tensors import Array, Arrays, load_arrays, prefixed, under
from raysim.training import Batch
from raysim.watched import watched_importance, watched_mask

Floats = NDArray[np.float64]


class FedFIP(Method):
    """Shared Fisher mask, private reactivated channels, prototypes of channel importance."""

    title: ClassVar[str] = "FedFIP"
    paper: ClassVar[str] = "Lin et al., CVPR 2026"
    shared: ClassVar[str] = "kept channels, importances"
    private: ClassVar[str] = "reactivated channels"
    phases: ClassVar[tuple[str, ...]] = ("importance", "fit")

    name: str = "fedfip"
    keep_ratio: Annotated[float, Field(gt=0, le=1), alias("keep_ratio", "rho")] = 0.5
    """Share of all units that the global mask keeps."""
    reactivation_threshold: Annotated[
        float, Field(ge=0), alias("reactivation_threshold", "phi")
    ] = 1.0
    """A client reactivates pruned units whose importance exceeds this."""
    prototype_momentum: Annotated[float, Field(ge=0, lt=1), alias("prototype_momentum", "mu")] = 0.5
    """Share of the old prototype in the new one."""
    contrastive_weight: Annotated[float, Field(ge=0), alias("contrastive_weight", "lambda")] = 0.01
    """Weight of the structural contrastive term."""
    dsfp: bool = True
    """Prune and reactivate; off keeps every unit."""
    dsr: bool = True
    """Domain-sensitive regularisation; off is contrastive_weight=0."""
    sa: bool = True
    """Average shared units only; off averages whatever a client has trained."""
    scope: Literal["inner", "all"] = "inner"
    """Units: first convolutions of blocks, sliced; or every output channel, masked."""
    fisher: Literal["gate", "weight"] = "gate"
    """Importance of a unit's gate, or the mean over its filter's weights."""
    fisher_point: Literal["masked", "dense"] = "masked"
    """Where importance is measured: with the current mask, or with all units on."""
    fisher_samples: PositiveInt = 32
    """Examples measured for each client and domain."""
    mask: Literal["fisher", "random", "layerwise_random", "magnitude"] = "fisher"
    """What ranks units; the others are controls (layerwise: as many in each layer as by fisher)."""
    ranking: Literal["raw", "layer_mean"] = "raw"
    """Whether units compete by raw scores or by scores over their layer's mean."""
    min_keep: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of each layer's units that is kept whatever their rank (at least one unit)."""
    mask_every: PositiveInt = 5
    """Rounds between two masks."""
    warmup_rounds: NonNegativeInt = 5
    """Dense rounds before the first mask."""
    reactivation: Literal["private", "joint", "off"] = "private"
    """Train reactivated units after the shared fit, with received shared units frozen; or in it."""
    reactivation_scale: Literal["layer_mean", "raw"] = "layer_mean"
    """What reactivation_threshold is compared with."""
    reactivation_cap: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Most units a client reactivates, as a share of all units."""
    private_lr: Annotated[float, Field(gt=0)] = 0.01
    """Learning rate of the private step."""
    contrastive_temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the contrastive term."""
    contrastive_gradient: Literal["surrogate", "exact"] = "surrogate"
    """First-order gradient through activations, or the exact double backward."""

    def forms_mask(self, round_: int) -> bool:
        """Say whether a (0-based) round measures importance and forms a mask."""
        since = round_ - self.warmup_rounds
        return (self.dsfp or self.regularises) and since >= 0 and since % self.mask_every == 0

    @property
    def regularises(self) -> bool:
        """Whether the contrastive term takes part."""
        return self.dsr and self.contrastive_weight > 0

    def remarks(self, rounds: int) -> Sequence[str]:
        """Say so if the run ends before its first mask."""
        late = rounds <= self.warmup_rounds and (self.dsfp or self.regularises)
        return [f"no mask before round {self.warmup_rounds + 1} (method.warmup_rounds)"] * late

    def active_phases(self, round_: int) -> tuple[str, ...]:
        """Measure importance only in rounds that form a mask."""
        return self.phases if self.forms_mask(round_) else ("fit",)

    def _structure(self, model: ChannelModel, mask_C: Mask) -> Structure:
        return Structure(model.channel_groups(self.scope), mask_C, sliced=self.scope == "inner")

    # Client ----------------------------------------------------------------------------------

    def client_step(self, client: ClientView) -> Update:
        """Measure importance, or train the personal structure."""
        shared = self._structure(client.model, client.message["mask"])
        return (self._measure if client.phase == "importance" else self._train)(client, shared)

    def _measure(self, client: ClientView, shared: Structure) -> Update:
        load_arrays(client.model, client.weights)
        mask_C = shared.mask_C if self.fisher_point == "masked" else None
        set_gates(client.model, shared.groups, mask_C)
        rng = client.generator(Stream.FISHER_SAMPLES, client.client)
        batch = client.shard.batch(sampled_rows(client.shard.domains, self.fisher_samples, rng))
        size = client.local.batch_size
        importance_DC = batch_importance(
            client.model, batch, client.num_domains, shared.groups, self.fisher, size
        )
        counts_D = client.shard.counts(client.num_domains)
        uploaded_C = domain_weighted(importance_DC, counts_D).astype(np.float32)
        return Update(
            sums={"importance": Weighted(uploaded_C, client.num_examples)},
            state=client.state | {"importance": importance_DC},
            watched=watched_importance(importance_DC, counts_D),
        )

    def _train(self, client: ClientView, shared: Structure) -> Update:
        whole, received = self._personal(client, shared)
        trained = whole if self.reactivation == "joint" else shared
        trained.load(client.model, received)
        contrastive: list[float] = []
        result = client.fit(self._loss(client, shared, trained, contrastive))
        dense = own = trained.read(client.model, received)
        num_reactivated = whole.num_units - shared.num_units
        if self.reactivation == "private" and num_reactivated:
            # The personal model is made of the shared units as received, not as trained here.
            loss = self.objective(client)
            own = fit_private(client, loss, received, shared, whole, self.private_lr)
        metrics = {"loss": result.loss, "reactivated": float(num_reactivated)}
        metrics |= {"contrastive": float(np.mean(contrastive))} if contrastive else {}
        sent = prefixed("shared", shared.take(dense)) if self.sa else trained.covered(dense)
        measured = {name: a for name, a in client.state.items() if name == "importance"}
        return Update(
            sums=weighted(sent, client.num_examples) | self._vectors(client, shared),
            state=private_state(own, client.state, shared, whole) | measured,
            metrics=metrics,
        )

    def _personal(self, client: ClientView, shared: Structure) -> tuple[Structure, Arrays]:
        """Return shared and reactivated units, and what they start from: private units put back.

        In the private step a unit without a copy starts silent: what it once gave no longer fits.
        """
        whole = shared.with_units(self._reactivated(client, shared))
        silent = self.reactivation == "private"
        return whole, with_private(client.weights, client.state, shared, whole, silent=silent)

    def _reactivated(self, client: ClientView, shared: Structure) -> Mask:
        importance_DC = client.state.get("importance")
        if importance_DC is None or not self.dsfp or self.reactivation == "off":
            return np.zeros_like(shared.mask_C)
        score_C = domain_weighted(importance_DC, client.shard.counts(client.num_domains))
        if self.reactivation_scale == "layer_mean":
            score_C = layer_mean_scores(score_C, shared.groups)
        cap = int(self.reactivation_cap * len(score_C))
        return reactivated_units(score_C, shared.mask_C, self.reactivation_threshold, cap)

    def _loss(
        self, client: ClientView, shared: Structure, trained: Structure, contrastive: list[float]
    ) -> Callable[[Batch], Tensor]:
        known_D = client.message["known"]
        if not self.regularises or known_D.sum() < 2:
            return self.objective(client)
        device = client.shard.labels.device
        domains = np.flatnonzero(known_D).tolist()
        prototype_KL = client.message["prototypes"][np.ix_(known_D, shared.mask_C)]
        known_KL = torch.tensor(prototype_KL, dtype=torch.float32, device=device)
        is_shared = torch.tensor(trained.inside(shared.mask_C), device=device)

        def loss(batch: Batch) -> Tensor:
            task, score_BC = scored_loss(
                client.model, batch, shared.groups, self.fisher, self.contrastive_gradient
            )
            score_BL = score_BC.float()[:, is_shared]
            means = domain_means(score_BL, batch.domains, domains, at_least=2)
            if not means:
                return task / len(batch)
            vector_NL = torch.stack([structure_vector(mean_L) for mean_L in means.values()])
            own = [domains.index(domain) for domain in means]
            term = contrastive_loss(vector_NL, known_KL, own, self.contrastive_temperature)
            contrastive.append(float(term.detach()))
            return task / len(batch) + self.contrastive_weight * term

        return loss

    def _vectors(self, client: ClientView, shared: Structure) -> dict[str, Weighted]:
        measured = self.forms_mask(client.round) and "importance" in client.state
        if not self.regularises or not measured:
            return {}
        counts_D = client.shard.counts(client.num_domains)
        sums = {}
        for domain in np.flatnonzero(counts_D):
            shared_L = client.state["importance"][domain][shared.mask_C]
            if shared_L.sum() > 0:
                vector_L = structure_vector(shared_L).astype(np.float32)
                sums[f"structure/{domain}"] = Weighted(vector_L, int(counts_D[domain]))
        return sums

    def load_personal(self, client: ClientView) -> bool:
        """Load the global mask's units and the client's own reactivated ones."""
        if not self.dsfp or self.reactivation == "off":
            return False
        shared = self._structure(client.model, client.message["mask"])
        whole, received = self._personal(client, shared)
        whole.load(client.model, received)
        return True

    # Server ----------------------------------------------------------------------------------

    def init_server(self, server: ServerView) -> Arrays:
        """Start with every unit shared and no prototype."""
        groups = server.model.channel_groups(self.scope)
        total = num_units(groups)
        if self.dsfp:  # what no mask can keep is refused before the warm-up
            select_units(np.zeros(total), groups, self.keep_ratio, max(self.min_keep, 1e-9))
        return {
            "mask": np.ones(total, np.bool_),
            "churn": np.zeros(1),
            "prototypes": np.zeros((server.num_domains, total)),
            "known": np.zeros(server.num_domains, np.bool_),
        }

    def broadcast(self, server: ServerView) -> Arrays:
        """Send the mask, and for training the prototypes."""
        names = ("mask", "prototypes", "known") if server.phase == "fit" else ("mask",)
        return {name: server.memory[name] for name in names}

    def aggregate(self, server: ServerView, partial: Partial) -> ServerState:
        """Form the mask from importances, or average shared units and structure vectors."""
        shared = self._structure(server.model, server.memory["mask"])
        if server.phase == "importance":
            memory = self._new_mask(server, shared, partial.sums["importance"].mean())
            watched = watched_mask(shared.groups, memory.get("mask", shared.mask_C))
            return ServerState(model=server.weights, memory=server.memory | memory, watched=watched)
        model = self._average(server.weights, partial, shared)
        names = [name for name in partial.sums if name.startswith("structure/")]
        memory = self._learn(server, under("structure", partial.means(names)))
        watched = {name: array for name, array in memory.items() if names}
        return ServerState(model=model, memory=server.memory | memory, watched=watched)

    def _new_mask(self, server: ServerView, shared: Structure, score_C: Floats) -> Arrays:
        if not self.dsfp:
            return {}
        groups, old_C = shared.groups, shared.mask_C
        random_C = generator(server.seed, Stream.MASK).random(len(score_C))
        if self.mask == "random":
            score_C = random_C
        elif self.mask == "magnitude":
            score_C = filter_magnitudes(server.weights, groups)
        if self.ranking == "layer_mean":
            score_C = layer_mean_scores(score_C, groups)
        mask_C = select_units(score_C, groups, self.keep_ratio, max(self.min_keep, 1e-9))
        if self.mask == "layerwise_random":
            mask_C = same_profile(random_C, groups, mask_C)
        prototype_DC, known_D = project(server.memory["prototypes"], mask_C)
        churn = np.array([float((mask_C & ~old_C).sum()) / float(mask_C.sum())])
        known_D &= server.memory["known"]
        return {"mask": mask_C, "prototypes": prototype_DC, "known": known_D, "churn": churn}

    def _average(self, old: Arrays, partial: Partial, shared: Structure) -> Arrays:
        if not self.sa:
            return covered_means(old, {name: s.total() for name, s in partial.sums.items()})
        means = under("shared", partial.means(n for n in partial.sums if n.startswith("shared/")))
        return shared.put(old, {entry: as_entry(mean, old[entry]) for entry, mean in means.items()})

    def _learn(self, server: ServerView, vectors: Arrays) -> Arrays:
        prototype_DC = server.memory["prototypes"].copy()
        known_D = server.memory["known"].copy()
        for name, vector_L in vectors.items():
            domain = int(name)
            new_C = np.zeros(prototype_DC.shape[1])
            new_C[server.memory["mask"]] = vector_L
            old_C = prototype_DC[domain] if known_D[domain] else None
            prototype_DC[domain] = moved_prototype(old_C, new_C, self.prototype_momentum)
            known_D[domain] = True
        return {"prototypes": prototype_DC, "known": known_D}

    def load_global(self, model: ChannelModel, weights: Arrays, message: Arrays) -> None:
        """Load the units of the global mask."""
        self._structure(model, message["mask"]).load(model, weights)

    def bytes_down(self, server: ServerView, message: Arrays) -> int:
        """Count the shared slice once a round, the mask's bits and the prototypes."""
        shared = self._structure(server.model, server.memory["mask"])
        first = server.phase == self.active_phases(server.round)[0]
        num_shared = shared.num_scalars(server.weights) if first else 0
        num_known = int(server.memory["known"].sum()) * (server.phase == "fit" and self.regularises)
        mask_bytes = (len(shared.mask_C) + 7) // 8
        return 4 * num_shared + mask_bytes + 4 * num_known * shared.num_units

    def costs(self, server: ServerView, image_size: int) -> Costs:
        """Count parameters and multiply-adds by the mask's filters, and of the sliced model."""
        shared = self._structure(server.model, server.memory["mask"])
        return shared.costs(server.model, server.weights, image_size)

    def describe(self, server: ServerView) -> Mapping[str, float]:
        """Return kept units, in all and by layer, and the churn of the latest mask."""
        shared = self._structure(server.model, server.memory["mask"])
        layers = {f"kept_units/{name}": float(size) for name, size in shared.sizes().items()}
        churn = float(server.memory["churn"][0])
        return {"kept_units": float(shared.num_units), "churn": churn} | layers


# The paper's equations, in its order ----------------------------------------------------------
# Suffixes: C units, D domains, K known prototypes, L shared units, B batch.


def domain_weighted(importance_DC: Floats, counts_D: Array) -> Floats:
    """Return Ft [C] = sum_k a_k F^(k), a_k = n_k / n; what a client uploads."""
    return np.asarray(counts_D / counts_D.sum() @ importance_DC, np.float64)


def reactivated_units(score_C: Floats, mask_C: Mask, threshold: float, cap: int) -> Mask:
    """Return R [C] = 1[score > phi] (1 - M), the `cap` highest at most, ties to the lower index."""
    candidates = np.flatnonzero((score_C > threshold) & ~mask_C)
    best = candidates[np.argsort(-score_C[candidates], kind="stable")][:cap]
    reactivated_C = np.zeros_like(mask_C)
    reactivated_C[best] = True
    return reactivated_C


def structure_vector(shared_L: Any) -> Any:
    """Return V [L], importances of shared units normalised to sum 1 (NumPy or torch)."""
    return shared_L / shared_L.sum()


def moved_prototype(old_C: Floats | None, new_C: Floats, momentum: float) -> Floats:
    """Return p <- mu p + (1 - mu) pt; a domain seen for the first time takes pt itself."""
    return new_C if old_C is None else momentum * old_C + (1 - momentum) * new_C


def project(prototype_DC: Floats, mask_C: Mask) -> tuple[Floats, Mask]:
    """Restrict prototypes to a new mask; returns them and which still hold anything."""
    kept_DC = prototype_DC * mask_C
    mass_D = kept_DC.sum(1)
    return kept_DC / np.where(mass_D > 0, mass_D, 1.0)[:, None], mass_D > 0


def contrastive_loss(
    vector_NL: Tensor, prototype_KL: Tensor, own: list[int], temperature: float
) -> Tensor:
    """Return L_con = -sum_n log softmax_k(cos(V_n, p_k) / tau)[own_n].

    Args:
        vector_NL: structure vectors of N domains of a client.
        prototype_KL: prototypes of the K known domains, constants.
        own: row of each vector's own prototype.
        temperature: tau > 0; the paper has 1.
    """
    cosine_NK = functional.cosine_similarity(vector_NL[:, None], prototype_KL[None], dim=2)
    target = torch.tensor(own, device=vector_NL.device)
    return functional.cross_entropy(cosine_NK / temperature, target, reduction="sum")
