"""Programs that are run beside one another on a GPU, to measure what a model predicts."""

from __future__ import annotations

import json
import lzma
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def write_measurements(path: Path, result: dict[str, Any]) -> None:
    """Write compact JSON, compressed where the name ends in .xz."""
    text = json.dumps(result, separators=(",", ":")).encode()
    path.write_bytes(lzma.compress(text) if path.suffix == ".xz" else text)
