"""What one trace file gives to a run."""

from __future__ import annotations

from msgspec import Struct

from chopper_core.align.rank import AlignedRank
from chopper_core.model.run import Source


class RankFile(Struct, frozen=True):
    """What one file gave: its aligned rank and what is to say about it."""

    aligned: AlignedRank
    source: Source
    rank_in_file: int | None
    hardware: str
    process: int
    generated: str | None
