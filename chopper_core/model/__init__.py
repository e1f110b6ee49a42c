"""The model: kernel table, groups, cubes, tree, accounting, signals, view, address, run."""
