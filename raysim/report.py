"""`report.html`: one run, or several, as one page that opens offline."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from raysim import run_charts
from raysim.chart import Chart, Table, shown
from raysim.errors import RecordError, UserError
from raysim.files import write_aside
from raysim.messages import JsonDict
from raysim.pages.sections import Card, Section, page_of
from raysim.record import Record
from raysim.results import main_figures

_MEGA = 1e6
_COLUMNS = (
    *("run", "status", "method", "data", "seed", "rounds", "AVG", "STD", "AVG of last"),
    *("STD of last", "personal AVG", "MB up", "parameters", "s", "directory"),
)
_PERCENT = frozenset({"AVG", "STD", "AVG of last", "STD of last", "personal AVG"})


def write_report(runs: Sequence[Record], path: Path) -> None:
    """Write the page of some runs whole or not at all.

    Raises:
        RecordError: it cannot be written.
    """
    try:
        write_aside(path, render_report(runs).encode())
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}; give another --out"
        ) from error


def render_report(runs: Sequence[Record]) -> str:
    """Draw runs as HTML: what they have in common first, then each.

    Args:
        runs: at least one.
    """
    if len(runs) == 1:
        (run,) = runs
        return page_of(run.name, _sections(run))
    sections = [_overview(runs)]
    for number, (run, name) in enumerate(zip(runs, run_charts.names_of(runs), strict=True), 1):
        sections += [_below(section, f"run{number}", name) for section in _sections(run)]
    return page_of(f"{len(runs)} runs", sections)


def _below(section: Section, prefix: str, name: str) -> Section:
    """Return a section of one run among several, with ids of its own."""
    charts = [replace(chart, name=f"{prefix}-{chart.name}") for chart in section.charts]
    return replace(section, name=f"{prefix}-{section.name}", of=name, charts=charts)


def _overview(runs: Sequence[Record]) -> Section:
    named = zip(run_charts.names_of(runs), runs, strict=True)
    rows = tuple((name, *_row(run), run.name) for name, run in named)
    charts = [
        run_charts.together(runs, "avg", "AVG"),
        run_charts.together(runs, "std", "STD"),
        run_charts.ends(runs),
        run_charts.efficiency(runs),
    ]
    text = (
        "" if _same_data(runs) else "The runs differ in data or partition: figures do not compare."
    )
    tables = {"Runs": Table(_COLUMNS, rows, _PERCENT)}
    return Section(name="runs", title="Runs", text=text, tables=tables, charts=charts)


def _row(run: Record) -> tuple[str | int | float | None, ...]:
    s, config = run.summary, run.config
    head = (s["status"], config["method"]["name"], config["data"]["name"])
    if not run.is_done:
        return (*head, config["seed"], run.rounds, *[None] * 8)
    figures = (s["avg"], s["std"], s["last"]["avg"], s["last"]["std"])
    personal = s["personal"]["avg"] if s["personal"] else None
    costs = (s["bytes_up"] / _MEGA, s["params_sliced"], s["wall_s"])
    return (*head, config["seed"], s["rounds"], *figures, personal, *costs)


def _same_data(runs: Sequence[Record]) -> bool:
    keys = ("data_sha256", "partition_sha256")
    return len({tuple(run.environment.get(key) for key in keys) for run in runs}) == 1


def _sections(run: Record) -> list[Section]:
    panels, problem = _panels(run)
    method = str(run.config["method"]["name"]).rpartition(":")[2]
    accuracy = [run_charts.domains(run), run_charts.average(run), run_charts.spread(run)]
    accuracy += [run_charts.losses(run), *_given(run_charts.personal(run))]
    sections = [
        Section(name="summary", title="Summary", text=_status(run), cards=_cards(run)),
        Section(name="accuracy", title="Accuracy", tables=_accuracies(run), charts=accuracy),
    ]
    if panels or problem:
        sections.append(Section(name="method", title=method, text=problem, charts=panels))
    holdings = _given(run_charts.holdings(run))
    if holdings:
        sections.append(Section(name="clients", title="Clients", charts=holdings))
    costs = [run_charts.traffic(run), run_charts.efficiency([run])]
    sections.append(Section(name="costs", title="Costs", tables=_costs(run), charts=costs))
    times = [run_charts.times(run), *_given(run_charts.hosts(run))]
    sections.append(Section(name="time", title="Time", charts=times))
    sections.append(_settings(run))
    return sections


def _given(chart: Chart | None) -> list[Chart]:
    return [chart] if chart is not None else []


def _panels(run: Record) -> tuple[list[Chart], str]:
    """Return the method's charts, or why there are none: its file may be gone."""
    from raysim.skeleton import method_of

    try:
        return list(method_of(run.settings()).panels(run)), ""
    except UserError as error:
        return [], f"The method's own charts are left out: {error}"


def _status(run: Record) -> str:
    s = run.summary
    if run.is_done:
        return ""
    error = f": {s['error']}" if s.get("error") else ""
    return f"The run is {s['status']}{error}\nWhat is shown are its {run.rounds} saved rounds."


def _cards(run: Record) -> list[Card]:
    s = run.summary
    if not run.is_done:
        return [Card("rounds", str(run.rounds), f"of {run.config['rounds']}, {s['status']}")]
    last, best = s["last"], s["best"]
    cards = [
        Card("AVG", f"{s['avg']:.2f} %", f"global, after round {s['rounds']}"),
        Card("STD", f"{s['std']:.2f}", "over domains"),
        Card("AVG of last", f"{last['avg']:.2f} %", f"STD {last['std']:.2f}"),
        Card("best AVG", f"{best['avg']:.2f} %", f"round {best['round']}, by the test set"),
    ]
    if s["personal"]:
        own = s["personal"]
        cards.append(Card("personal AVG", f"{own['avg']:.2f} %", f"STD {own['std']:.2f} (clients)"))
    for domain, found in s["unseen"].items():
        adapted = f"adapted {found['adapted']:.2f} %" if "adapted" in found else "unseen"
        cards.append(Card(domain, f"{found['global']:.2f} %", adapted))
    if s["val"]:
        chosen = s["val"]["chosen"]
        detail = f"round {chosen['round']}, chosen by validation"
        cards.append(Card("AVG chosen", f"{main_figures(chosen)['avg']:.2f} %", detail))
    cards += [
        Card("sent", f"{s['bytes_up'] / _MEGA:,.1f} MB", f"down {s['bytes_down'] / _MEGA:,.1f} MB"),
        Card("parameters", shown(s["params_sliced"]), "of the model as evaluated"),
        Card("time", f"{s['wall_s']:,.1f} s", f"{s['wall_s'] / s['rounds']:.2f} s a round"),
    ]
    if s["recoveries"]:
        cards.append(Card("recoveries", str(s["recoveries"]), "losses made good"))
    if s["skipped_updates"]:
        cards.append(Card("skipped", str(s["skipped_updates"]), "updates with NaN or infinity"))
    return cards


def _accuracies(run: Record) -> dict[str, Table]:
    if not run.is_done:
        return {}
    found = run.summary["domains"]
    row = ("global", *found.values(), run.summary["avg"], run.summary["std"])
    caption = f"Accuracy in percent after round {run.summary['rounds']}"
    names = (*found, "AVG", "STD")
    return {caption: Table(("model", *names), (row,), frozenset(names))}


def _costs(run: Record) -> dict[str, Table]:
    s: JsonDict = run.summary
    if not run.is_done:
        return {}
    rows = (
        ("parameters", s["params"], s["params_sliced"]),
        ("multiply-adds of one example", s["flops"], s["flops_sliced"]),
    )
    names = ("of the global model", "nominal (by the mask's filters)", "physical (sliced)")
    sent = (
        ("up", s["bytes_up"] / _MEGA, s["bytes_up"] / _MEGA / s["rounds"]),
        ("down", s["bytes_down"] / _MEGA, s["bytes_down"] / _MEGA / s["rounds"]),
    )
    return {
        "Size and work": Table(names, rows),
        "Bytes, all clients together": Table(("way", "MB", "MB a round"), sent),
    }


def _settings(run: Record) -> Section:
    found = run.environment
    packages = ", ".join(f"{name} {v}" for name, v in found.get("packages", {}).items() if v)
    facts = {k: str(v) for k, v in found.items() if k != "packages"} | {"packages": packages}
    for key in ("partition_sha256", "weights_sha256"):
        if key in run.summary:
            facts[key] = run.summary[key]
    text = (run.folder / "config.yaml").read_text(encoding="utf-8")
    listings = {"config.yaml": text}
    return Section(name="settings", title="Settings", facts=facts, listings=listings)
