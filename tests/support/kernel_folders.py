"""Small Accel-Sim kernel files, and what is in traces of them."""

import pytest
from kernel_texts import GLOBAL, Form, header_text

from depgraph import parsers
from depgraph.trace.records import MemoryOperation

KINDS = "RAW", "WAR", "WAW"


def kernel(number, *lines, form=None):
    """Return a kernel of one block and one warp."""
    text = f"#BEGIN_TB\n\nthread block = 0,0,0\n\nwarp = 0\ninsts = {len(lines)}\n"
    header = header_text(form or Form(), grid=(1, 1, 1), name=f"k{number}")
    header = header.replace("-kernel id = 7", f"-kernel id = {number}")
    return header + text + "".join(f"{line} \n" for line in lines) + "\n#END_TB\n"


def load(offset):
    return f"0090 00000001 1 R0 LDG.E 1 R4 4 1 0x{GLOBAL + offset:x} 0 0"


def store(offset):
    return f"00a0 00000001 0 STG.E 2 R4 R6 4 1 0x{GLOBAL + offset:x} 0 0"


def operations(trace):
    order = trace.program_order()
    for task in trace.tasks():
        order.add(task.scan())
    return [
        f"copy {o.size}" if isinstance(o, MemoryOperation) else o.name for o in order.operations
    ]


def edges(extraction):
    kernel_of, block_of = extraction.graph.block_names()
    found = set()
    for source, target, kind in extraction.graph.certain().edges():
        found |= set(
            zip(
                kernel_of[source].tolist(), block_of[source].tolist(),
                kernel_of[target].tolist(), block_of[target].tolist(),
                [KINDS[k] for k in kind.tolist()],
                strict=True,
            )
        )  # fmt: skip
    return found


def golden_edges(path):
    pandas = pytest.importorskip("pandas")
    return set(pandas.read_parquet(path).itertuples(index=False, name=None))


def opened(path, **options):
    return parsers.open_trace(path, **options)
