"""Tables: their rows, their arithmetic, and a small one from the command line."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from methods import METHODS
from raysim.errors import ConfigError
from tests.toy import only_run
from tune_jobs import table as command_line
from tune_jobs import variants
from tune_jobs.outcome import Outcome
from tune_jobs.records import reports
from tune_jobs.table_report import render
from tune_jobs.table_settings import TableSettings, read_settings
from tune_jobs.tables import cells, compare, latex, markdown, paired
from tune_jobs.trainable import trial_config

SMALL = [
    *("data.clients=20", "data.image_size=16", "model=cnn", "model.width=4"),
    *("participation.fraction=0.1", "output.tensorboard=false", "rounds=1"),
]


def asked(*overrides: str, **more: Any) -> TableSettings:
    """Return the settings of a command line."""
    options: dict[str, Any] = {
        **{"methods": "fedavg,fedfip", "data": None, "seeds": 2, "ablation": None},
        **{"sensitivity": None, "sparsity": None, "rows": None, "config": None, "preset": None},
        **{"tune": [], "compare": "avg", "baseline": None, "reuse": []},
    }
    if more.keys() & {"ablation", "sensitivity", "sparsity", "rows"}:
        options["methods"] = None
    return read_settings(overrides, **options | more)


def call(*words: str) -> Result:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command_line.table)
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


def outcomes(settings: TableSettings, folder: Path, **figures: Any) -> list[Outcome]:
    """Return runs whose AVG is 10 x seed + row, but for those that `figures` replace by index."""
    found = []
    for index, values in enumerate(settings.cells()):
        row = [r.label for r in settings.rows].index(settings.place(index)[0])
        summary = {
            **{"status": "done", "avg": 1.0, "std": 2.0, "personal": None, "wall_s": 3.0},
            **{"params_sliced": 4000, "flops_sliced": 5_000_000, "bytes_up": 6_000_000},
            **{"bytes_down": 1_000_000, "last": {"avg": 10.0 * values["seed"] + row, "std": 1.5}},
        } | figures.get(f"run{index}", {})
        place = folder / f"run{index}"
        place.mkdir()
        (place / "summary.json").write_text(json.dumps(summary))
        found.append(
            Outcome(trial=f"t_{index}", values=values, status=summary["status"], folder=place)
        )
    return found


def test_rows_are_methods() -> None:
    assert [row.label for row in asked(methods="all").rows] == list(METHODS)
    assert [row.values for row in asked().rows] == [{"method": "fedavg"}, {"method": "fedfip"}]


def test_the_ablation_is_the_papers() -> None:
    rows = variants.ablation("fedfip")
    assert [row.label for row in rows] == [
        *("none", "DSFP", "DSFP + DSR", "DSFP + SA", "DSFP + DSR + SA"),
    ]
    base = asked().base()
    switches = [trial_config(base, row.values).method.model_dump() for row in rows]
    on = [[s[name] for name in ("dsfp", "dsr", "sa")] for s in switches]
    assert on == [
        *([False] * 3, [True, False, False], [True, True, False]),
        *([True, False, True], [True] * 3),
    ]
    assert asked(ablation="fedfip").baseline == "none"
    with pytest.raises(ConfigError, match="did you mean 'fedfip'"):
        variants.ablation("fedfib")


def test_a_sensitivity_moves_one_hyperparameter_at_a_time() -> None:
    rows = variants.sensitivity("fedfip")
    assert rows[0].values == {"method": "fedfip"}
    assert {len(row.values) for row in rows[1:]} == {2}
    assert [row.label for row in rows[1:6]] == [
        *("rho=0.2", "rho=0.35", "rho=0.5", "rho=0.65", "rho=0.8"),
    ]
    assert len(rows) == 1 + 4 * 5


def test_sparsity_has_both_ends_and_the_dense_baseline() -> None:
    rows = variants.sparsity("0.2:0.8:0.2")
    assert [row.label for row in rows] == [
        *("fedavg", "keep 0.2", "keep 0.4"),
        "keep 0.6",
        "keep 0.8",
    ]
    assert rows[3].values == {"method": "fedfip", "method.rho": 0.6}
    for wrong in ("0.2:0.8", "0:1:0.1", "0.8:0.2:0.1", "0.2:0.8:0", "a:b:c"):
        with pytest.raises(ConfigError, match="FROM:TO:STEP"):
            variants.sparsity(wrong)


def test_cells_are_rows_within_data_within_seeds() -> None:
    settings = asked("seed=5", data="digits_mini,pacs=/data/pacs")
    places = [settings.place(i) for i in range(len(settings.cells()))]
    first = [("fedavg", "digits_mini"), ("fedfip", "digits_mini"), ("fedavg", "pacs")]
    assert places[:3] == [(*place, 5) for place in first]
    assert len(set(places)) == 8
    for values, (row, data, seed) in zip(settings.cells(), places, strict=True):
        assert (values["method"], values["data"], values["seed"]) == (row, data, seed)
        assert values.get("data.root") == ("/data/pacs" if data == "pacs" else None)


def test_a_key_can_hold_for_one_method_or_data_set() -> None:
    settings = asked("fedfip:method.rho=0.3", "digits_mini:data.image_size=16", "local.lr=0.05")
    configs = [trial_config(settings.base(), values) for values in settings.cells()]
    assert {c.data.image_size for c in configs} == {16}
    assert {c.local.lr for c in configs} == {0.05}
    assert {c.method.model_dump().get("keep_ratio") for c in configs} == {0.3, None}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method.rho=0.3"], "fedfip:method.rho=0.3 for one method"),
        (["--methods", "fedavg,fedfib"], "did you mean 'fedfip'"),
        (["moon:method.mu=1"], "no method or data set 'moon'"),
        (["fedfip:method.roh=1"], "did you mean 'rho'"),
        (["fedfip:method.rho"], "not of the form NAME:key=value"),
        (["--ablation", "fedfip", "--sparsity", "0.2:0.8:0.2"], "exclude each other"),
        (["--ablation", "moon"], "not for this method"),
        (["--sensitivity", "fedfib"], "did you mean 'fedfip'"),
        (["--data", "pacs=/nowhere"], "/nowhere"),
        (["--data", "digit_mini"], "digits_mini"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    words: list[str], said: str, tmp_path: Path
) -> None:
    own_rows = {"--methods", "--ablation", "--sensitivity", "--sparsity"} & set(words)
    methods = [] if own_rows else ["--methods", "fedavg,fedfip"]
    result = call(*methods, *words, f"output.dir={tmp_path}")
    assert result.exit_code == 2, result.output
    assert said in result.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_settings_survive_their_file() -> None:
    settings = asked("fedfip:method.rho=0.3", ablation=None, sparsity="0.2:0.8:0.3")
    again = TableSettings.model_validate(
        yaml.safe_load(yaml.safe_dump(settings.model_dump(mode="json")))
    )
    assert again.cells() == settings.cells()


def test_paired_differences_have_a_t_interval() -> None:
    """Differences 1, 2, 3: mean 2, error 1 / sqrt(3), t(0.975, 2) = 4.302653."""
    mean, low, high = paired(np.array([1.0, 2.0, 3.0]))
    assert mean == 2
    assert low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-5)
    assert high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-5)
    assert paired(np.array([1.5]))[0] == 1.5
    assert math.isnan(paired(np.array([1.5]))[1])
    assert math.isnan(paired(np.array([]))[0])


def test_lines_average_over_seeds_and_compare_seed_by_seed(tmp_path: Path) -> None:
    settings = asked(seeds=3)
    found = compare(cells(settings, outcomes(settings, tmp_path)), settings).set_index("row")
    fedavg, fedfip = found.loc["fedavg"], found.loc["fedfip"]
    assert fedavg["avg_mean"] == 10  # 0, 10, 20
    assert fedavg["avg_std"] == 10
    assert fedfip["avg_mean"] == 11
    assert [fedfip[key] for key in ("diff", "diff_low", "diff_high")] == [1, 1, 1]
    assert math.isnan(fedavg["diff"])
    assert fedfip["params_mean"] == 4
    assert fedfip["flops_mean"] == 5
    assert fedfip["mb_mean"] == 7
    assert fedfip["seconds_mean"] == 3


def test_any_row_can_be_what_the_others_are_compared_with(tmp_path: Path) -> None:
    settings = asked(seeds=3, baseline="fedfip")
    found = compare(cells(settings, outcomes(settings, tmp_path)), settings).set_index("row")
    assert found.loc["fedavg", "diff"] == -1
    assert math.isnan(found.loc["fedfip", "diff"])
    assert "AVG vs fedfip" in markdown(found.reset_index(), settings)
    with pytest.raises(ConfigError, match="--baseline fedfap: no such row; did you mean 'fedfip'"):
        asked(baseline="fedfap")


def test_one_row_has_nothing_to_differ_from(tmp_path: Path) -> None:
    settings = asked(methods="fedavg")
    runs = outcomes(settings, tmp_path)
    found = compare(cells(settings, runs), settings)
    assert found["diff"].isna().all()
    assert "| fedavg |" in markdown(found, settings)
    assert render(settings, runs, found, reports(runs), cells(settings, runs))


def test_a_failed_run_is_left_out_of_its_row_and_its_pair(tmp_path: Path) -> None:
    settings = asked(seeds=3)
    runs = outcomes(settings, tmp_path, run0={"status": "failed"})  # fedavg, seed 0
    found = compare(cells(settings, runs), settings).set_index("row")
    assert list(found["seeds"]) == [2, 3]
    assert found.loc["fedavg", "avg_mean"] == 15
    assert found.loc["fedfip", "diff"] == 1


def test_runs_are_told_by_their_values_not_by_their_order(tmp_path: Path) -> None:
    settings = asked()
    runs = outcomes(settings, tmp_path)
    pd.testing.assert_frame_equal(cells(settings, runs), cells(settings, runs[::-1]))


def test_the_text_forms(tmp_path: Path) -> None:
    settings = asked()
    found = compare(cells(settings, outcomes(settings, tmp_path)), settings)
    text = markdown(found, settings)
    assert "| methods | AVG | STD | personal |" in text
    assert "| fedavg | 5.00 ± 7.07 | 1.50 ± 0.00 |  | 4.0 | 5.0 | 7.0 | 3.0 |  |" in text
    assert "| +1.00 [+1.00, +1.00] |" in text
    source = latex(found, settings)
    assert r"fedavg & 5.00 $\pm$ 7.07 & 1.50 $\pm$ 0.00 &  & 4.0" in source
    assert source.count(r"\begin{tabular}{lrrrrrrrr}") == 1
    assert "digits_mini" in source
    labelled = asked(data="digits_mini", ablation="fedfip")
    assert labelled.title == "ablation of fedfip"


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_table_from_the_command_line_to_its_files(tmp_path: Path) -> None:
    words = ["--methods", "fedavg,fedprox", "--seeds", "1", *SMALL, f"output.dir={tmp_path}"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    folder = only_run(tmp_path)
    assert folder.name.endswith("-table-methods-digits_mini")
    runs = pd.read_parquet(folder / "runs.parquet")
    assert list(runs["row"]) == ["fedavg", "fedprox"]
    for _, run in runs.iterrows():
        summary = json.loads((folder / "runs" / run["trial"] / "summary.json").read_text())
        assert summary["method"] == run["row"]
        assert run["avg"] == summary["last"]["avg"]
    table = pd.read_parquet(folder / "table.parquet")
    assert table["avg_mean"].tolist() == runs["avg"].tolist()
    assert f"| fedprox | {runs['avg'][1]:.2f} |" in (folder / "table.md").read_text()
    assert "fedprox" in (folder / "table.tex").read_text()
    assert f"{runs['avg'][0]:.2f}" in result.output
