"""Zstandard, which few traces are packed with: imported where one is."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd as zstd  # noqa: PLC0414 - for others
else:
    from backports import zstd as zstd  # noqa: PLC0414
