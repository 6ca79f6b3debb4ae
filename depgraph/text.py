"""Text for people: what comes from outside made harmless, numbers listed."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_LISTED = 8
_UNPRINTABLE = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})


def clean_text(text: str) -> str:
    """Drop terminal escapes and replace every control or formatting character by U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPE.sub("", text)
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _UNPRINTABLE else c for c in text
    )


def some_numbers(numbers: Sequence[int]) -> str:
    """List numbers, of many the first eight."""
    return ", ".join(map(str, numbers[:_LISTED])) + (", ..." if len(numbers) > _LISTED else "")
