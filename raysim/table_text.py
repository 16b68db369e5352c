"""Tables as text: for terminals, Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import TYPE_CHECKING

from raysim.chart import Table, shown

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}


def rich_table(table: Table, title: str = "") -> "RichTable":
    """Return a table for a terminal; where it is too narrow, cells go on in the next line."""
    from rich.table import Table as RichTable

    found = RichTable(title=title or None)
    for number, column in enumerate(table.columns):
        found.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in table.shown():
        found.add_row(*row)
    return found


def markdown(table: Table) -> str:
    """Return a table as GitHub's Markdown."""
    lines = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)], *table.shown()]
    return "".join(f"| {' | '.join(_piped(cells))} |\n" for cells in lines)


def latex(table: Table) -> str:
    """Return a table as a LaTeX `tabular` with booktabs rules."""
    rows = [" & ".join(map(_escaped, cells)) + r" \\" for cells in table.shown()]
    head = " & ".join(map(_escaped, table.columns)) + r" \\"
    spec = "l" + "r" * (len(table.columns) - 1)
    body = "\n".join([head, r"\midrule", *rows])
    return f"\\begin{{tabular}}{{{spec}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"


def as_csv(table: Table) -> str:
    """Return a table as CSV, numbers unrounded."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
    return out.getvalue()


def joined(table: Table) -> Table:
    """Return the table with each column `x ±` written into the cells of `x` before it."""
    keep = [i for i, column in enumerate(table.columns) if not column.endswith(" ±")]
    rows = tuple(tuple(_with_spread(table, row, i) for i in keep) for row in table.rows)
    return Table(tuple(table.columns[i] for i in keep), rows)


def letters(names: Sequence[str]) -> dict[str, str]:
    """Return a short name for each name: A, B, ... Z, AA, AB, ..."""
    pairs = (first + second for first in ascii_uppercase for second in ascii_uppercase)
    return dict(zip(names, (*ascii_uppercase, *pairs), strict=False))


def renamed(table: Table, names: Mapping[str, str]) -> Table:
    """Return the table with other headings, where the mapping has some."""
    columns = tuple(names.get(column, column) for column in table.columns)
    return Table(columns, table.rows, frozenset(names.get(c, c) for c in table.percent))


def transposed(table: Table) -> Table:
    """Return the table with rows and columns exchanged; cells become text."""
    first, *others = zip(table.columns, *table.shown(), strict=True)
    return Table(tuple(first), tuple(map(tuple, others)))


def _with_spread(table: Table, row: Sequence[str | int | float | None], at: int) -> str:
    after = at + 1
    has = after < len(row) and table.columns[after] == f"{table.columns[at]} ±"
    percent = table.columns[at] in table.percent
    spread = f" ± {shown(row[after], percent=percent)}" if has and row[after] is not None else ""
    return shown(row[at], percent=percent) + spread


def _piped(cells: Sequence[str]) -> list[str]:
    return [cell.replace("|", r"\|") for cell in cells]


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)
