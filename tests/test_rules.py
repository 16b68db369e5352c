"""Rules of the code base that a linter does not know."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("raysim", "methods", "cluster", "tune_jobs")
FILES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))
COMPOSITION = {"raysim/run.py"}
# Rooms that a room may import, beside itself.
MAY_IMPORT = {
    "raysim": set(),
    "methods": {"raysim"},
    "cluster": {"raysim"},
    "tune_jobs": {"raysim", "methods", "cluster"},
}
USER_CODE = {"raysim/plugins.py"}  # runs a method file that the user names
NO_NAMES = {"print", "eval", "exec", "breakpoint", "__import__"}
NO_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "random", "joblib"}
LEGACY = {"default_rng", "Generator", "PCG64", "SeedSequence"}  # what numpy.random may be used for
# Where torch's process-wide generator is seeded: from a key, right before a step or a model.
SEEDED = {"raysim/host.py", "raysim/skeleton.py"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


each_file = pytest.mark.parametrize("path", FILES, ids=name_of)


def test_the_walk_sees_the_code() -> None:
    names = {name_of(p) for p in FILES}
    assert COMPOSITION | SEEDED | {"cluster/session.py", "methods/fedfip.py"} <= names
    assert "torch" in set(imports(ROOT / "raysim" / "host.py"))


@each_file
def test_rooms_import_downwards_only(path: Path) -> None:
    name, room = name_of(path), path.relative_to(ROOT).parts[0]
    rooms = {module.split(".")[0] for module in imports(path)} & set(ROOMS)
    allowed = MAY_IMPORT[room] | {room}
    if name in COMPOSITION:
        allowed = allowed | {"methods", "cluster"}
    assert rooms <= allowed


@each_file
def test_ray_stays_in_its_rooms(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    if room in ("raysim", "methods"):
        assert "ray" not in {module.split(".")[0] for module in imports(path)}


@pytest.mark.parametrize("path", sorted((ROOT / "methods").glob("*.py")), ids=name_of)
def test_methods_never_import_each_other(path: Path) -> None:
    if path.name != "__init__.py":
        assert "methods" not in {module.split(".")[0] for module in imports(path)}


@each_file
def test_nothing_that_prints_runs_strings_or_unpickles(path: Path) -> None:
    assert not NO_MODULES & {module.split(".")[0] for module in imports(path)}
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    names = {dotted(call.func) for call in calls}
    assert not NO_NAMES & names or name_of(path) in USER_CODE
    assert not {"torch.load", "torch.save", "np.load"} & names


@each_file
def test_randomness_has_keys(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        text = dotted(node) if isinstance(node, ast.Attribute) else ""
        if text.startswith(("np.random.", "numpy.random.")):
            assert text.split(".")[2] in LEGACY, text
            if name_of(path) != "raysim/seeds.py" and "/digits_mini/" not in name_of(path):
                assert text.split(".")[2] == "Generator", f"{text}: draw from raysim.seeds"
        if text in ("torch.manual_seed", "torch.seed", "torch.cuda.manual_seed"):
            assert name_of(path) in SEEDED


@each_file
def test_modules_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 400


@pytest.mark.parametrize("module", ["raysim.cli", "raysim.run"])
def test_the_command_line_starts_without_heavy_imports(module: str) -> None:
    import subprocess
    import sys

    code = (
        f"import sys, {module}; print(*sorted({{'torch', 'ray', 'pandas'}} & sys.modules.keys()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert found.stdout.split() == []
