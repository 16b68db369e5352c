"""The presets of the papers, against tables of what papers and code state."""

import re
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from methods import METHODS
from raysim.config import RunConfig, load_config
from raysim.data.partition import make_partition
from raysim.data.settings import DataSettings
from raysim.data.shards import Partition
from raysim.data.splits import cut
from raysim.presets import preset_names, preset_text

Counts = NDArray[np.int64]

COLUMNS = (
    "rounds",
    "data.clients",
    "data.image_size",
    "data.normalize",
    "data.split.kind",
    "data.augment.flip",
    "model.name",
    "local.epochs",
    "local.batch_size",
    "local.lr",
    "local.momentum",
    "local.weight_decay",
)
FPL = (0.9, 1e-5)  # momentum and weight decay of FPL, FedHEAL and DapperFL
STATED: dict[str, tuple[Any, ...]] = {
    "fdse_office": (500, 4, 256, "none", "holdout", False, "alexnet", 1, 50, 0.1, 0, 1e-3),
    "fdse_pacs": (500, 4, 256, "none", "holdout", False, "alexnet", 5, 50, 0.05, 0, 1e-3),
    "fdse_domainnet": (500, 6, 256, "none", "official", False, "alexnet", 5, 50, 0.05, 0, 1e-3),
    "fedheal_digits": (200, 20, 32, "imagenet", "official", False, "resnet10", 10, 64, 1e-3, *FPL),
    "fedheal_office": (200, 20, 192, "imagenet", "mod10", True, "resnet10", 10, 16, 1e-3, *FPL),
    "dapperfl_digits": (100, 10, 32, "imagenet", "official", True, "resnet10", 5, 64, 1e-2, *FPL),
    "dapperfl_office": (100, 10, 32, "imagenet", "mod10", True, "resnet18", 5, 64, 1e-2, *FPL),
    "fedfip_digits": (100, 20, 32, "imagenet", "official", False, "resnet18", 10, 64, 1e-2, *FPL),
    "fedfip_office": (100, 20, 32, "imagenet", "mod10", True, "resnet18", 10, 64, 1e-2, *FPL),
    "fedfip_pacs": (100, 20, 128, "imagenet", "mod10", True, "resnet18", 10, 64, 1e-2, *FPL),
}
METHOD: dict[str, dict[str, Any]] = {
    "fdse": {"groups": 2, "temperature": 0.5, "depth_weight": 0.001, "consensus": "min_norm"},
    "fedheal": {"threshold": 0.3, "equalisation": 0.4},
    "dapperfl": {
        "removal_ratios": (0, 0.2, 0.4, 0.6, 0.8),
        "fusion_start": 0.9,
        "fusion_floor": 0.1,
        "fusion_decay": 0.2,
        "feature_penalty": 0.01,
        "average": "recovered",
    },
    "fedfip": {
        "prototype_momentum": 0.5,
        "contrastive_weight": 0.01,
        "mask_every": 1,
        "warmup_rounds": 0,
        "reactivation": "joint",
    },
}
REPORTED = {
    "fdse_office": "91.58",
    "fdse_pacs": "82.17",
    "fdse_domainnet": "74.50",
    "fedheal_digits": "76.22",
    "fedheal_office": "63.12",
    "dapperfl_digits": "74.30",
    "dapperfl_office": "67.75",
    "fedfip_digits": "76.48",
    "fedfip_office": "64.44",
    "fedfip_pacs": "82.02",
}
OFFICE = {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}
PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
DIGITS = {"mnist": (60000, 10000), "usps": (7291, 2007), "svhn": (73257, 26032), "syn": (9000, 900)}
"""Images in all, or in the official parts; those of SYN depend on the copy."""

papers = pytest.mark.parametrize("paper", sorted(STATED))


def load(paper: str) -> RunConfig:
    return load_config(METHODS, text=preset_text(f"paper_{paper}"), overrides=["data.root=DIR"])


def value_at(config: RunConfig, key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = getattr(node, part)
    return node


class SizedDataset:
    """Images of a paper's domains by number alone: sorted by class, cut as the settings say."""

    def __init__(self, sizes: dict[str, Any], num_classes: int, data: DataSettings) -> None:
        self.name = data.name
        self.domains = tuple(sizes)
        self.classes = tuple(map(str, range(num_classes)))
        self._labels: dict[tuple[str, str], Counts] = {}
        for domain, (name, size) in enumerate(sizes.items()):
            official = np.array([""] * size if isinstance(size, int) else _split_names(*size))
            labels = np.sort(np.arange(len(official)) % num_classes)
            if not isinstance(size, int):
                labels = np.random.default_rng(domain).permutation(labels)
            rows = cut(
                data.split,
                labels=labels,
                official=official,
                groups=np.arange(len(labels)),
                seed=3,
                domain=domain,
                where=name,
            )
            self._labels |= {(name, split): labels[found] for split, found in rows.items()}

    def labels(self, domain: str, split: str) -> Counts:
        return self._labels[domain, split]

    def names(self, domain: str, split: str) -> list[str]:
        return [f"{split}{row}" for row in range(len(self.labels(domain, split)))]

    def sizes(self, domain: str) -> tuple[int, ...]:
        return tuple(len(self.labels(domain, split)) for split in ("train", "val", "test"))


def _split_names(train: int, test: int) -> list[str]:
    return ["train"] * train + ["test"] * test


def deal(paper: str) -> tuple[SizedDataset, Partition]:
    known: dict[str, dict[str, Any]] = {"digits": DIGITS, "office": OFFICE, "pacs": PACS}
    sizes = known[paper.partition("_")[2]]
    config = load(paper)
    dataset = SizedDataset(sizes, 7 if sizes is PACS else 10, config.data)
    settings = config.data.partition
    return dataset, make_partition(dataset, settings, config.data.clients, seed=3)


def held(paper: str) -> dict[str, list[int]]:
    """Return how many training images each client of a domain holds."""
    dataset, partition = deal(paper)
    counts = partition.counts(dataset).sum(axis=2)
    return {name: counts[counts[:, d] > 0, d].tolist() for d, name in enumerate(dataset.domains)}


# What they say -----------------------------------------------------------------------------------


def test_every_paper_has_its_presets() -> None:
    found = {name for name in preset_names() if name.startswith("paper_")}
    assert found == {f"paper_{paper}" for paper in STATED}


@papers
def test_the_header_says_what_it_is_how_to_run_it_and_what_to_expect(paper: str) -> None:
    text = preset_text(f"paper_{paper}")
    lines = text.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    title = METHODS[paper.partition("_")[0]].title
    assert re.fullmatch(rf"# {title} on .+ as in its .+\..*|# {title} on .+ is known\.", lines[0])
    assert lines[1] == f"# raysim run --preset paper_{paper} data.root=DIR"
    header = text[: text.index("rounds:")]
    assert "# Not matched: " in header
    expected = re.search(r"# Reports: (.|\n)*?(?=# Not matched)", header)
    assert expected is not None
    assert re.search(rf"AVG {re.escape(REPORTED[paper])}\b", expected[0])
    model = "PERSONAL" if paper.startswith("fdse") else "GLOBAL"
    assert model in expected[0]


@papers
def test_every_value_names_its_source(paper: str) -> None:
    lines = [line for line in preset_text(f"paper_{paper}").splitlines() if line[0] != "#"]
    values = [line for line in lines if not line.rstrip().endswith(":")]
    assert len(values) >= 20
    for line in values:
        assert re.search(r" # (paper|code|inferred: .|ours: .)", line), line


@papers
def test_no_value_is_left_to_a_default_that_may_change(paper: str) -> None:
    tree = yaml.safe_load(preset_text(f"paper_{paper}"))
    for key in (*COLUMNS, "local.lr_decay", "model.width", "participation.fraction"):
        node = tree
        for part in key.split("."):
            node = node[part]
    assert tree["data"]["augment"].keys() == {"crop_padding", "flip"}
    assert "root" not in tree["data"]
    assert tree.keys().isdisjoint({"execution", "output"})


# The numbers -------------------------------------------------------------------------------------


@papers
def test_values_are_those_that_paper_and_code_state(paper: str) -> None:
    config = load(paper)
    assert tuple(value_at(config, key) for key in COLUMNS) == STATED[paper]
    method = paper.partition("_")[0]
    assert config.method.name == method
    chosen = config.method.model_dump()
    assert {key: chosen[key] for key in METHOD[method]} == METHOD[method]
    assert config.model.width == 64
    assert config.participation.fraction == 1
    assert config.local.lr_decay == (0.998 if method == "fdse" else 1)
    assert config.local.max_grad_norm == (10 if method == "fdse" else None)
    crops = method != "fdse" and paper != "fedheal_office"
    assert config.data.augment.crop_padding == (4 if crops else 0)


def test_fdse_weighs_its_regulariser_by_data_set() -> None:
    papers = ("fdse_office", "fdse_pacs", "fdse_domainnet")
    weights = [load(paper).method.model_dump()["consistency_weight"] for paper in papers]
    assert weights == [0.05, 0.5, 0.01]


def test_fdse_cuts_by_the_seed_of_the_run() -> None:
    for paper in ("fdse_office", "fdse_pacs", "fdse_domainnet"):
        assert load(paper).data.split.seed is None
    split = load("fdse_domainnet").data.split
    assert (split.kind, split.val) == ("official", 0.2)
    assert load("fdse_domainnet").data.classes == "fdse10"


# What they come to on data of the published sizes -------------------------------------------------


@pytest.mark.parametrize(
    ("paper", "domain", "sizes"),
    [
        ("fdse_office", "caltech", (899, 112, 112)),
        ("fdse_office", "amazon", (767, 96, 95)),
        ("fdse_office", "dslr", (126, 16, 15)),
        ("fdse_office", "webcam", (236, 30, 29)),
        ("fedheal_office", "caltech", (899, 0, 224)),
        ("fedheal_office", "dslr", (127, 0, 30)),
        ("fedheal_digits", "usps", (7291, 0, 2007)),
    ],
)
def test_splits_have_the_published_sizes(
    paper: str, domain: str, sizes: tuple[int, int, int]
) -> None:
    assert deal(paper)[0].sizes(domain) == sizes


def test_fdse_tests_as_many_images_of_pacs_as_its_authors() -> None:
    dataset, _ = deal("fdse_pacs")
    assert [dataset.sizes(domain)[2] for domain in PACS] == [204, 234, 167, 392]


@pytest.mark.parametrize(
    ("paper", "shares"),
    [
        ("fdse_office", {"amazon": [767], "caltech": [899], "dslr": [126], "webcam": [236]}),
        ("fedheal_digits", {"mnist": [600] * 5, "usps": [72] * 5, "svhn": [732] * 5}),
        (
            "fedheal_office",
            {"amazon": [76] * 5, "caltech": [89] * 5, "dslr": [12] * 5, "webcam": [23] * 5},
        ),
        ("dapperfl_digits", {"mnist": [600] * 2, "usps": [72] * 3, "svhn": [732] * 3}),
        (
            "dapperfl_office",
            {"amazon": [153] * 2, "caltech": [179] * 3, "dslr": [25] * 4, "webcam": [47]},
        ),
    ],
)
def test_clients_hold_the_shares_that_the_papers_give_them(
    paper: str, shares: dict[str, list[int]]
) -> None:
    found = held(paper)
    assert {name: found[name] for name in shares} == shares


@pytest.mark.parametrize("paper", ["fedheal_office", "dapperfl_office"])
def test_every_client_of_office_holds_every_class(paper: str) -> None:
    dataset, partition = deal(paper)
    assert partition.counts(dataset).any(axis=1).all()


@pytest.mark.parametrize(
    ("paper", "share"), [("fedfip_digits", 0.05), ("fedfip_office", 0.4), ("fedfip_pacs", 0.6)]
)
def test_clients_of_fedfip_hold_two_domains_and_the_share_in_use(paper: str, share: float) -> None:
    """mod10 trains on 0.8 of a domain, of which 0.5 and 0.75 are in use."""
    dataset, partition = deal(paper)
    assert all(len(shard.train) == 2 for shard in partition.shards)
    counts_D = partition.counts(dataset).sum(axis=(0, 2))
    sizes = {"digits": {name: train for name, (train, _) in DIGITS.items()}, "office": OFFICE}
    pools = sizes.get(paper.partition("_")[2], PACS)
    np.testing.assert_allclose(counts_D, [share * size for size in pools.values()], rtol=0.05)


@pytest.mark.parametrize(
    ("paper", "parameters"),
    [
        ("fdse_office", 6_509_034),
        ("dapperfl_digits", 4_903_242),
        ("dapperfl_office", 11_173_962),
        ("fedfip_digits", 11_173_962),
    ],
)
def test_networks_have_the_papers_size(paper: str, parameters: int) -> None:
    config = load(paper)
    model = (
        METHODS[config.method.name]
        .model_validate(config.method.model_dump())
        .build_model(config.model.name, 10, config.data.image_size, config.model.width)
    )
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
