"""Simulators' logs: their memory accesses, and their times."""
