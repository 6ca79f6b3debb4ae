"""Accel-Sim kernel traces: folders, lists, text and ``.tracez``."""
