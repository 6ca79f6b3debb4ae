"""Programs that papers on overlapping kernels measure, in PyTorch, and what they came to."""
