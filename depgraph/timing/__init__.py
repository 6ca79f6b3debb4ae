"""From a profile to durations of blocks, and the launch model."""
