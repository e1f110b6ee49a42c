"""Dumps of pipeline schedules: when each microbatch ran on each stage."""
