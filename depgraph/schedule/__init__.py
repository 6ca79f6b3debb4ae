"""When and where every block runs: policies as data, and the simulator that runs them."""
