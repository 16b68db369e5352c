"""What a run left, read back: settings, tables, what its method showed, its global model."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysim.config import MethodTable, build_config
from raysim.errors import ConfigError, RecordError
from raysim.folder import METHOD_FILE
from raysim.messages import JsonDict
from raysim.plugins import or_kept
from raysim.results import ALL
from raysim.watched import WatchedFiles
from raysim.yaml_text import parse_yaml

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

    from raysim.config import RunConfig
    from raysim.models import ChannelModel
    from raysim.plots import Plots

MAIN = "config.yaml"
_NEEDED = ("seed", "rounds", "method.name", "data.name", "data.clients", "data.unseen")
_REMEDY = "put a copy of the file back, or leave the run out"


class Record:
    """One run directory.

    Attributes:
        folder: its absolute path.
        config: the settings as plain values.
        summary: `summary.json`; `{"status": "unfinished"}` while the run goes on or after a kill.
        environment: versions, hardware, placement.
        domains: names by domain id.
        classes: names by class id.
    """

    def __init__(self, folder: Path, methods: MethodTable) -> None:
        """Read the small files; tables are read when they are asked for.

        Args:
            folder: a run directory.
            methods: method classes by name.

        Raises:
            RecordError: it is none, nothing of it was saved, or a file is damaged.
        """
        self.folder = folder.resolve()
        self._methods = methods
        if not (folder / MAIN).is_file():
            raise RecordError(f"{folder} is not a run directory: it has no {MAIN}")
        self.config = _config(folder / MAIN)
        ended = folder / "summary.json"
        found = _json(ended) if ended.exists() else {}
        if found.get("status") == "done" and found.get("rounds") != self.config["rounds"]:
            found = {}  # of the shorter run that this one was, before it went on
        self.summary: JsonDict = {"status": "unfinished"} | found
        metrics = folder / "metrics.parquet"
        if not metrics.is_file():
            if self.is_done:
                raise _damaged(metrics, FileNotFoundError())
            raise RecordError(
                f"{folder}: no round is saved yet; the first ones are after "
                "output.checkpoint_every rounds, or at the run's end"
            )
        self.environment = _json(folder / "environment.json")
        data = _json(folder / "data.json")
        self.domains: list[str] = data.get("domains", [])
        self.classes: list[str] = data.get("classes", [])
        self._held: Sequence[Sequence[int]] = data.get("held", ())

    def __repr__(self) -> str:
        """Name the run and how it ended."""
        figures = ""
        if self.is_done:
            figures = f", AVG {self.summary['avg']:.2f}, STD {self.summary['std']:.2f}"
        return f"<Record {self.folder.name}: {self.summary['status']}{figures}>"

    @property
    def name(self) -> str:
        """The run directory's name."""
        return self.folder.name

    @property
    def label(self) -> str:
        """Method and seed in few words."""
        name = str(self.config["method"]["name"]).rpartition(":")[2]
        return f"{name} s{self.config['seed']}"

    @property
    def is_done(self) -> bool:
        """Whether the run came to its end, so that the summary is complete."""
        return "avg" in self.summary

    @cached_property
    def metrics(self) -> "DataFrame":
        """`metrics.parquet`: round, model, client, domain, split, metric, value, count."""
        return _table(self.folder / "metrics.parquet")

    @cached_property
    def timings(self) -> "DataFrame":
        """`timings.parquet`: round, phase, host, client, what, seconds, bytes."""
        return _table(self.folder / "timings.parquet")

    @property
    def watched(self) -> WatchedFiles:
        """What the method showed of its rounds."""
        return WatchedFiles(self.folder / "watched")

    @property
    def rounds(self) -> int:
        """Complete rounds that the tables hold."""
        return int(self.metrics["round"].max())

    @property
    def seen(self) -> list[str]:
        """Names of the domains that some client trains on."""
        return [name for name in self.domains if name not in self.config["data"]["unseen"]]

    @property
    def held(self) -> NDArray[np.int64]:
        """Training images by client, domain and class, [M, D, K]."""
        size = (self.config["data"]["clients"], len(self.domains), len(self.classes))
        counts = np.zeros(size, np.int64)
        for client, domain, label, count in self._held:
            counts[client, domain, label] = count
        return counts

    @property
    def plot(self) -> "Plots":
        """Charts of the run as Plotly figures: `record.plot.domains()`, ..."""
        from raysim.plots import Plots

        return Plots(self)

    def series(self, metric: str, **where: Any) -> dict[int, float]:
        """Return a metric by round.

        Args:
            metric: its name.
            **where: `model`, `client`, `domain`, `split`, where they are not those of a figure of
                the global model over all domains (split "train" for figures of training).
        """
        want = {"model": "global", "client": -1, "domain": ALL, "split": "train"} | where
        table = self.metrics
        chosen = table["metric"] == metric
        for column, value in want.items():
            chosen &= table[column] == value
        found = table[chosen]
        return dict(zip(found["round"].tolist(), found["value"].tolist(), strict=True))

    def settings(self) -> "RunConfig":
        """Return the typed config.

        Raises:
            ConfigError: it is no config of this version, or the method is not there.
        """
        name = str(self.config["method"]["name"])
        methods = or_kept(self._methods, name, self.folder / METHOD_FILE)
        return build_config(self.config, methods)

    def global_model(self) -> "ChannelModel":
        """Return the global model of the last saved round, as it is evaluated, in eval mode.

        It takes normalised images as training does (`raysim.training.ShardData`), and its
        `state_dict()` is a plain one, in the shapes of the sliced model where units are pruned.

        Raises:
            UserError: no checkpoint is left, or the method is not there.
        """
        from raysim.restoring import restore_global

        return restore_global(self.settings(), self.folder, len(self.classes), len(self.domains))

    def accuracy(self, model: "nn.Module") -> dict[str, float]:
        """Test a model as the run tests its global one; returns percent by domain.

        Args:
            model: maps normalised images to logits, as `global_model()` does.

        Raises:
            UserError: the data are not there.
        """
        from raysim.restoring import accuracy

        return accuracy(model, self.settings())


def _config(path: Path) -> JsonDict:
    try:
        found = _mapping(parse_yaml(path.read_text(encoding="utf-8"), MAIN), path)
    except (UnicodeDecodeError, ConfigError) as error:
        raise _damaged(path, error) from None
    missing = [key for key in _NEEDED if not _has(found, key)]
    if missing:
        raise _damaged(path, f"it lacks {', '.join(missing)}")
    return found


def _json(path: Path) -> JsonDict:
    try:
        return _mapping(json.loads(path.read_text(encoding="utf-8")), path)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _mapping(found: Any, path: Path) -> JsonDict:
    if not isinstance(found, dict):
        raise _damaged(path, "it holds no keys and values")
    return found


def _has(tree: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def _damaged(path: Path, why: object) -> RecordError:
    if isinstance(why, FileNotFoundError):
        return RecordError(f"{path} is not there\n{_REMEDY}")
    told = why.strerror or why if isinstance(why, OSError) else why
    return RecordError(f"{path} is damaged: {told}\n{_REMEDY}")


def _table(path: Path) -> "DataFrame":
    import pandas
    import pyarrow

    try:
        return pandas.read_parquet(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise _damaged(path, error) from None
