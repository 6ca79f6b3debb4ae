"""What line of a program broke the capture of a CUDA graph."""

from __future__ import annotations

import re
import traceback


def why_not_captured(error: BaseException) -> str:
    """Say what line broke a capture: what was raised first, as ending it then fails as well."""
    while error.__context__ is not None:
        error = error.__context__
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/torch/" not in f.filename.replace("depgraph/torch", "")]
    own = [f for f in own if "depgraph/torch" not in f.filename] or list(frames)
    at = own[-1]
    reason = re.split(r"\n|\. ", str(error).strip())[0] or type(error).__name__
    return f"cannot be captured: {at.filename}:{at.lineno}: {at.line}: {reason}"
