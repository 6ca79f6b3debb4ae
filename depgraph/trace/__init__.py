"""What a parser hands over: launches, host copies, the bytes that blocks touch, and names."""
