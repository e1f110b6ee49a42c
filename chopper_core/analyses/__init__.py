"""Figures that need more than a reduction: each takes a run and gives rows and columns."""
