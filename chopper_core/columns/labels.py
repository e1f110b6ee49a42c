"""Columns that say where a row is, where its label doesn't: its GPU, rank, node, step and so on."""

from __future__ import annotations

from typing import Final

from chopper_core.columns.metric import columns

LABELS: Final = columns("""
    gpu | | GPU
        Number of the GPU in the run.
    rank | | rank
        Rank of the process that the GPU works for.
        missing: the rank is unknown
    node | | node
        The host of the rank; else its number by devices.
        missing: the host is unknown
    iteration | | step
        The step of the row, by its number.
        missing: the trace has no steps, or the row is outside them
    phase | | phase
        forward, backward, optimizer, data or other; of inference prefill or decode.
    layer | | layer
        Number of the layer.
        missing: the row belongs to no layer
    unit | | unit
        Unit of the row's figures.
""")
