"""The machine underneath: files put in place, memory, workers, clusters, compilation, limits."""
