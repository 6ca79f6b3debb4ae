"""What byte scanners share: text, tables of blocks and ranges, opcodes, buffers, compression."""
