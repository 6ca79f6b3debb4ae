"""Tables between the two marks of a page."""

from __future__ import annotations

_BEGIN = "<!-- tables: begin -->\n"
_END = "<!-- tables: end -->"


def replace_tables(page: str, tables: str) -> str:
    """Return a page with other tables between its marks.

    Raises
    ------
    ValueError
        If the page lacks the marks.
    """
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        message = f"the page lacks the lines {_BEGIN.strip()} and {_END}"
        raise ValueError(message)
    return f"{before}{begin}\n{tables}\n{end}{after}"
