"""Arrays, grouping, files, workers, progress and errors: what knows nothing of traces."""
