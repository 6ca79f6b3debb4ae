"""Compiled functions on plain arrays; every one has a slow twin in ``tests/naive.py``."""
