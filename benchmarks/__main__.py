"""Run every program here and print its table, or put the tables into a page.

``python benchmarks --write docs/performance.md`` replaces what stands between the two marks of the
page; without ``--write`` the tables are printed. ``python -m benchmarks models`` is another
program: see `models.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # run by -m

import against_dataframes
import against_hta
import bound_speed
import contention_speed
import extract_speed
import first_run
import growth
import large_input
import short_commands
from figures import section
from inputs import Options, options, parser
from pages import write_tables

_PROGRAMS = {
    "extract_speed": extract_speed,
    "first_run": first_run,
    "short_commands": short_commands,
    "large_input": large_input,
    "bound_speed": bound_speed,
    "contention_speed": contention_speed,
    "growth": growth,
    "against_dataframes": against_dataframes,
    "against_hta": against_hta,
}


def _tables(chosen: Options, names: list[str]) -> str:
    sections = []
    for name in names:
        program = _PROGRAMS[name]
        sections.append(section(program.TITLE, program.measure(chosen)))
        print(sections[-1], flush=True)
    return "\n".join(sections)


def main() -> None:
    """Measure as the command line says."""
    arguments = parser(__doc__)
    arguments.add_argument("--write", type=Path, metavar="PAGE", help="page to put the tables in")
    arguments.add_argument(
        "--only", nargs="+", choices=_PROGRAMS, default=list(_PROGRAMS), help="default all"
    )
    parsed = arguments.parse_args()
    with options(parsed) as chosen:
        tables = _tables(chosen, parsed.only)
    if parsed.write:
        write_tables(parsed.write, {"tables": tables})


if __name__ == "__main__":
    if sys.argv[1:2] == ["models"]:
        import models

        models.main(sys.argv[2:])
    else:
        main()
