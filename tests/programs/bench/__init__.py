"""Benchmarks: `python -m tests.programs.bench` runs all, with `reading` a single one."""
