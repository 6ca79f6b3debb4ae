"""Stores and schedules in the formats of other tools, streamed."""
