"""The federated methods, one file each; a new one is one file and one line here."""

from methods.fedavg import FedAvg
from methods.fedfip import FedFIP
from raysim.method import Method

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedfip": FedFIP,
}
