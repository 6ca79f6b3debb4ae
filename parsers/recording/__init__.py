"""Recordings of ``depgraph record``: what kernels touched, exactly, with all copies and memsets."""
