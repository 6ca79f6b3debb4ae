"""Public models with random weights, and what `parallelize` makes of them."""
