"""Measure that time grows with the input and memory does not: 100 MB to 10 GB of one program.

The logs repeat the packaged sample, and a trace whose blocks touch much more memory; or what is
given with ``--log``. Peak memory is that of the whole process, as the kernel counts it; what is
mapped from the page cache is not in it, since logs are read, not mapped.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from extract_speed import extract_command
from figures import MB, MIB, Figure, seconds, section, size
from inputs import SAMPLE, Options, options, parser, plain_log, toy_log
from make_large_log import make_large_log
from measure import DEPGRAPH, Run, median_wall, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TITLE = "Large inputs"

_LIMIT = 512 * MIB
_OVER_LIMIT = 300 * MIB
_SIZES = (100 * MB, 1000 * MB, 10_000 * MB)
_QUICK_SIZES = (1 * MB, 50 * MB)
_LINEAR = 1.1
_MOST_RANGES = "mlp_m256"


def measure(chosen: Options, log: Path | None = None) -> list[Figure]:
    """Return all figures of this program.

    Parameters
    ----------
    chosen : Options
    log : Path, optional
        Default the packaged sample, and the trace with most ranges a byte where it is at hand.
    """
    names = [SAMPLE] if chosen.quick else [SAMPLE, _MOST_RANGES]
    logs = [log] if log else [plain_log(chosen, name) for name in names]
    return [figure for path in logs if path is not None for figure in _of_log(chosen, path)]


def _of_log(chosen: Options, log: Path) -> list[Figure]:
    sizes = _QUICK_SIZES if chosen.quick else _SIZES
    large = chosen.work / "large.log"
    points: list[tuple[int, float]] = []
    figures: list[Figure] = []
    start = _repeated(extract_command(toy_log(chosen), chosen), chosen, 1 if chosen.quick else 3)
    for wanted in sizes:
        times = make_large_log(log, large, wanted)
        n_bytes = large.stat().st_size
        if points and n_bytes == points[-1][0]:  # one repetition is more than was wanted
            continue
        what = f"{log.stem} {times} times, {size(n_bytes)}"
        is_largest = wanted == sizes[-1]
        once = chosen.quick or is_largest
        free = _repeated(extract_command(large, chosen), chosen, 1 if once else 3)
        took = median_wall(free)
        points.append((n_bytes, max(took - median_wall(start), 1e-3)))
        figures.append(
            Figure(
                f"{what}, default limit",
                f"{seconds(took)}, {n_bytes / took / MB:.0f} MB/s, "
                f"peak {free[0].peak / MIB:.0f} MiB",
            )
        )
        figures += _limited(chosen, large, what, compare=not is_largest)
        large.unlink()
    return [*figures, *_growth(points)]


def _repeated(command: Sequence[str | Path], chosen: Options, repeat: int) -> list[Run]:
    return [run(command, chosen.work) for _ in range(repeat)]


def _limited(chosen: Options, large: Path, what: str, *, compare: bool) -> Iterator[Figure]:
    store = chosen.work / "limited.out"
    more = ("-o", store, "--force", "-q", "--memory-limit", "512MiB")
    limited = run([*DEPGRAPH, "extract", large, *more], chosen.work)
    yield Figure(
        f"{what}, `--memory-limit 512MiB`",
        f"peak {limited.peak / MIB:.0f} MiB, {seconds(limited.wall)}",
        f"{(_LIMIT + _OVER_LIMIT) // MIB} MiB",
        limited.peak <= _LIMIT + _OVER_LIMIT,
    )
    if compare:
        other = chosen.work / "store.out"
        differing = [
            file.name
            for file in sorted(store.iterdir())
            if file.read_bytes() != (other / file.name).read_bytes()
        ]
        verdict = f"differs in {', '.join(differing)}" if differing else "the same bytes"
        yield Figure(
            f"{what}: the store with and without the limit",
            verdict,
            "the same bytes",
            not differing,
        )


def _growth(points: Sequence[tuple[int, float]]) -> Iterator[Figure]:
    """Tell by which power of the size the time grows, start-up apart."""
    (low_bytes, low), (high_bytes, high) = points[-2:]
    power = math.log(high / low) / math.log(high_bytes / low_bytes)
    yield Figure(
        f"time beyond start-up from {size(low_bytes)} to {size(high_bytes)}",
        f"grows with size to the power {power:.2f}",
        f"{_LINEAR}",
        power <= _LINEAR,
    )


def main() -> None:
    """Measure as the command line says."""
    arguments = parser(__doc__)
    arguments.add_argument("--log", type=Path, help="log to repeat (default the packaged sample)")
    parsed = arguments.parse_args()
    with options(parsed) as chosen:
        print(section(TITLE, measure(chosen, parsed.log)))


if __name__ == "__main__":
    main()
