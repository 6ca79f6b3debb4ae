"""The sweep over addresses: from footprints to the block graph."""
