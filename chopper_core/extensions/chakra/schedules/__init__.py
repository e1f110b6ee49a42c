"""Dumps of pipeline schedules, when each microbatch ran on each stage, and the table they give."""

from __future__ import annotations

from collections.abc import Sequence

from chopper_core.extensions.chakra.schedule_table import ScheduleTable
from chopper_core.model.run import Run


class Schedule(ScheduleTable, frozen=True):
    """The schedule of one file, of which those of a job make a run."""

    def run_of(self, name: str, parts: Sequence[Schedule]) -> Run:
        """The run of the schedules of one job; raises DataError if two belong to the same rank."""
        from chopper_core.extensions.chakra.schedule_run import run_of_schedules

        return run_of_schedules(name, parts)
