"""Chakra: execution graphs, simulators' logs, host traces and pipeline schedules."""
