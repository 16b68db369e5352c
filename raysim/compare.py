"""Comparing finished runs: what differs, what came out, and whether the seeds bear it out.

Runs of equal settings but for the seed are one group; a row of the comparison is a group.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from raysim.chart import Cell, Table
from raysim.config import changed_keys
from raysim.errors import RecordError
from raysim.messages import JsonDict
from raysim.record import Record

_NOT_COMPARED = ("seed", "execution", "output")
_DEALING = ("name", "clients", "partition", "split", "unseen", "classes")
_COUNTS = {"MB up": "bytes_up", "parameters": "params_sliced", "multiply-adds": "flops_sliced"}
_MEGA = 1e6


@dataclass(frozen=True)
class Group:
    """Runs of equal settings but for the seed.

    Attributes:
        name: the method, and what tells the group from the others.
        runs: by seed.
    """

    name: str
    runs: Mapping[int, Record]

    def values(self, figure: str) -> dict[int, float]:
        """Return a figure of the summaries by seed, where there is one.

        Args:
            figure: a dotted key, e.g. "last.avg"; below `domains.`, a domain's name.
        """
        found = {seed: _at(run.summary, figure.split(".", 1)) for seed, run in self.runs.items()}
        return {seed: value for seed, value in found.items() if value is not None}


@dataclass(frozen=True)
class Comparison:
    """What `compare` finds.

    Attributes:
        groups: in the order of the runs.
        figures: rows of groups; means over seeds, standard deviations (ddof 1) beside them.
        differences: rows of keys whose settings differ; None if nothing does.
        warnings: what makes the figures hard to compare.
        notes: how to read the table.
    """

    groups: tuple[Group, ...]
    figures: Table
    differences: Table | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def compare(runs: Sequence[Record], *, anyway: bool = False) -> Comparison:
    """Compare runs.

    Args:
        runs: finished ones, at least two.
        anyway: compare runs of different data or partitions too, with a warning and no p-values.

    Raises:
        RecordError: a run has not ended, or stands there twice; or data or partitions differ.
    """
    if len(runs) < 2:
        raise RecordError("a comparison takes two runs or more")
    for run in runs:
        if not run.is_done:
            raise RecordError(
                f"{run.folder} has not ended ({run.summary['status']}): if it is not running, go "
                f"on with `raysim resume {shlex.quote(str(run.folder))}`; or leave it out"
            )
    warnings = _data_differences(runs)
    if warnings and not anyway:
        raise RecordError(
            "the runs do not compare: " + "; ".join(warnings) + "\n--anyway compares them still"
        )
    groups = _groups(runs)
    figures, notes = _figures(groups)
    return Comparison(tuple(groups), figures, _differences(groups), tuple(warnings), tuple(notes))


def p_value(ours: Mapping[int, float], base: Mapping[int, float]) -> tuple[float, str] | None:
    """Return the two-sided p-value of a difference of means over seeds, and the test.

    The data must be the same: runs of equal seeds then have equal partitions and initial weights,
    so they are paired where at least two seeds are shared (t-test of the differences); else Welch's
    t-test takes them as independent.

    Args:
        ours: a figure by seed.
        base: the figure of what it is compared with.

    Returns:
        None with fewer than two seeds on a side, or if nothing varies.
    """
    shared = sorted(ours.keys() & base.keys())
    if len(shared) >= 2:
        differences = [ours[seed] - base[seed] for seed in shared]
        if np.ptp(differences) == 0:
            return None
        return float(stats.ttest_1samp(differences, 0).pvalue), f"paired, {len(shared)} seeds"
    if min(len(ours), len(base)) < 2:
        return None
    found = float(stats.ttest_ind(list(ours.values()), list(base.values()), equal_var=False).pvalue)
    return None if math.isnan(found) else (found, "Welch")


def _data_differences(runs: Sequence[Record]) -> list[str]:
    """Return what differs in data and dealing, in words."""
    found = []
    for key, what in (("data_sha256", "data"), ("image_size", "image size")):
        values = {run.environment.get(key, run.config["data"].get(key)) for run in runs}
        if len(values) > 1:
            found.append(f"{what} differ: {_told(runs, key)}")
    first = runs[0]
    for run in runs[1:]:
        old, new = (_dealing(r.config["data"]) for r in (first, run))
        keys = changed_keys(old, new)
        if keys:
            named = ", ".join(f"data.{key}" for key in keys)
            found.append(f"{run.name} is dealt otherwise than {first.name}: {named}")
    by_seed: dict[int, dict[str, str]] = {}
    for run in runs:
        sha = str(run.environment.get("partition_sha256"))
        by_seed.setdefault(run.config["seed"], {}).setdefault(sha, run.name)
    for seed, names in by_seed.items():
        if len(names) > 1 and not found:
            listed = ", ".join(names.values())
            found.append(f"who holds which image differs for seed {seed}: {listed}")
    return found


def _told(runs: Sequence[Record], key: str) -> str:
    first: dict[str, str] = {}
    for run in runs:
        value = str(run.environment.get(key, run.config["data"].get(key)))
        first.setdefault(value, f"{run.name} has {value[:12]}")
    return ", ".join(first.values())


def _dealing(data: JsonDict) -> JsonDict:
    kept = {key: data.get(key) for key in _DEALING}
    partition = {k: v for k, v in (kept["partition"] or {}).items() if k != "path"}
    return kept | {"partition": partition}


def _groups(runs: Sequence[Record]) -> list[Group]:
    found: list[tuple[JsonDict, dict[int, Record]]] = []
    for run in runs:
        tree = {k: v for k, v in run.config.items() if k not in _NOT_COMPARED}
        members = next((members for other, members in found if other == tree), None)
        if members is None:
            members = {}
            found.append((tree, members))
        seed = run.config["seed"]
        if seed in members:
            raise RecordError(
                f"{members[seed].folder} and {run.folder} are the same experiment: leave one out"
            )
        members[seed] = run
    names = _group_names([tree for tree, _ in found])
    return [Group(name, members) for name, (_, members) in zip(names, found, strict=True)]


def _group_names(trees: Sequence[JsonDict]) -> list[str]:
    """Return the methods' names, with the keys that tell groups of one method apart."""
    methods = [str(tree["method"]["name"]).rpartition(":")[2] for tree in trees]
    names = []
    for tree, method in zip(trees, methods, strict=True):
        same = [t for t, m in zip(trees, methods, strict=True) if m == method]
        keys = {key for other in same for key in changed_keys(tree, other)}
        more = [f"{key.removeprefix('method.')}={_value(tree, key)}" for key in sorted(keys)]
        names.append(" ".join([method, *more]))
    return names


def _differences(groups: Sequence[Group]) -> Table | None:
    trees = [next(iter(group.runs.values())).config for group in groups]
    keys = {key for tree in trees[1:] for key in changed_keys(trees[0], tree)}
    told = sorted(key for key in keys if key.split(".")[0] not in _NOT_COMPARED)
    if len({tree["method"]["name"] for tree in trees}) > 1:  # what only one method has says little
        told = [k for k in told if "method" not in k or all(_value(t, k) != "-" for t in trees)]
    if not told:
        return None
    rows = tuple((key, *(_value(tree, key) for tree in trees)) for key in told)
    return Table(("setting", *(group.name for group in groups)), rows)


def _figures(groups: Sequence[Group]) -> tuple[Table, list[str]]:
    domains = list(
        dict.fromkeys(d for g in groups for r in g.runs.values() for d in r.summary["domains"])
    )
    wanted = {
        **{name: f"domains.{name}" for name in domains},
        **{"AVG": "avg", "STD": "std", "AVG of last": "last.avg", "STD of last": "last.std"},
        **{"personal AVG": "personal.avg", "personal STD": "personal.std"},
        **_COUNTS,
    }
    several = any(len(group.runs) > 1 for group in groups)
    columns = ["run", "seeds"]
    cells: list[list[Cell]] = [[group.name, len(group.runs)] for group in groups]
    for name, figure in wanted.items():
        found = [list(group.values(figure).values()) for group in groups]
        if not any(found):
            continue
        scale = _MEGA if name == "MB up" else 1
        columns.append(name)
        varies = several and name not in _COUNTS
        if varies:
            columns.append(f"{name} ±")
        for row, values in zip(cells, found, strict=True):
            row.append(_mean(values, scale))
            if varies:
                row.append(float(np.std(values, ddof=1)) if len(values) > 1 else None)
    notes = ["accuracy in percent after the last round; AVG and STD over domains"]
    if several:
        columns += ["p of AVG", "test"]
        for row, tested in zip(cells, _tests(groups), strict=True):
            row += tested or (None, None)
        notes += _test_notes(groups)
    else:
        notes.append("one seed each: differences of a point or two mean nothing")
    others = [g for g in groups if not g.runs.keys() & groups[0].runs.keys()]
    if others:
        seeds = ", ".join(f"{g.name} {sorted(g.runs)}" for g in (groups[0], *others))
        notes.append(f"other seeds are other initial weights and partitions: {seeds}")
    percent = frozenset(columns) - {*_COUNTS, "run", "seeds", "p of AVG", "test"}
    return Table(tuple(columns), tuple(map(tuple, cells)), percent), notes


def _tests(groups: Sequence[Group]) -> list[tuple[float, str] | None]:
    """Return p of AVG and the test of each group against the first, where there can be one."""
    base = groups[0]
    return [
        p_value(group.values("avg"), base.values("avg")) if _same_data(group, base) else None
        for group in groups
    ]


def _test_notes(groups: Sequence[Group]) -> list[str]:
    base = groups[0]
    notes = [
        "± is the standard deviation over seeds (ddof 1)",
        f"p: AVG against {base.name}, two-sided t-test over seeds, each by itself",
    ]
    others = [group.name for group in groups if not _same_data(group, base)]
    if others:
        notes.append(f"no p for other data or partitions than {base.name}'s: {', '.join(others)}")
    return notes


def _same_data(group: Group, base: Group) -> bool:
    return not _data_differences([*base.runs.values(), *group.runs.values()])


def _mean(values: Sequence[float], scale: float) -> Cell:
    if not values:
        return None
    mean = math.fsum(values) / len(values) / scale
    return int(mean) if all(isinstance(v, int) for v in values) and scale == 1 else mean


def _at(tree: Any, path: Sequence[str]) -> float | None:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, int | float) else None


def _value(tree: Any, key: str) -> str:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return "-" if tree is None else str(tree)
