"""What a CUDA graph of a recorded program may look like: only real edges, own buffers."""
