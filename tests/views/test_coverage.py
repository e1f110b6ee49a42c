"""Figures that cover only some GPUs are marked in text, JSON and on the screen's cells."""

from __future__ import annotations

import json

import numpy as np
from msgspec.structs import replace

from chopper_core.model.address import parse
from chopper_core.model.inputs import CounterSource
from chopper_core.model.run import Run
from chopper_core.render import render_frame
from chopper_core.views.query import query
from tests.support import sample_run
from tests.wording import Wording


def counted(*gpus: int) -> Run:
    """The sample run of four GPUs, of which some have a counter."""
    run = sample_run(gpus=4)
    values = np.where(np.isin(run.table.gpu, gpus), 64.0, np.nan)
    source = CounterSource(0, (), "", 1, 1, 1, 0, 0, 0, 0, 1, "", ())
    return replace(
        run,
        table=run.table.with_measured({"SQ_WAVES": values}),
        counters=tuple(replace(source, gpu=gpu) for gpu in gpus),
    )


def test_a_sum_over_some_gpus_is_marked_everywhere(wording: Wording) -> None:
    for address in ("R?order=operation&columns=SQ_WAVES", "R?view=kernels&columns=SQ_WAVES"):
        frame = query(counted(0, 2), parse(address))
        assert frame.partial_total == {"SQ_WAVES"}
        there = frame.values["SQ_WAVES"].present()
        assert frame.values["SQ_WAVES"].partial is not None and there.any()
        assert (frame.values["SQ_WAVES"].partial == there).all()
        document = json.loads(render_frame(frame, "json"))
        assert document["partial_total"] == ["SQ_WAVES"]
        assert [row.get("partial") == ["SQ_WAVES"] for row in document["rows"]] == there.tolist()
        wording.among(document["notes"], "2 of 4 GPUs", ": 0, 2")
        total = next(line for line in render_frame(frame, "text").splitlines() if "total" in line)
        assert f"*{frame.total['SQ_WAVES']:.0f}" in total


def test_what_covers_its_row_is_not_marked() -> None:
    by_gpu = query(counted(0, 2), parse("R?columns=SQ_WAVES"))
    assert by_gpu.values["SQ_WAVES"].partial is None and by_gpu.partial_total
    assert [by_gpu.row(row)["SQ_WAVES"] is None for row in range(4)] == [False, True, False, True]
    for run, address in (
        (counted(0, 2), "R:gpu=2?columns=SQ_WAVES"),
        (counted(0, 1, 2, 3), "R?order=operation&columns=SQ_WAVES"),
        (counted(0, 2), "R?order=operation&columns=elapsed_ns"),
    ):
        frame = query(run, parse(address))
        assert not frame.partial_total and not any("*" in note for note in frame.notes)
        assert "partial" not in render_frame(frame, "json")
