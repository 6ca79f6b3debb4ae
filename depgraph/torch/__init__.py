"""PyTorch functions as CUDA graphs that have only the edges that are real; answers of profiles."""

from depgraph.torch.on_trace_ready import on_trace_ready
from depgraph.torch.parallel import parallelize

__all__ = ["on_trace_ready", "parallelize"]
