"""PyTorch functions as CUDA graphs that have only the edges that are real."""

from depgraph.torch.parallel import parallelize

__all__ = ["parallelize"]
