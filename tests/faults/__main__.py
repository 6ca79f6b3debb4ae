"""``python tests/faults``: see `campaign`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.campaign import main

if __name__ == "__main__":
    sys.exit(main())
