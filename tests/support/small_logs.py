"""Lines of small NVBit logs, and what depends on what in them."""

from programs import BASE, access_line, edges_of, launch_line

from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace


def edges_in(path, **options):
    return edges_of(analyse(open_trace(path), jobs=1, allow_empty=True, **options).graph)


def write(number, block, address, **options):
    return access_line(number, block, "STG.E", [address], **options)


def read(number, block, address, **options):
    return access_line(number, block, "LDG.E", [address], **options)


PRODUCER = [launch_line(0), write(0, 1, BASE)]
CONSUMER = [launch_line(1), read(1, 2, BASE)]
EXPECTED = [(1, 6, "RAW")]
