"""A trial by itself, without Tune: it reports, goes on and ends with the bits of a plain run."""

from pathlib import Path
from typing import Any

import pytest
import ray
from rich.console import Console

from raysim.config import RunConfig
from raysim.errors import ClusterError, ConfigError, RunError
from raysim.run import execute
from tests.toy import FEDFIP, TEST_METHODS, bits_of, only_run, toy_config
from tune_jobs.trainable import VALUES, FederatedRun, trial_config

LR = {"local.lr": 0.05}


def base(folder: Path, **more: Any) -> RunConfig:
    """Return a search's config with 4 rounds, two a report, as a study would place it."""
    settings: dict[str, Any] = {
        "rounds": 4,
        "method": FEDFIP,
        "data.split": {"val": 0.2},
        "data.clients": 20,
        "participation.fraction": 0.1,
        "output.dir": str(folder),
        "output.checkpoint_every": 2,
    }
    return toy_config(**settings | more)


class Trial(FederatedRun):
    """A trial that is told its study at once."""

    def __init__(self, config: RunConfig, runs: Path, values: dict[str, Any] = LR) -> None:
        self._given = {"base": config, "runs": runs}
        super().__init__({VALUES: values})

    def setup(self, config: dict[str, Any], **_: Any) -> None:  # type: ignore[override]
        super().setup(config, **self._given)

    @property
    def trial_id(self) -> str:
        return "one"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the directory of a plain run of so many rounds."""
    done: dict[int, Path] = {}

    def run(rounds: int) -> Path:
        if rounds not in done:
            folder = tmp_path_factory.mktemp("plain")
            execute(trial_config(base(folder, rounds=rounds), LR), Console(quiet=True))
            done[rounds] = only_run(folder)
        return done[rounds]

    return run


def test_a_trial_reports_and_ends_as_the_plain_run(tmp_path: Path, plain: Any) -> None:
    before = ray.is_initialized()
    trial = Trial(base(tmp_path), tmp_path)
    trial._std_weight = 0.5
    first, last = trial.train(), trial.train()
    trial.stop()
    assert [first["round"], last["round"]] == [2, 4]
    assert [first["done"], last["done"]] == [False, True]
    assert bits_of(tmp_path / "one") == bits_of(plain(4))
    assert ray.is_initialized() == before  # nothing here needs it
    for found in (first, last):
        assert found["score"] == found["val_avg"] - 0.5 * found["val_std"]
        assert {"val_std", "test_avg", "test_std"} <= found.keys()


def test_a_lost_trial_goes_on_from_its_own_checkpoint(tmp_path: Path, plain: Any) -> None:
    lost = Trial(base(tmp_path), tmp_path)
    before = lost.train()  # and never heard of again
    lost._stack.close()
    again = Trial(base(tmp_path), tmp_path)  # Tune has forgotten all about it
    assert again._federation.saved_rounds == 2
    same, last = again.train(), again.train()
    again.stop()
    figures = [key for key in before if key.startswith(("val_", "test_"))]
    assert {k: same[k] for k in figures} == {k: before[k] for k in figures}
    assert last["round"] == 4
    assert bits_of(tmp_path / "one") == bits_of(plain(4))


def test_tunes_checkpoint_is_a_number_of_rounds(tmp_path: Path) -> None:
    trial = Trial(base(tmp_path), tmp_path)
    trial.train()
    saved = trial.save_checkpoint("")
    trial._stack.close()
    again = Trial(base(tmp_path), tmp_path)
    again.load_checkpoint(saved)
    assert again.train()["round"] == 4
    again.stop()


def test_a_trial_that_is_stopped_early_is_a_complete_run(tmp_path: Path, plain: Any) -> None:
    trial = Trial(base(tmp_path), tmp_path)
    trial.train()
    trial.stop()
    assert bits_of(tmp_path / "one") == bits_of(plain(2))
    assert '"status": "stopped"' in (tmp_path / "one" / "summary.json").read_text()


def test_what_is_left_of_a_run_without_a_checkpoint_is_begun_anew(
    tmp_path: Path, plain: Any
) -> None:
    (tmp_path / "one" / "checkpoints").mkdir(parents=True)
    (tmp_path / "one" / "config.yaml").write_text("half")
    trial = Trial(base(tmp_path, rounds=2), tmp_path)
    trial.train()
    trial.stop()
    assert bits_of(tmp_path / "one") == bits_of(plain(2))


def test_wrong_values_fail_the_first_step_in_the_configs_words(tmp_path: Path) -> None:
    trial = Trial(base(tmp_path), tmp_path, {"local.lr": -1})
    with pytest.raises(ConfigError, match=r"local\.lr"):
        trial.train()
    trial.stop()
    assert not (tmp_path / "one").exists()


def test_a_node_that_does_not_see_the_study_says_so(tmp_path: Path) -> None:
    trial = Trial(base(tmp_path), tmp_path / "elsewhere")
    with pytest.raises(ClusterError, match="every node must see the study's folder"):
        trial.train()
    trial.stop()
    assert not (tmp_path / "elsewhere").exists()


def test_a_failing_client_fails_the_trial_and_the_last_round_is_saved(tmp_path: Path) -> None:
    method = {"name": "failing_fedavg", "when": 1}
    config = base(tmp_path, method=method, **{"participation.fraction": 1.0, "data.clients": 4})
    assert type(config.method) in TEST_METHODS.values()
    trial = Trial(config, tmp_path)
    with pytest.raises(RunError, match="a cable was pulled"):
        trial.train()
    trial.stop()
    summary = (tmp_path / "one" / "summary.json").read_text()
    assert '"status": "failed"' in summary
    assert '"rounds": 1' in summary


def test_values_replace_keys_under_any_of_their_names() -> None:
    config = trial_config(toy_config(method="fedfip"), {"method.rho": 0.25, "data.clients": 12})
    assert config.method.model_dump()["keep_ratio"] == 0.25
    assert config.data.clients == 12
    assert trial_config(config, {"method": "fedavg"}).method.name == "fedavg"
