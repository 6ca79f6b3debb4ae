"""Which bytes each thread block reads and writes: byte ranges, in memory or in files."""
