"""A run on disk: written whole or not at all, memory-mapped, verified when it is read."""
