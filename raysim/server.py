"""The server: the one writer of the global model and of the method's memory."""

from collections.abc import Iterable

import numpy as np
import torch

from raysim.aggregation import Partial
from raysim.config import RunConfig
from raysim.errors import telling
from raysim.messages import Costs
from raysim.method import ServerState, ServerView
from raysim.models import ChannelModel
from raysim.skeleton import build_skeleton, method_of, refresh
from raysim.tensors import Arrays, digest, state_arrays


class Server:
    """Holds the committed server state of the last complete round and the state in the making."""

    def __init__(self, config: RunConfig, num_classes: int, num_domains: int) -> None:
        """Initialise the model and the method's memory.

        Args:
            config: the run.
            num_classes: outputs of the head.
            num_domains: domains of the data set.
        """
        torch.set_num_threads(config.local.threads)
        self._config = config
        self._method = method_of(config)
        self._num_domains = num_domains
        with telling("the server could not be built"):
            self._model = build_skeleton(config, num_classes, torch.device("cpu"))
            blank = ServerState(model=state_arrays(self._model))
            memory = self._method.init_server(self._view(0, self._method.phases[0], blank))
        self._state = self._next = ServerState(model=blank.model, memory=memory)
        self.steps = 0
        """Partial results taken in; grows while the server is at work."""

    def weights(self) -> Arrays:
        """Return the committed global model."""
        return self._state.model

    def broadcast(self, round_: int, phase: str) -> tuple[Arrays, int]:
        """Return what a phase sends beside the weights, and all its bytes to one client.

        Raises:
            RunError: the method raised.
        """
        view = self._view(round_, phase, self._next)
        with telling(_where(round_, phase)):
            message = self._method.broadcast(view)
            down = 0 if phase == "evaluate" else self._method.bytes_down(view, message)
        return message, down

    def aggregate(
        self, round_: int, phase: str, partials: Iterable[Partial]
    ) -> tuple[dict[str, float], Arrays]:
        """Take a phase's partial results into the state in the making.

        It stays as it is if every update was refused.

        Returns:
            The method's figures after the phase, and the arrays that it shows.

        Raises:
            RunError: the method raised.
        """
        total = Partial()
        for partial in partials:
            total.merge(partial)
            self.steps += 1
        with telling(_where(round_, phase)):
            if total.sums or total.gathered or not total.refused:
                self._next = self._method.aggregate(self._view(round_, phase, self._next), total)
            figures = dict(self._method.describe(self._view(round_, phase, self._next)))
        means = {name: part.mean().astype(np.float32) for name, part in total.watched.items()}
        return figures, means | dict(self._next.watched)

    def staged(self) -> tuple[Arrays, Arrays]:
        """Return model and memory in the making."""
        return self._next.model, self._next.memory

    def commit(self) -> None:
        """Make the state in the making the committed one."""
        self._state = self._next

    def costs(self) -> Costs:
        """Return size and work of the committed global model as it is evaluated."""
        view = self._view(0, "evaluate", self._state)
        with telling("the method's costs could not be counted"):
            return self._method.costs(view, self._config.data.image_size)

    def global_model(self, round_: int) -> ChannelModel:
        """Return the skeleton, loaded with the committed global model as it is evaluated."""
        message, _ = self.broadcast(round_, "evaluate")
        refresh(self._model)
        self._method.load_global(self._model, self._state.model, message)
        return self._model

    def digest(self) -> str:
        """Return the sha256 of the committed global model."""
        return digest(self._state.model)

    def snapshot(self) -> tuple[Arrays, Arrays]:
        """Return the committed model and memory."""
        return self._state.model, self._state.memory

    def restore(self, model: Arrays, memory: Arrays) -> None:
        """Replace the state."""
        self._state = self._next = ServerState(model=model, memory=memory)

    def _view(self, round_: int, phase: str, state: ServerState) -> ServerView:
        refresh(self._model)
        return ServerView(
            seed=self._config.seed,
            round=round_,
            phase=phase,
            model=self._model,
            weights=state.model,
            num_domains=self._num_domains,
            num_clients=self._config.data.clients,
            memory=state.memory,
        )


def _where(round_: int, phase: str) -> str:
    return f"the server failed in round {round_ + 1}, phase {phase!r}"
