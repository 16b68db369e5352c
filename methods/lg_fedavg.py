"""LG-FedAvg: local representations under a global head (Liang et al., 2020, arXiv 2001.01523).

    min_{b, r_1..r_N}  sum_i n_i / n * F_i(b o r_i)      b the head, r_i client i's representation

Up: the head's weight and bias, n_i. Down: the same. Private: everything before the head, BatchNorm
included.

What is tested as "personal" is the method's result, with the newly averaged head. The "global"
model is that head on the initial, never trained representation, and says little.

Deviates: the auxiliary losses on representations are left out, as in the FLGo baseline; so is the
ensemble that the paper tests on new clients. The paper may start from a trained FedAvg model; here
all start from the run's initial one.
"""

from typing import ClassVar

from raysim.method import Method
from raysim.models import ChannelModel


class LGFedAvg(Method):
    """Only the head is shared."""

    title: ClassVar[str] = "LG-FedAvg"
    paper: ClassVar[str] = "Liang et al., arXiv 2001.01523"
    shared: ClassVar[str] = "the head"
    private: ClassVar[str] = "all before the head"

    name: str = "lg_fedavg"

    def is_private(self, entry: str, model: ChannelModel) -> bool:
        """Keep all but the entries of the module `head`."""
        return entry.rpartition(".")[0] != "head"
