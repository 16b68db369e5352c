"""Ditto: personal models held near the global one (Li, Hu, Beirami, Smith, ICML 2021).

    min_{v_i}  F_i(v_i) + lambda / 2 ||v_i - w*||^2      w* = argmin_w  sum_i n_i / n * F_i(w)

Every round each client trains the received model w_t as FedAvg does, and its own v_i, held near
w_t, by as many steps on the same batches. Up: weights, n_i. Down: weights. Private: v_i with
BatchNorm statistics of its own, under "personal/...".

| symbol | field | default | from |
|---|---|---|---|
| lambda | personal_weight | 0.1 | authors try 0.1, 1, 2; 1 is worse on digits_mini |

The global track is FedAvg bit for bit for any lambda. lambda = 0 makes v_i the model of `local`
bit for bit if all clients take part in every round. Tested are v_i as "personal" and w as "global".

Deviates: the global track weighs by examples, as FedAvg does here (the authors draw clients by
size and weigh them equally). The two tracks run one after the other, not step by step in turn:
they do not touch each other within a round. v_i starts from the first model that client i
receives, as in FLGo; the authors start all from the initial model, which is the same if all take
part. The choice of lambda per client by validation loss is left out.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from raysim.gradients import pull
from raysim.method import Averaging, ClientView, Update
from raysim.settings import alias
from raysim.tensors import load_arrays, prefixed, state_arrays, under


class Ditto(Averaging):
    """FedAvg beside regularised personal models."""

    title: ClassVar[str] = "Ditto"
    paper: ClassVar[str] = "Li et al., ICML 2021"
    shared: ClassVar[str] = "the whole model"
    private: ClassVar[str] = "a personal model"

    name: str = "ditto"
    personal_weight: Annotated[float, Field(ge=0), alias("personal_weight", "lambda")] = 0.1
    """Strength of the pull of the global model on personal ones; 0 trains them alone."""

    def client_step(self, client: ClientView) -> Update:
        """Train the received model, then the personal one."""
        update = super().client_step(client)
        self.load_personal(client)
        result = client.fit(  # FedAvg's batches, on purpose
            self.objective(client),
            before_step=pull(client.model, client.weights, self.personal_weight),
        )
        personal = prefixed("personal", state_arrays(client.model))
        return replace(
            update,
            state=(update.state or {}) | personal,
            metrics={**update.metrics, "personal_loss": result.loss},
        )

    def load_personal(self, client: ClientView) -> bool:
        """Load v_i; before the client's first round that is the received model."""
        load_arrays(client.model, under("personal", client.state) or client.weights)
        return True
