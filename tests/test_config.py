from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from methods import METHODS
from raysim.config import RunConfig, changed_keys, load_config
from raysim.errors import ConfigError
from raysim.presets import preset_names, preset_text


def load(*overrides: str, text: str = "") -> RunConfig:
    return load_config(METHODS, text=text, overrides=overrides)


def experiment(config: RunConfig) -> dict[str, Any]:
    return config.experiment("data hash", "partition hash")


def refusal(*overrides: str, text: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        load(*overrides, text=text)
    return str(caught.value)


def test_defaults_are_the_main_job() -> None:
    config = load()
    assert config.method.name == "fedfip"
    assert (config.seed, config.rounds) == (0, 20)
    assert (config.data.name, config.data.clients, config.data.image_size) == (
        "digits_mini",
        20,
        32,
    )
    assert config.data.partition.kind == "domain_dirichlet"
    assert (config.model.name, config.model.width) == ("resnet10", 16)
    assert (config.execution.backend, config.execution.hosts) == ("ray", "auto")
    assert (config.output.checkpoint_every, config.output.keep_checkpoints) == (5, 2)


def test_sections_of_the_contract() -> None:
    sections = "seed rounds method data model local participation evaluation execution output"
    assert list(load().resolved()) == sections.split()


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("rounds=3", "rounds", 3),
        ("method=fedavg", "method.name", "fedavg"),
        ("method.name=fedavg", "method.name", "fedavg"),
        ("method.rho=0.25", "method.keep_ratio", 0.25),
        ("method.keep_ratio=0.25", "method.keep_ratio", 0.25),
        ("method.phi=2", "method.reactivation_threshold", 2.0),
        ("method.mu=0.4", "method.prototype_momentum", 0.4),
        ("method.lambda=0.005", "method.contrastive_weight", 0.005),
        ("local.lr=1e-3", "local.lr", 0.001),
        ("local.weight_decay=1e-5", "local.weight_decay", 1e-5),
        ("data.partition.alpha=5", "data.partition.alpha", 5.0),
        ("data.partition=iid", "data.partition.kind", "iid"),
        ("data.partition.kind=domains_per_client", "data.partition.domains", 2),
        ("model=cnn", "model.name", "cnn"),
        ("execution.hosts=3", "execution.hosts", 3),
        ("execution.hosts=auto", "execution.hosts", "auto"),
        ("execution.gpus_per_host=0.25", "execution.gpus_per_host", 0.25),
        ("data.root=null", "data.root", None),
    ],
)
def test_overrides(override: str, path: str, value: Any) -> None:
    node: Any = load(override).resolved()
    for part in path.split("."):
        node = node[part]
    assert node == value


def test_overrides_win_over_the_text_and_later_over_earlier() -> None:
    config = load("rounds=4", "rounds=5", text="rounds: 3\nlocal: {lr: 0.1}\n")
    assert (config.rounds, config.local.lr) == (5, 0.1)


@pytest.mark.parametrize("old", ["rho", "keep_ratio"])
@pytest.mark.parametrize("new", ["rho", "keep_ratio"])
def test_overrides_win_under_any_name(old: str, new: str) -> None:
    text = f"method: {{name: fedfip, {old}: 0.5}}"
    assert load(f"method.{new}=0.25", text=text).resolved()["method"]["keep_ratio"] == 0.25


def test_another_method_drops_the_old_ones_keys_and_the_same_one_keeps_them() -> None:
    text = "method: {name: fedfip, keep_ratio: 0.3}"
    assert load("method=fedavg", text=text).method.name == "fedavg"
    assert load("method=fedfip", text=text).resolved()["method"]["keep_ratio"] == 0.3


def test_a_methods_keys_count_wherever_the_method_is_named() -> None:
    config = load("method.rho=0.25", "method=fedfip")
    assert config.resolved()["method"]["keep_ratio"] == 0.25
    with pytest.raises(ConfigError, match="rho: unknown key"):
        load("method.rho=0.25", "method=fedavg")


def test_overrides_win_for_a_users_method_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from methods.fedfip import FedFIP\n\n\nclass Mine(FedFIP):\n    pass\n")
    text = f"method: {{name: '{file}:Mine', keep_ratio: 0.5}}"
    assert load("method.rho=0.25", text=text).resolved()["method"]["keep_ratio"] == 0.25


def test_a_class_that_a_file_imports_is_not_the_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from methods.fedfip import FedFIP\n")
    with pytest.raises(ConfigError, match="FedFIP is imported there"):
        load(f"method={file}:FedFIP")
    assert load("method=fedfip").method_sha256 is None


def test_home_folders_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    partition = "data.partition={kind: file, path: ~/clients.csv}"
    config = load("output.dir=~/runs", partition).resolved()
    assert config["output"]["dir"] == "/home/someone/runs"
    assert config["data"]["partition"]["path"] == "/home/someone/clients.csv"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("loca.lr=1", ("loca", "'local'")),
        ("local.learning_rate=1", ("local.learning_rate", "unknown key")),
        ("local.momentun=0.5", ("local.momentun", "'momentum'")),
        ("method.keep_ration=0.5", ("method.keep_ration", "'keep_ratio'")),
        ("method=fedfib", ("fedfib", "'fedfip'")),
        ("model=resnet11", ("model.name", "resnet10")),
        ("data.partition.kind=dirichlet", ("data.partition", "domain_dirichlet")),
        ("data.partition.alpa=1", ("data.partition.alpa", "'alpha'")),
        ("execution.host=2", ("execution.host", "'hosts'")),
        ("execution.backend=dask", ("execution.backend", "inprocess")),
        ("output.dir=s3://bucket/runs", ("output.dir", "a path is needed", "s3://bucket/runs")),
        ("method.rho=0", ("method.rho", "(0", "1]", "0")),
        ("method.keep_ratio=1.5", ("method.keep_ratio", "(0", "1]", "1.5")),
        ("participation.fraction=2", ("participation.fraction", "(0", "1]", "2")),
        ("local.momentum=1", ("local.momentum", "[0", "1)")),
        ("local.lr=nan", ("local.lr",)),
        ("seed=-1", ("seed", "[0")),
        ("rounds=0", ("rounds",)),
        ("rounds=2.5", ("rounds", "2.5")),
        ("rounds=many", ("rounds", "many")),
        ("local.batch_size=0", ("local.batch_size",)),
        ("execution.hosts=0", ("execution.hosts", "0")),
        ("execution.hosts=some", ("execution.hosts", "some")),
        ("method=[1]", ("method",)),
        ("data=3", ("data",)),
        ("rounds.x=3", ("rounds",)),
        ("rounds", ("key=value",)),
        ("=3", ("key=value",)),
        (".lr=3", ("key=value",)),
        ("rounds=[1", ("rounds", "YAML")),
    ],
)
def test_refusals_name_key_and_remedy(override: str, words: tuple[str, ...]) -> None:
    message = refusal(override)
    for word in words:
        assert word in message
    assert "pydantic" not in message


def test_a_name_beside_its_alias_is_given_twice() -> None:
    message = refusal(text="method: {name: fedfip, keep_ratio: 0.5, rho: 0.25}")
    assert "twice" in message
    assert "did you mean" not in message


def test_several_mistakes_are_told_at_once() -> None:
    message = refusal("rounds=0", "local.lr=-1", "sed=1")
    assert all(key in message for key in ("rounds", "local.lr", "sed"))


@pytest.mark.parametrize("text", ["- 1\n", "just words", "a: [1", "{", "seed: 2020-13-45"])
def test_malformed_files_are_refused(text: str) -> None:
    assert "the config" in refusal(text=text)


def test_yaml_cannot_make_objects() -> None:
    assert refusal(text="seed: !!python/object/apply:os.getpid []")


@pytest.mark.parametrize("preset", ["", *preset_names()])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_resolved_config_gives_itself_again(preset: str, method: str) -> None:
    text = preset_text(preset) if preset else ""
    config = load(f"method={method}", text=text)
    again = load(text=yaml.safe_dump(config.resolved(), sort_keys=False))
    assert again == config
    assert experiment(again) == experiment(config)


def test_unknown_presets_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'literal'"):
        preset_text("literall")


@pytest.mark.parametrize(
    "override",
    ["execution.backend=inprocess", "execution.hosts=3", "output.dir=/x", "execution.address=a:1"],
)
def test_execution_and_output_are_no_part_of_the_experiment(override: str) -> None:
    assert experiment(load(override)) == experiment(load())


@pytest.mark.parametrize(
    "override",
    [
        *("seed=1", "rounds=21", "method.rho=0.4", "data.clients=21", "local.threads=2"),
        *("evaluation.every=2", "model.width=8", "participation.fraction=0.5"),
    ],
)
def test_everything_else_is(override: str) -> None:
    assert experiment(load(override)) != experiment(load())


def test_roots_mean_the_same_in_every_folder() -> None:
    assert load("data.root=some/where").data.root == str(Path("some/where").absolute())
    assert load("data.root=~/some/where").data.root == str(Path.home() / "some/where")
    assert load("data.root=s3://some/where").data.root == "s3://some/where"


def test_policies_name_known_kinds() -> None:
    assert load("data.policy.gray=skip").data.policy == {"gray": "skip"}
    assert "data.policy: no kind of finding 'grey'; did you mean 'gray'?" in refusal(
        "data.policy.grey=skip"
    )
    assert "data.policy: truncated=keep: must be error or skip" in refusal(
        "data.policy.truncated=keep"
    )


def test_data_and_partition_count_by_their_hashes_not_by_where_they_lie() -> None:
    here, there = (
        load(f"data.root=/{d}", f"data.partition={{kind: file, path: /{d}/p.csv}}") for d in "ab"
    )
    assert experiment(here) == experiment(there)
    assert changed_keys(here.experiment("a", "b"), there.experiment("x", "b")) == ["data.sha256"]
    other = changed_keys(here.experiment("a", "b"), there.experiment("a", "x"))
    assert other == ["data.partition.sha256"]


def test_changed_keys_are_dotted_and_sorted() -> None:
    old = experiment(load())
    new = experiment(load("seed=1", "local.lr=0.5", "data.partition=iid"))
    keys = changed_keys(old, new)
    assert keys == sorted(keys)
    assert {"seed", "local.lr", "data.partition.kind", "data.partition.alpha"} <= set(keys)
    assert changed_keys(old, old) == []


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_override_ends_in_anything_but_a_config_error(key: str, value: str) -> None:
    config = load()
    with suppress(ConfigError):  # any other exception fails the test
        config = load(f"{key}={value}", f"local.{key}={value}")
    assert load_config(METHODS, text=yaml.safe_dump(config.resolved())) == config


@pytest.mark.parametrize(
    "key", ["rounds", "local.lr", "data.partition.min_examples", "method.rho", "method.lambda"]
)
def test_booleans_are_no_numbers(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: true and false mean nothing here"):
        load_config(METHODS, overrides=[f"{key}=true"])


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="the key 'rounds' stands twice"):
        load_config(METHODS, text="rounds: 1\nrounds: 2\n")
