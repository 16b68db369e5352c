"""The report on a data set: findings, counts, images and the partition, as one HTML page.

Shape suffixes: M clients, D domains, K classes.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.data.contact_sheet import GAP, as_png, fit_tiles, shown_side, strip
from raysim.data.datasets import Dataset
from raysim.data.findings import HAPPENED, KINDS
from raysim.data.heat_map import heat_map
from raysim.data.shards import SPLITS, Partition
from raysim.errors import DataError
from raysim.files import write_aside
from raysim.pages import render_page

_TEMPLATE = "data.html.j2"
_CLASSES_A_STRIP = 20
_MAX_CLIENTS_TABLE = 50

Counts = NDArray[np.int64]
Json = Mapping[str, Any]


def render(
    dataset: Dataset,
    partition: Partition | None,
    findings: Mapping[str, Json],
    *,
    title: str,
    facts: Mapping[str, str],
) -> str:
    """Draw a data set as a page that opens offline.

    Args:
        dataset: what to show.
        partition: who holds what; None leaves the clients out.
        findings: by kind, as `Findings.as_json` returns them.
        title: heading of the page.
        facts: shown below what the data set itself tells, in this order.

    Returns:
        HTML, the same for the same arguments.

    Raises:
        DataError: the data set cannot be read.
    """
    counts = {split: dataset.counts(split) for split in SPLITS}
    heat = clients = None
    if partition is not None:
        heat = heat_map(partition.counts(dataset), dataset.domains, dataset.classes)
        few = len(partition.shards) <= _MAX_CLIENTS_TABLE
        clients = _clients_table(dataset, partition) if few and heat.by_class else None
    return render_page(
        _TEMPLATE,
        title=title,
        facts=_facts(dataset, counts) | dict(facts),
        findings=_findings(findings, refused=False),
        refused=False,
        data=_data(dataset, counts),
        heat=heat,
        clients=clients,
        sheets=_sheets(dataset),
    )


def render_refused(findings: Mapping[str, Json], *, title: str, facts: Mapping[str, str]) -> str:
    """Draw what is wrong with data that was refused, and what the user can do.

    Args:
        findings: by kind, as `Findings.as_json` returns them.
        title: heading of the page.
        facts: what is known of the source, in this order.

    Returns:
        HTML, the same for the same arguments.
    """
    return render_page(
        _TEMPLATE,
        title=title,
        facts=facts,
        findings=_findings(findings, refused=True),
        refused=True,
        data=None,
        heat=None,
        clients=None,
        sheets=None,
    )


def write_report(content: str | bytes, path: Path) -> None:
    """Write a page or a contact sheet; the file appears complete or not at all.

    Raises:
        DataError: it cannot be written.
    """
    try:
        write_aside(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; give another --out"
        ) from error


def _facts(dataset: Dataset, counts: Mapping[str, Counts]) -> dict[str, str]:
    sizes = {split: int(table.sum()) for split, table in counts.items()}
    return {
        "data set": dataset.name,
        "images": f"{sum(sizes.values()):,} of {dataset.image_size} x {dataset.image_size} pixels",
        "domains": f"{len(dataset.domains)}: {', '.join(dataset.domains)}",
        "classes": f"{len(dataset.classes):,}",
        "splits": ", ".join(f"{split} {size:,}" for split, size in sizes.items() if size),
        "sha256": dataset.sha256,
    }


# ---- findings --------------------------------------------------------------------------------

_WOULD = {"error": "stops it", "skip": "would be left out", "keep": "would be taken"}
_REMEDIES = {"skip": "leaves them out", "keep": "takes them"}


def _findings(findings: Mapping[str, Json], *, refused: bool) -> list[dict[str, object]]:
    words = _WOULD if refused else HAPPENED
    return [
        {
            "kind": kind,
            "count": finding["count"],
            "happened": words[finding["policy"]],
            "stops": finding["policy"] == "error",
            "meaning": finding["meaning"],
            "names": finding["names"],
            "remedies": _remedies(kind),
        }
        for kind, finding in findings.items()
    ]


def _remedies(kind: str) -> list[dict[str, str]]:
    allowed = KINDS[kind].allowed if kind in KINDS else ()
    return [
        {"policy": policy, "does": _REMEDIES[policy]} for policy in allowed if policy in _REMEDIES
    ]


# ---- counts ----------------------------------------------------------------------------------


def _data(dataset: Dataset, counts: Mapping[str, Counts]) -> dict[str, object]:
    everywhere = sum(counts.values(), np.zeros_like(counts["train"]))
    missing = [
        (domain, [dataset.classes[label] for label in np.flatnonzero(everywhere[:, d] == 0)])
        for d, domain in enumerate(dataset.domains)
    ]
    return {
        "domains": dataset.domains,
        "classes": dataset.classes,
        "missing": [(domain, classes) for domain, classes in missing if classes],
        "gaps": any(table.any() and not table.all() for table in counts.values()),
        "tables": [
            {"split": split, "counts": table.tolist(), "totals": table.sum(axis=0).tolist()}
            for split, table in counts.items()
            if table.any()
        ],
    }


# ---- images ----------------------------------------------------------------------------------


def _sheets(dataset: Dataset) -> dict[str, object]:
    """Draw each domain in strips of some classes each."""
    side, per_class = fit_tiles(len(dataset.domains) * len(dataset.classes), dataset.image_size)
    zoom = shown_side(side) // side
    num_classes = len(dataset.classes)
    starts = range(0, num_classes, _CLASSES_A_STRIP)
    spans = [range(start, min(start + _CLASSES_A_STRIP, num_classes)) for start in starts]
    blocks = []
    for domain in dataset.domains:
        first, *others = (_strip(dataset, domain, span, per_class, side) for span in spans)
        blocks.append({"domain": domain, "first": first, "others": others})
    return {
        "per_class": per_class,
        "pitch": (side + GAP) * zoom,
        "enlarged": zoom > 1,
        "blocks": blocks,
    }


def _strip(
    dataset: Dataset, domain: str, span: Sequence[int], per_class: int, side: int
) -> dict[str, object]:
    png = as_png(strip(dataset, domain, span, per_class, side))
    present = set(dataset.labels(domain, "train").tolist())
    classes = [{"name": dataset.classes[label], "images": label in present} for label in span]
    return {
        "domain": domain,
        "first": dataset.classes[span[0]],
        "last": dataset.classes[span[-1]],
        "classes": classes,
        "png": base64.b64encode(png).decode(),
    }


# ---- clients ---------------------------------------------------------------------------------


def _clients_table(dataset: Dataset, partition: Partition) -> dict[str, object]:
    """Count clients' training images by domain, and their images by split."""
    by_split = {split: partition.counts(dataset, split).sum(axis=2) for split in SPLITS}
    used = {split: counts_MD for split, counts_MD in by_split.items() if counts_MD.any()}
    totals = [counts_MD.sum(axis=1, keepdims=True) for counts_MD in used.values()]
    table = np.concatenate([by_split["train"], *totals], axis=1)
    return {
        "columns": [*dataset.domains, *(f"all {split}" for split in used)],
        "rows": table.tolist(),
        "totals": table.sum(axis=0).tolist(),
    }
