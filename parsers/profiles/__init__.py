"""Files of measured times: one module per format, told apart by contents."""

from depgraph.parsers.profiles.read import is_profile, read_kernel_profile, read_profile

__all__ = ["is_profile", "read_kernel_profile", "read_profile"]
