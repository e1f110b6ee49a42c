"""From files to a run: discovery, attaching, batches, cache."""
