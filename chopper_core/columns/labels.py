"""Columns that say where a row is, where its label doesn't: its GPU, rank, node, step and so on."""

from __future__ import annotations

from typing import Final

from chopper_core.columns.metric import columns

LABELS: Final = columns("""
    gpu | | GPU
        The GPU of the row.
    rank | | rank
        The rank of the GPU.
        missing: the rank is unknown
    node | | node
        The host of the rank; else its number by devices.
        missing: the host is unknown
    iteration | | step
        The step of the row.
        missing: the trace has no steps, or the row is outside them
    phase | | phase
        The phase of the row.
    layer | | layer
        The layer of the row.
        missing: it belongs to no layer
""")
