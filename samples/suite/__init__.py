"""Programs that papers on overlapping kernels measure, in PyTorch, to be recorded."""
