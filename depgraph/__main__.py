"""``python -m depgraph`` is the program ``depgraph``."""

import importlib
import sys

# The core imports no command line; only running it as a program does.
importlib.import_module("depgraph.cli").main(sys.argv[1:])
