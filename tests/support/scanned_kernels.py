"""Kernels of Accel-Sim as text, scanned as one part."""

import io

from kernel_texts import (
    Form,
    blocks_of,
    header_text,
)

from depgraph.parsers.accelsim.text import PartScanner


def scan(text, **options):
    """Scan the text of one kernel as one part."""
    scanner = PartScanner(None)
    data = text if isinstance(text, bytes) else text.encode()
    scanner.scan_kernel(io.BytesIO(data), 0, "kernel-7.traceg", **options)
    return scanner.finish()


def body(*lines, form=None, block="0,0,0"):
    """Return a grouped kernel of one warp."""
    text = f"#BEGIN_TB\n\nthread block = {block}\n\nwarp = 0\ninsts = {len(lines)}\n"
    return header_text(form or Form()) + text + "".join(f"{x} \n" for x in lines) + "\n#END_TB\n"


def only_block(text):
    part = scan(text)
    assert not part.damage
    assert not part.warnings
    (block,) = blocks_of(part).values()
    return block


def bytes_of(*ranges):
    return {byte for start, size in ranges for byte in range(start, start + size)}
