"""GPU models as data, and what one SM holds."""
