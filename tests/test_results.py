import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from raysim.messages import EvalSum
from raysim.results import METRICS, TIMINGS, MetricsTable, TimingsTable, write_json, write_text

DOMAINS = ("a", "b", "c", "d")


def sums(*accuracies: int, client: int = -1) -> list[EvalSum]:
    """One sum of 100 examples for each domain."""
    return [
        EvalSum(client=client, domain=d, start=0, num_examples=100, num_correct=value, loss=50.0)
        for d, value in enumerate(accuracies)
    ]


def filled() -> MetricsTable:
    table = MetricsTable(DOMAINS)
    table.add(1, "loss", 2.5, count=3)
    table.add(1, "bytes_up", 10.0)
    table.add(2, "bytes_up", 30.0)
    table.add(2, "bytes_up", 99.0, model="personal", client=4)
    table.add_evaluation(2, sums(90, 80, 70, 60) + sums(50, 100, client=4) + sums(25, client=0))
    return table


def test_avg_and_std_are_those_of_the_papers() -> None:
    found = filled().evaluation(2)
    assert found["domains"] == {"a": 90.0, "b": 80.0, "c": 70.0, "d": 60.0}
    assert found["avg"] == 75.0
    assert found["std"] == pytest.approx(12.9099, abs=1e-4)  # ddof=1
    assert found["personal"]["avg"] == pytest.approx(50.0)  # clients 75 and 25


def test_unseen_domains_are_left_out_of_the_averages() -> None:
    table = MetricsTable(DOMAINS, unseen=("c",))
    guest = EvalSum(client=5, domain=2, start=0, num_examples=50, num_correct=30, loss=1.0)
    found = table.add_evaluation(1, [*sums(90, 80, 10, 70), *sums(50, 100, client=0), guest])
    assert found["domains"] == {"a": 90.0, "b": 80.0, "d": 70.0}
    assert found["avg"] == 80.0
    assert found["personal"]["avg"] == 75.0
    assert found["unseen"] == {"c": {"global": 10.0, "adapted": 60.0}}
    models = {(r["model"], r["client"]) for r in table.table().to_pylist()}
    assert models == {("global", -1), ("personal", 0), ("personal", -1), ("adapted", 5)}


def test_validation_stands_beside_the_test() -> None:
    table = MetricsTable(DOMAINS)
    val = [replace(s, split="val") for s in sums(40, 60, 50, 50) + sums(30, client=1)]
    table.add_evaluation(3, [*sums(90, 80, 70, 60), *val])
    assert table.evaluation(3)["avg"] == 75.0
    assert table.evaluation(3)["personal"] is None
    assert table.evaluation(3, "val")["avg"] == 50.0
    assert table.evaluation(3, "val")["personal"] == {"avg": 30.0, "std": 0.0}
    table.drop_evaluation(3)
    assert table.evaluation(3) == table.evaluation(3, "val") == {}


def test_schema_is_the_contract() -> None:
    fields = {field.name: str(field.type) for field in METRICS}
    assert fields == {
        "round": "int32",
        "model": "string",
        "client": "int32",
        "domain": "string",
        "split": "string",
        "metric": "string",
        "value": "double",
        "count": "int64",
    }
    assert TIMINGS.names == ["round", "phase", "host", "client", "what", "seconds", "bytes"]
    assert filled().table().schema.equals(METRICS)


def test_rows_are_sorted_whatever_the_order_of_arrival(tmp_path: Path) -> None:
    items: list[tuple[int, str, float, dict[str, Any]]] = [
        (2, "loss", 1.0, {}),
        (1, "loss", 3.0, {"model": "personal", "client": 7}),
        (1, "loss", 2.0, {"model": "personal", "client": 3}),
        (1, "churn", 0.5, {}),
    ]
    files = []
    for order in (items, items[::-1]):
        table = MetricsTable(DOMAINS)
        for round_, metric, value, place in order:
            table.add(round_, metric, value, **place)
        files.append(tmp_path / f"{len(files)}.parquet")
        table.write(files[-1])
    assert files[0].read_bytes() == files[1].read_bytes()
    rows = pq.read_table(files[0]).to_pylist()
    assert [(r["round"], r["client"], r["metric"]) for r in rows] == [
        (1, -1, "churn"),
        (1, 3, "loss"),
        (1, 7, "loss"),
        (2, -1, "loss"),
    ]


def test_a_table_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    table = filled()
    table.write(tmp_path / "a.parquet")
    again = MetricsTable(DOMAINS)
    again.resume(tmp_path / "a.parquet")
    assert again.evaluation(2) == table.evaluation(2)
    for each, name in ((table, "b"), (again, "c")):
        each.add(3, "loss", 1.0)
        each.write(tmp_path / f"{name}.parquet")
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "c.parquet").read_bytes()


def test_totals_leave_clients_out() -> None:
    assert filled().total("bytes_up") == 40.0


def test_evaluated_rounds_and_dropping() -> None:
    table = filled()
    assert table.evaluated_rounds() == [2]
    assert table.evaluation(1) == {}
    assert table.evaluation(7) == {}
    table.drop_evaluation(2)
    assert table.evaluated_rounds() == []
    assert table.total("bytes_up") == 40.0


def test_without_personal_models_there_is_no_personal_figure() -> None:
    table = MetricsTable(DOMAINS)
    assert table.add_evaluation(1, sums(1, 2, 3, 4))["personal"] is None


def test_timings_keep_only_earlier_rounds_on_resume(tmp_path: Path) -> None:
    table = TimingsTable()
    table.add(1, "round", "round", 1.0)
    table.add(2, "round", "round", 2.0, host=1, client=3, num_bytes=8)
    table.write(tmp_path / "t.parquet")
    again = TimingsTable()
    again.resume(tmp_path / "t.parquet", 1)
    assert again.total("round") == 1.0
    again.resume(tmp_path / "none.parquet", 1)
    assert again.total("round") == 1.0


def test_files_are_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json({"b": 1, "a": "\u00e9"}, path)
    assert list(json.loads(path.read_text())) == ["b", "a"]
    with pytest.raises(TypeError):
        write_json({"a": object()}, path)
    assert json.loads(path.read_text())["b"] == 1
    write_text("y", path)
    assert path.read_text() == "y"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
