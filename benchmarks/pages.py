"""Tables between the two marks of a page."""

from __future__ import annotations


def replace_tables(page: str, tables: str, name: str = "tables") -> str:
    """Return a page with other tables between its marks of a name.

    Raises
    ------
    ValueError
        If the page lacks the marks.
    """
    first, last = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        message = f"the page lacks the lines {first.strip()} and {last}"
        raise ValueError(message)
    return f"{before}{begin}\n{tables}\n{end}{after}"
