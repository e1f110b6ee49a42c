"""Benchmarks: `python -m tests.bench` runs all, `python -m tests.bench reading` a single one."""
