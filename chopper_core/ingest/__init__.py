"""From files to a run: one trace, whole runs, what is attached to them, batches, the cache."""
