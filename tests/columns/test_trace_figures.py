"""Figures that the profiler writes for each activity, as columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.model.address import parse
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.views.query import query
from tests.align.traces import TinyTrace, align
from tests.wording import Wording


def test_a_figure_of_activities_is_a_column(tmp_path: Path) -> None:
    """Means over durations: 20 % for 10 us, 60 % for 30; others have none."""
    trace = TinyTrace()
    activities = ((0, 10, 20), (50, 30, "60"), (100, 40, None), (200, 5, "none"), (300, 5, 10**400))
    for at, duration, given in activities:
        args = {} if given is None else {"est. achieved occupancy %": given}
        trace.launch("kernel0" if at < 200 else "kernel1", at, duration=duration, **args)
    run = align(trace, tmp_path).run
    write_store(run, tmp_path / "store")
    for each in (run, read_store(tmp_path / "store")):
        frame = query(each, parse("R?view=kernels&columns=est_occupancy_pct"))
        rows = dict(zip(frame.labels, range(2), strict=True))
        assert frame.row(rows["kernel0"])["est_occupancy_pct"] == pytest.approx(50)
        assert frame.row(rows["kernel1"])["est_occupancy_pct"] is None
        assert frame.total["est_occupancy_pct"] == pytest.approx(50)


def test_a_trace_without_the_figure_has_no_column(tmp_path: Path, wording: Wording) -> None:
    trace = TinyTrace()
    trace.launch("kernel0", 0)
    run = align(trace, tmp_path).run
    assert "est_occupancy_pct" not in run.table.measured
    frame = query(run, parse("R?columns=est_occupancy_pct"))
    assert frame.total["est_occupancy_pct"] is None
    wording.among(frame.notes, "profiler")
