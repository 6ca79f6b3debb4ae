"""The one place that decides how numeric code is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

Function = TypeVar("Function", bound="Callable[..., Any]")


def compiled(function: Function) -> Function:
    """Compile a function on plain arrays: no Python objects, no GIL, cached on disk if possible.

    The on-disk cache is keyed by the file of `function` alone, so functions that call each
    other belong in one file.
    """
    try:
        jitted = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder it may write its cache to
        jitted = numba.njit(nogil=True)(function)
    return cast("Function", jitted)
