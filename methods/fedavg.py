"""FedAvg: the example-weighted mean of locally trained models (McMahan et al., AISTATS 2017).

min_w  sum_i n_i / n * F_i(w)          up: weights, n_i    down: weights    private: nothing
"""

from typing import ClassVar

from raysim.method import Averaging


class FedAvg(Averaging):
    """The defaults of `Method`."""

    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    shared: ClassVar[str] = "the whole model"
    private: ClassVar[str] = "nothing"

    name: str = "fedavg"
