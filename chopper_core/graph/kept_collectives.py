"""Matched collectives as they are kept with a run: without its table and what follows from rows."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.groups import are_groups
from chopper_core.util.arrays import Index, Int32, Int64, Mask
from chopper_core.util.grouping import run_sizes

_OF_EACH: Final = (
    *("kind", "group", "bytes", "size", "complete", "first_start_ns", "last_start_ns"),
    *("end_ns", "last_gpu"),
)
_OF_KERNELS: Final = ("member_wait_ns", "member_exposed_ns")


class StoredCollectives(Struct, frozen=True):
    """The fields of `Collectives` by their names; its kernels as `rows`, each one's `first`."""

    rows: Int32
    first: Int32
    kind: Int64
    group: Int64
    bytes: Int64
    size: Int64
    complete: Mask
    first_start_ns: Int64
    last_start_ns: Int64
    end_ns: Int64
    last_gpu: Int64
    member_wait_ns: Int64
    member_exposed_ns: Int64
    spread_ns: int | None
    shared_labels: tuple[str, ...]
    is_scheduled: bool
    iterations: tuple[int, ...]

    def check(self, count: int) -> None:
        """Raise ValueError unless they can be those of a run of as many activities."""
        rows, first = self.rows, self.first
        if not are_groups(rows, first, count):
            raise ValueError("collectives of other activities")
        each = {len(getattr(self, name)) for name in _OF_EACH}
        if each != {len(first)} or {len(getattr(self, name)) for name in _OF_KERNELS} != {
            len(rows)
        }:
            raise ValueError("columns of another length")

    @property
    def owner(self) -> Index:
        """The collective of each kernel."""
        sizes = run_sizes(self.first.astype(np.intp), len(self.rows))
        return np.repeat(np.arange(len(self.first)), sizes)
