"""Readers of input files, one per format: recognise it, read it, nothing else."""
