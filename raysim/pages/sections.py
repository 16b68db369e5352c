"""Pages that are made of sections: figures in large type, tables, charts, facts and listings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raysim.charts import Chart, Table
from raysim.pages import render_page


@dataclass(frozen=True)
class Card:
    """One figure in large type: what it is, its value, and a detail below."""

    title: str
    value: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page, shown in the order of the attributes.

    Attributes:
        name: its id on the page, in links to it.
        title: heading.
        text: paragraphs, one a line.
        cards: the figures that matter most.
        tables: by caption.
        charts: drawings.
        facts: names and what they say.
        listings: preformatted texts by caption, folded.
        of: what the section belongs to, if there are several such, e.g. a run's name.
    """

    name: str
    title: str
    text: str = ""
    cards: Sequence[Card] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    listings: Mapping[str, str] = field(default_factory=dict)
    of: str = ""


def page_of(title: str, sections: Sequence[Section]) -> str:
    """Return sections as one HTML page that opens offline; equal arguments, equal text."""
    return render_page("sections.html.j2", title=title, sections=sections)
