"""How busy the processors of a host were, sample by sample."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.util.arrays import Float64, Int64

NO_CORE: Final = -1


class CpuFile(Struct, frozen=True, eq=False):
    """A file of samples of one host, and its place on the run's clock."""

    path: str
    format: str
    clock: str
    offset_ns: int | None
    """None where it can't be placed; then it has no samples here."""
    uncertainty_ns: int
    method: str
    """How the offset was found, or why it was not."""
    samples: int
    """How many instants the file has."""
    notes: tuple[str, ...]


class CpuSamples(CpuFile, frozen=True, eq=False):
    """The samples of such a file."""

    cpus: Int64
    """The numbers of the logical processors."""
    cores: Int64
    """The physical core of each, `NO_CORE` where the file doesn't say it."""
    times_ns: Int64
    """The instants within the run, on its clock: each ends what its percentages are of."""
    percent: Float64
    """Instants x logical processors: the share of the time since the instant before in which it
    was busy; NaN where it isn't known."""

    @property
    def has_cores(self) -> bool:
        """Whether the physical core of every logical processor is known."""
        return bool(len(self.cores)) and bool((self.cores != NO_CORE).all())

    @property
    def period_ns(self) -> int:
        """The usual distance of the instants; 0 where there is none."""
        return int(np.median(np.diff(self.times_ns))) if len(self.times_ns) > 1 else 0
