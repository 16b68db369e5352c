"""The documents' own commands and code, run as they stand."""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from methods import METHODS
from raysim.catalog import hyperparameters
from raysim.cli import app
from raysim.config import load_config
from raysim.presets import preset_names, preset_text
from tests.toy import INPROCESS, only_run, run_command

ROOT = Path(__file__).parent.parent
METHODS_README = (ROOT / "methods" / "README.md").read_text(encoding="utf-8")
SMALL = ("rounds=1", "data.clients=20", "model=cnn", "model.width=4", "data.image_size=16")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """Return the words of each `raysim ...` or `python -m raysim.run ...` line."""
    lines = [line for block in blocks(text, "bash") for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [w for w in words if w[:1] == ["raysim"] or w[:3] == ["python", "-m", "raysim.run"]]


def save_example(folder: Path) -> list[str]:
    """Write the README's method to the file it names; returns the words of its command."""
    (code,) = blocks(METHODS_README, "python")
    assert len(code.splitlines()) <= 40
    name = re.search(r"Save this as `(\w+\.py)`", METHODS_README)
    assert name is not None
    (folder / name.group(1)).write_text(code, encoding="utf-8")
    (words,) = commands(METHODS_README)
    return words[3:]


def test_the_example_method_runs_as_the_readme_says(tmp_path: Path) -> None:
    words = save_example(tmp_path)
    done = run_command(*words, *SMALL, INPROCESS, f"output.dir={tmp_path / 'runs'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "-FedHeadProx-" in only_run(tmp_path / "runs").name
    assert "personal (clients)" in done.stdout


@pytest.mark.ray
def test_the_example_method_reaches_workers_that_have_no_such_file(
    tmp_path: Path, local_ray: str
) -> None:
    words = save_example(tmp_path)
    here = run_command(*words, *SMALL, INPROCESS, f"output.dir={tmp_path / 'a'}", cwd=tmp_path)
    assert here.returncode == 0, here.stderr
    token = {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH")}
    done = run_command(
        *words,
        *SMALL,
        "execution.hosts=2",
        f"output.dir={tmp_path / 'b'}",
        cwd=tmp_path,
        RAY_ADDRESS=local_ray,
        **token,
    )
    assert done.returncode == 0, done.stderr
    runs = [only_run(tmp_path / name) / "metrics.parquet" for name in "ab"]
    assert runs[0].read_bytes() == runs[1].read_bytes()


def test_every_setting_that_the_readme_shows_is_accepted() -> None:
    shown = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(shown) >= 5
    for words in shown:
        if "=" not in " ".join(words):
            continue
        name = words[words.index("--preset") + 1] if "--preset" in words else None
        text = preset_text(name) if name else ""
        load_config(METHODS, text=text, overrides=[w for w in words if "=" in w])


def test_every_command_that_the_readme_shows_exists() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`?raysim ([a-z]+)", text)) - {"run", "import"}
    assert named
    assert named <= known


@pytest.mark.parametrize("name", preset_names())
def test_presets_load_and_say_what_they_are(name: str) -> None:
    config = load_config(METHODS, text=preset_text(name))
    assert preset_text(name).startswith("# ")
    again = load_config(METHODS, text=yaml.safe_dump(config.resolved()))
    assert again == config


def test_the_stable_preset_is_the_default() -> None:
    assert load_config(METHODS, text=preset_text("stable")) == load_config(METHODS)


def test_ci_runs_the_readmes_test_command() -> None:
    readme = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "bash")
    command = next(block.strip() for block in readme if "pytest" in block)
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", METHODS)
def test_every_default_says_where_it_comes_from(name: str) -> None:
    items = hyperparameters(METHODS[name])
    assert [item.name for item in items if not item.source] == []
    assert [item.name for item in items if not item.description] == []


def test_the_list_of_methods_has_their_words_bytes_and_keys() -> None:
    shown = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "200"}).output
    for name, method in METHODS.items():
        assert re.search(rf"^{name}  .*{re.escape(method.paper)}", shown, flags=re.MULTILINE)
        assert f"shared: {method.shared}; private: {method.private}" in shown
        for item in hyperparameters(method):
            assert f"method.{item.name} " in shown
            assert item.source in shown
    assert "1,241,064 bytes up and 1,241,064 down" in shown


def test_an_installed_entry_point_is_a_method(tmp_path: Path) -> None:
    """What `pip install` leaves of a package, without the pip."""
    (tmp_path / "their_package.py").write_text(
        "from raysim.method import Method\n\n\nclass Theirs(Method):\n    title = 'Theirs'\n"
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[raysim.methods]\ntheirs = their_package:Theirs\n")
    where = {"PYTHONPATH": str(tmp_path)}
    runs = tmp_path / "runs"
    done = run_command("method=theirs", *SMALL, INPROCESS, f"output.dir={runs}", **where)
    assert done.returncode == 0, done.stderr
    assert "-theirs-" in only_run(runs).name
    refused = run_command("method=thers", *SMALL, INPROCESS, f"output.dir={runs}", **where)
    assert refused.returncode == 2
