"""Tables between the two marks of a page."""

from __future__ import annotations


def replace_tables(page: str, tables: str, name: str = "tables") -> str:
    """Return a page with other tables between its marks.

    Parameters
    ----------
    name : str
        Of the marks, where a page has several.

    Raises
    ------
    ValueError
        If the page lacks the marks.
    """
    marks = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, begin, rest = page.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        message = f"the page lacks the lines {marks[0].strip()} and {marks[1]}"
        raise ValueError(message)
    return f"{before}{begin}\n{tables}\n{end}{after}"
