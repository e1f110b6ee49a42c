"""Figures that cover only some GPUs are marked in text, JSON and on the screen's cells."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.gate import parse_limit, samples_of_limit
from chopper_core.model.address import parse
from chopper_core.model.charts import Icicle
from chopper_core.model.inputs import CounterSource
from chopper_core.model.run import Run
from chopper_core.render import render_frame
from chopper_core.util.errors import UsageError
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


def test_every_view_has_the_same_sum_over_some_gpus() -> None:
    """Per step and GPU of those that have it, in the tree, its picture, a comparison, a gate."""
    run = replace(counted(0, 2), others={"same": counted(0, 2)})
    tree = query(run, parse("R?order=phase&columns=SQ_WAVES"))
    by_phase = {label: tree.row(row)["SQ_WAVES"] for row, label in enumerate(tree.labels)}
    each = query(run, parse("R:gpu=0?order=gpu,phase&columns=SQ_WAVES")).total["SQ_WAVES"]
    assert tree.total["SQ_WAVES"] == each
    compared = query(run, parse("R?view=compare&by=phase&of=SQ_WAVES&base=same"))
    grid = query(run, parse("R?view=grid&of=SQ_WAVES"))
    assert compared.total["SQ_WAVES"] == compared.total["base_SQ_WAVES"] == each
    assert grid.total["SQ_WAVES"] == each == grid.row(0)["SQ_WAVES"]
    assert not any("includes" in note for note in grid.notes)
    for row, label in enumerate(compared.labels):
        assert compared.row(row)["SQ_WAVES"] == by_phase[label]
    (chart,) = query(run, parse("R?view=icicle&of=SQ_WAVES")).charts
    assert isinstance(chart, Icicle)
    drawn = dict(zip(chart.rows[0].labels, chart.rows[0].numbers.tolist(), strict=True))
    assert drawn == {label: number for label, number in by_phase.items() if number is not None}
    for name in ("SQ_WAVES", "waves"):
        numbers = samples_of_limit(run, parse_limit(f"{name}>+1%"))[1]
        assert numbers.mean() == each
    with pytest.raises(UsageError, match="the run has no counter SQ_WAVES"):
        samples_of_limit(sample_run(gpus=4), parse_limit("SQ_WAVES>+1%"))


def test_no_counter_of_a_gpu_is_no_difference_of_it() -> None:
    """A GPU whose counters one run lacks has no fewer waves there, nor has the whole run."""
    run = replace(counted(0, 2), others={"all": counted(0, 1, 2, 3)})
    compared = query(run, parse("R?view=compare&by=gpu&of=SQ_WAVES&base=all"))
    there = {label: compared.row(row) for row, label in enumerate(compared.labels)}
    assert [there[gpu]["SQ_WAVES_delta"] for gpu in "0123"] == [0, None, 0, None]
    assert [there[gpu]["each_SQ_WAVES"] for gpu in "0123"] == [0, None, 0, None]
    assert there["1"]["SQ_WAVES"] is None and there["1"]["base_SQ_WAVES"] is not None
    assert compared.total["SQ_WAVES_delta"] == 0
    by_gpu = query(run, parse("R?columns=SQ_WAVES_delta&base=all"))
    assert [by_gpu.row(row)["SQ_WAVES_delta"] for row in range(4)] == [0, None, 0, None]


def test_a_comparison_of_other_gpus_says_so() -> None:
    base = counted(0, 1, 2, 3)
    run = replace(counted(0, 2), others={"all": base, "same": counted(0, 2)})
    notes = query(run, parse("R?view=compare&of=SQ_WAVES&base=all")).notes
    assert "Δ SQ_WAVES compares 2 of 4 GPUs here with 4 of 4 in the baseline" in notes
    for address in ("R?view=compare&of=SQ_WAVES&base=same", "R?view=compare&base=all"):
        assert not any(" compares " in note for note in query(run, parse(address)).notes)
