"""The federated methods, one file each; a new one is one file and one line here."""

from methods.dapperfl import DapperFL
from methods.ditto import Ditto
from methods.fdse import FDSE
from methods.fedavg import FedAvg
from methods.fedbn import FedBN
from methods.feddyn import FedDyn
from methods.fedfip import FedFIP
from methods.fedheal import FedHEAL
from methods.fedprox import FedProx
from methods.lg_fedavg import LGFedAvg
from methods.local import Local
from methods.moon import MOON
from methods.scaffold import Scaffold
from raysim.method import Method

METHODS: dict[str, type[Method]] = {
    "dapperfl": DapperFL,
    "ditto": Ditto,
    "fdse": FDSE,
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "feddyn": FedDyn,
    "fedfip": FedFIP,
    "fedheal": FedHEAL,
    "fedprox": FedProx,
    "lg_fedavg": LGFedAvg,
    "local": Local,
    "moon": MOON,
    "scaffold": Scaffold,
}
