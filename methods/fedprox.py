"""FedProx: FedAvg with a proximal term (Li et al., MLSys 2020).

    min_w  F_i(w) + mu / 2 ||w - w_t||^2      on each client, w_t the received model

| symbol | field | default | from |
|---|---|---|---|
| mu | proximal_weight | 0.01 | among the paper's candidates 0.001, 0.01, 0.1, 1 |

Up: weights, n_i. Down: weights. Private: nothing. mu = 0 is FedAvg bit for bit.

Deviates: a fixed number of epochs stands for the paper's inexact solutions; stragglers are not
simulated. The term runs over parameters, not over BatchNorm's statistics. It is added as its
gradient, so the recorded loss is the task's.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

from pydantic import Field

from raysim.gradients import pull
from raysim.method import Averaging, ClientView
from raysim.settings import alias


class FedProx(Averaging):
    """Local training is held near the received model."""

    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    shared: ClassVar[str] = "the whole model"
    private: ClassVar[str] = "nothing"

    name: str = "fedprox"
    proximal_weight: Annotated[float, Field(ge=0), alias("proximal_weight", "mu")] = 0.01
    """Strength of the pull towards the received model."""

    def before_step(self, client: ClientView) -> Callable[[], None] | None:
        """Add mu (w - w_t) to the gradients."""
        return pull(client.model, client.weights, self.proximal_weight)
