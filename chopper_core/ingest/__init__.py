"""From files to a run: one trace, whole runs, attached sources, batches, the cache."""
