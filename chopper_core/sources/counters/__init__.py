"""Hardware counters and kernel traces of rocprof and its relatives."""
