"""What line of a program broke the capture of a CUDA graph."""

import re
import traceback

_OF_SCALERS = "grad_scaler.py"


def why_not_captured(error: BaseException) -> str:
    """Say what line broke a capture: what was raised first, as ending it then fails as well."""
    first = _first(error)
    frames = traceback.extract_tb(first.__traceback__)
    own = [f for f in frames if "/torch/" not in f.filename.replace("depgraph/torch", "")]
    own = [f for f in own if "depgraph/torch" not in f.filename] or list(frames)
    at = own[-1]
    reason = re.split(r"\n|\. ", str(first).strip())[0] or type(first).__name__
    return f"cannot be captured: {at.filename}:{at.lineno}: {at.line}: {reason}"


def what_helps(error: BaseException) -> str:
    """Say what to do about what broke a capture; "" where the line says it all."""
    frames = traceback.extract_tb(_first(error).__traceback__)
    if any(frame.filename.endswith(_OF_SCALERS) for frame in frames):
        return "give the optimizer fused=True: infinities are looked for on the GPU then"
    return ""


def _first(error: BaseException) -> BaseException:
    while error.__context__ is not None:
        error = error.__context__
    return error
