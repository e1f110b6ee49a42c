"""Telemetry of GPUs, as the vendors' tools and samplers write it."""
