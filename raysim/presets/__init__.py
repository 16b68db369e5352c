"""Configurations that ship with raysim; `raysim presets` lists them."""

from importlib.resources import files
from pathlib import Path

from raysim.errors import ConfigError
from raysim.settings import did_you_mean


def preset_names() -> list[str]:
    """Return the names of the presets that ship with the package."""
    folder = files(__name__)
    return sorted(
        p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    """Return a preset's YAML.

    Raises:
        ConfigError: no preset of this name.
    """
    if name not in preset_names():
        raise ConfigError(f"no preset {name!r}{did_you_mean(name, preset_names())}")
    return (files(__name__) / f"{name}.yaml").read_text()


def starting_text(config_file: Path | None, preset: str | None) -> tuple[str, str]:
    """Return the YAML that a command line starts from, and what errors call it.

    Args:
        config_file: a file of the user's.
        preset: shipped settings, instead of a file.

    Raises:
        ConfigError: the file cannot be read, there is no such preset, or both are given.
    """
    if config_file is not None and preset is not None:
        raise ConfigError("--config and --preset exclude each other")
    if preset is not None:
        return preset_text(preset), f"preset {preset}"
    if config_file is None:
        return "", "the config"
    try:
        return config_file.read_text(encoding="utf-8"), str(config_file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {config_file}: {error}") from None
