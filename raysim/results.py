"""What a run measured, as tidy tables: `metrics` is deterministic, `timings` is not.

`metrics.parquet` is sorted and holds no clock, host or path, so that two runs can be compared by
the hash of the file.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysim.evaluation import mean_and_std, merge
from raysim.files import aside, write_aside
from raysim.messages import EvalSum, JsonDict

METRICS = pa.schema(
    [
        ("round", pa.int32()),
        ("model", pa.string()),
        ("client", pa.int32()),
        ("domain", pa.string()),
        ("split", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("count", pa.int64()),
    ]
)
TIMINGS = pa.schema(
    [
        ("round", pa.int32()),
        ("phase", pa.string()),
        ("host", pa.int32()),
        ("client", pa.int32()),
        ("what", pa.string()),
        ("seconds", pa.float64()),
        ("bytes", pa.int64()),
    ]
)
Row = dict[str, Any]
_PACK_ROWS = 4096
ALL = "*"
"""The domain of rows that speak of all domains together."""


class MetricsTable:
    """The growing table of metrics; rounds are 1-based, as they are counted aloud."""

    def __init__(self, domains: Sequence[str], unseen: Sequence[str] = ()) -> None:
        """Start empty.

        Args:
            domains: names by domain id.
            unseen: those that no client trains on; AVG and STD leave them out.
        """
        self._domains = domains
        self._unseen = unseen
        self._rounds: dict[int, list[Row]] = {}
        self._packed: dict[int, pa.Table] = {}  # earlier rounds, a tenth as large as their rows

    def add(
        self,
        round_: int,
        metric: str,
        value: float,
        *,
        model: str = "global",
        client: int = -1,
        domain: str = ALL,
        split: str = "train",
        count: int = 0,
    ) -> None:
        """Append a row.

        Args:
            round_: 1-based round, 0 before the first.
            metric: what was measured.
            value: of it; percent for accuracies.
            model: "global", "personal" or "adapted".
            client: whose figure it is; -1 for nobody's.
            domain: its name, or `ALL`.
            split: whose examples.
            count: number of examples.
        """
        cells = (round_, model, client, domain, split, metric, float(value), count)
        self._open(round_).append(dict(zip(METRICS.names, cells, strict=True)))

    def add_evaluation(self, round_: int, sums: Iterable[EvalSum]) -> JsonDict:
        """Append accuracies (percent) and losses of one evaluation; returns `evaluation`."""
        figures: dict[tuple[str, str], list[list[EvalSum]]] = {}
        own: dict[tuple[str, int], list[EvalSum]] = {}
        for total in merge(sums).values():
            domain = self._domains[total.domain]
            model = _model_of(total.client, unseen=domain in self._unseen)
            place: Row = {
                "model": model,
                "client": total.client,
                "domain": domain,
                "split": total.split,
                "count": total.num_examples,
            }
            self.add(round_, "accuracy", _percent([total]), **place)
            self.add(round_, "loss", total.loss / total.num_examples, **place)
            if model == "personal":
                own.setdefault((total.split, total.client), []).append(total)
            elif domain not in self._unseen:
                figures.setdefault((model, total.split), []).append([total])
        for (split, _), parts in own.items():
            figures.setdefault(("personal", split), []).append(parts)
        for (model, split), groups in figures.items():
            self._add_figures(round_, model, split, groups)
        return self.evaluation(round_)

    def evaluation(self, round_: int, split: str = "test") -> JsonDict:
        """Return what an evaluation found.

        Returns:
            `domains` (accuracy of the global model by name), its `avg` and `std` over domains,
            `personal` (`avg`, `std` over clients, or None where there are no such models), and
            `unseen` (accuracy of the `global` and the `adapted` model by name).
            Empty if the split was not evaluated in this round.
        """
        rows = [row for row in self._rows(round_) if row["split"] == split]
        figures = {(row["model"], row["metric"]): row["value"] for row in rows}
        if ("global", "accuracy_avg") not in figures:
            return {}
        personal = None
        if ("personal", "accuracy_avg") in figures:
            personal = {key: figures["personal", f"accuracy_{key}"] for key in ("avg", "std")}
        chosen = [row for row in rows if row["metric"] == "accuracy"]
        found = {(row["model"], row["domain"]): row["value"] for row in chosen}
        seen = [name for name in self._domains if name not in self._unseen]
        return {
            "domains": {d: found["global", d] for d in seen if ("global", d) in found},
            "avg": figures["global", "accuracy_avg"],
            "std": figures["global", "accuracy_std"],
            "personal": personal,
            "unseen": {
                d: {m: found[m, d] for m in ("global", "adapted") if (m, d) in found}
                for d in self._unseen
            },
        }

    def evaluated_rounds(self) -> list[int]:
        """Return the rounds that were evaluated, ascending."""
        return [r for r in sorted({*self._rounds, *self._packed}) if self.evaluation(r)]

    def drop_evaluation(self, round_: int) -> None:
        """Forget a round's evaluation."""
        rows = self._open(round_)
        rows[:] = [row for row in rows if row["split"] == "train"]

    def total(self, metric: str) -> float:
        """Return the sum over rounds of a figure of the whole run, such as bytes_up."""
        table = self.table()
        chosen = table.filter((pc.field("metric") == metric) & (pc.field("client") < 0))
        return float(pc.sum(chosen.column("value")).as_py() or 0)

    def table(self) -> pa.Table:
        """Return all rows, sorted, in one chunk a round."""
        parts = self._packed | {r: _packed(rows) for r, rows in self._rounds.items()}
        return pa.concat_tables([METRICS.empty_table(), *(parts[r] for r in sorted(parts))])

    def write(self, path: Path) -> None:
        """Write the table atomically."""
        write_table(self.table(), path)

    def resume(self, path: Path) -> None:
        """Take over the rows of a file."""
        table = pq.read_table(path, schema=METRICS)
        rounds = pc.unique(table.column("round")).to_pylist()
        self._rounds = {}
        self._packed = {r: table.filter(pc.field("round") == r).combine_chunks() for r in rounds}

    def _open(self, round_: int) -> list[Row]:
        """Return the rows of a round, to be changed; other rounds are packed."""
        if round_ not in self._rounds:
            for other, rows in self._rounds.items():
                self._packed[other] = _packed(rows)
            packed = self._packed.pop(round_, None)
            self._rounds = {round_: packed.to_pylist() if packed is not None else []}
        return self._rounds[round_]

    def _rows(self, round_: int) -> list[Row]:
        """Return the rows of a round that stand for held-out examples."""
        if round_ in self._packed:
            table = self._packed[round_]
            found: list[Row] = table.filter(pc.field("split") != "train").to_pylist()
            return found
        return self._rounds.get(round_, [])

    def _add_figures(
        self, round_: int, model: str, split: str, parts: Sequence[Sequence[EvalSum]]
    ) -> None:
        """Add AVG and STD over domains (global) or clients (personal), and over all examples."""
        avg, std = mean_and_std([_percent(part) for part in parts])
        every = _percent([total for part in parts for total in part])
        for name, value in (("avg", avg), ("std", std), ("all", every)):
            metric = f"accuracy_{name}"
            self.add(round_, metric, value, model=model, split=split, count=len(parts))


def main_figures(evaluation: JsonDict) -> JsonDict:
    """Return `avg` and `std` of an evaluation's main model: the personal ones where there are any.

    Args:
        evaluation: what `MetricsTable.evaluation` returns, not empty.
    """
    main: JsonDict = evaluation["personal"] or evaluation
    return {key: main[key] for key in ("avg", "std")}


def _packed(rows: Sequence[Row]) -> pa.Table:
    """Return the rows of one round, sorted, in a tenth of their memory."""
    keys = [(key, "ascending") for key in ("model", "client", "domain", "split", "metric")]
    return pa.Table.from_pylist(rows, schema=METRICS).sort_by(keys)


def _model_of(client: int, *, unseen: bool) -> str:
    """Name the model of an evaluation: a guest's is the global one, adapted to its domain."""
    if client < 0:
        return "global"
    return "adapted" if unseen else "personal"


def _percent(sums: Sequence[EvalSum]) -> float:
    return 100.0 * sum(s.num_correct for s in sums) / sum(s.num_examples for s in sums)


class TimingsTable:
    """Where the time and the bytes went; never compared between runs."""

    def __init__(self) -> None:
        """Start empty."""
        self._rows: list[dict[str, Any]] = []
        self._packed: list[pa.Table] = []  # a tenth as large as the rows

    def add(
        self,
        round_: int,
        phase: str,
        what: str,
        seconds: float,
        *,
        host: int = -1,
        client: int = -1,
        num_bytes: int = 0,
    ) -> None:
        """Append a row.

        Args:
            round_: 1-based round, 0 before the first.
            phase: of the round.
            what: took the time.
            seconds: of it.
            host: number of the host; -1 for the driver and the server.
            client: whose step it was; -1 for nobody's.
            num_bytes: sent.
        """
        values = (round_, phase, host, client, what, seconds, num_bytes)
        self._rows.append(dict(zip(TIMINGS.names, values, strict=True)))
        if len(self._rows) >= _PACK_ROWS:
            self._packed.append(pa.Table.from_pylist(self._rows, schema=TIMINGS))
            self._rows = []

    def resume(self, path: Path, round_: int) -> bool:
        """Take over the rows of earlier rounds; False if the file is there and damaged."""
        if not path.exists():
            return True
        try:
            table = pq.read_table(path, schema=TIMINGS)
        except (OSError, pa.ArrowException):
            return False
        self._packed, self._rows = [table.filter(pc.field("round") <= round_)], []
        return True

    def table(self) -> pa.Table:
        """Return all rows, in the order in which they came."""
        now = pa.Table.from_pylist(self._rows, schema=TIMINGS)
        return pa.concat_tables([*self._packed, now])

    def write(self, path: Path) -> None:
        """Write the table atomically."""
        write_table(self.table(), path)

    def total(self, what: str) -> float:
        """Return the seconds of all rows of a kind."""
        chosen = self.table().filter(pc.field("what") == what)
        return float(pc.sum(chosen.column("seconds")).as_py() or 0)


def write_table(table: pa.Table, path: Path) -> None:
    """Write a Parquet file atomically."""
    with aside(path) as file:
        pq.write_table(table, file, compression="zstd")


def write_text(text: str, path: Path) -> None:
    """Write a text file atomically."""
    write_aside(path, text.encode())


def write_json(values: JsonDict, path: Path) -> None:
    """Write JSON atomically, keys in the given order."""
    write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", path)


__all__ = [
    "ALL",
    "METRICS",
    "TIMINGS",
    "MetricsTable",
    "TimingsTable",
    "main_figures",
    "write_json",
    "write_table",
    "write_text",
]
