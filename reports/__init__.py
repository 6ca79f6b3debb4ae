"""Results made readable: one module an output."""
