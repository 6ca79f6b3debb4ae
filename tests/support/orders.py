"""What programs of `tests/recorder/orders.cu` race, and are expected to."""

from depgraph.analysis.races import find_races

BUFFER = 4096  # bytes of each program


def judged(store, printed):
    """Return what programs race, by name, and what of them is expected to."""
    rows = [line.split("\t") for line in printed.splitlines() if line.count("\t") == 3]
    found = find_races(store)
    names = {int(at): name for _, name, _, at in rows}
    racing = {
        next(name for at, name in names.items() if at <= race.address < at + BUFFER)
        for race in found.races
    }
    return racing, {name for _, name, race, _ in rows if race == "1"}, found
