"""Text from outside, made harmless for a terminal."""

from __future__ import annotations

import re
import unicodedata

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_UNPRINTABLE = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})


def clean_text(text: str) -> str:
    """Drop terminal escapes and replace every control or formatting character by U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPE.sub("", text)
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _UNPRINTABLE else c for c in text
    )
