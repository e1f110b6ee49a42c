"""Hardware counters and kernel traces, as rocprof and its relatives write them."""
