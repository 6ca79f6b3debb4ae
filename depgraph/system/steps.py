"""How far a long computation is, told to whoever may show it."""

from __future__ import annotations


class Steps:
    """Is told what begins and how many steps it has, and when one of them is done.

    This one shows nothing. Threads may call it side by side.
    """

    def begin(self, what: str, steps: int) -> None:
        """Begin something of so many steps."""

    def done(self) -> None:
        """Be told that one step is done."""


NOBODY = Steps()
"""Watches nothing."""
