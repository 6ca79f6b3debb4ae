"""CUTracer's NDJSON traces: a file a launch, with addresses of lanes and tiles by TMA."""
