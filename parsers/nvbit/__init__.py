"""NVBit ``mem_trace`` logs, and those of tools that print like it."""
