"""Local: every client trains its own model and nothing is exchanged: no federation.

    min_{w_i}  F_i(w_i)                   up: nothing    down: nothing    private: the whole model

Clients start from one initial model, which the run's seed gives to all of them. In a round the
drawn clients train. What is tested as "personal" is the method's result; the "global" model is the
untouched initial one, at chance, since there is nothing to average.

Deviates: no early stopping by a client's validation accuracy as in the FLGo baseline.
"""

from typing import ClassVar

from raysim.method import Method
from raysim.models import ChannelModel


class Local(Method):
    """All of the model is private."""

    title: ClassVar[str] = "Local"
    paper: ClassVar[str] = ""
    shared: ClassVar[str] = "nothing"
    private: ClassVar[str] = "the whole model"

    name: str = "local"

    def is_private(self, entry: str, model: ChannelModel) -> bool:
        """Keep everything."""
        return True
