"""What a parser hands over: launches, copies, memsets, the bytes that blocks touch, and names."""
