"""How far a long computation is, told to whoever may show it."""

from __future__ import annotations


class Steps:
    """Is told, by any thread, what begins in how many steps, and when one is done."""

    def begin(self, what: str, steps: int) -> None:
        """Begin something of so many steps."""

    def done(self) -> None:
        """Be told that one step is done."""


NOBODY = Steps()
"""Watches nothing."""
