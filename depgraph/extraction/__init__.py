"""From a trace to a store: scan in parallel, collect, sweep, write."""
