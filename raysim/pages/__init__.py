"""Pages: self-contained HTML files that open offline, made from the Jinja2 templates beside this.

`base.html.j2` is the frame (style, heading, contents), `parts.html.j2` holds what pages share, and
each page is a template that extends the frame. A page loads nothing and runs no script: its
content security policy forbids both, so that names from strangers' files can do no harm.
"""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_page(template: str, **values: object) -> str:
    """Fill a template.

    Args:
        template: file name in this folder.
        **values: what the template shows; text is escaped.

    Returns:
        HTML that UTF-8 can encode: file names that are no text are shown with escapes.
    """
    page = _environment().get_template(template).render(**values)
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("raysim", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    return environment
