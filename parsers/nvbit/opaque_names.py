"""Names of kernels that copy by TMA, whose addresses NVBit up to 1.7 cannot print.

A name is weak evidence: it counts only where the trace shows no such instruction of any kernel.
"""

from __future__ import annotations

import re

# (what the name holds, whose kernels are named so and where that can be seen)
TMA_NAMES: tuple[tuple[str, str], ...] = (
    (r"\bnvjet_", "cuBLAS for sm_90 and later; recorded on an H100: all operands come by TMA"),
    (
        r"(?i:sm_?(?:90|10[0-9]|12[0-9])(?![0-9]))",
        "compute capability in names of cuBLAS, cuDNN, CUTLASS 3, FlashAttention 3, DeepGEMM",
    ),
    (r"(?i:cutlass_?3x)", "CUTLASS 3 kernels in cuBLAS and PyTorch: cutlass3x_sm90_tensorop_..."),
    (r"(?i:warp_?specialized)", "CUTLASS 3 kernel schedules: KernelTmaWarpSpecializedPingpong"),
    (r"(?i:w?gmma)", "warpgroup MMA of sm_90, fed by TMA: CUTLASS 3, MainloopSm90TmaGmma"),
    (
        r"Tma(?![a-z])|(?<![A-Za-z])(?:tma|TMA)(?![A-Za-z])",
        "the word itself, as in MainloopSm90Tma, tma_copy; not softmax",
    ),
)
_TMA = re.compile("|".join(f"(?:{pattern})" for pattern, _ in TMA_NAMES))
_TEXTURE_MARKS = ("tex1d", "tex2d", "tex3d", "texture", "surf2d")


def copies_by_tma(name: str) -> bool:
    """Tell whether the name of a kernel says that it copies by TMA."""
    return _TMA.search(name) is not None


def reads_textures(name: str) -> bool:
    """Tell whether the name of a kernel says that it reads textures or surfaces."""
    lowered = name.lower()
    return any(mark in lowered for mark in _TEXTURE_MARKS)
