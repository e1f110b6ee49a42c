"""Columns of the size of launches, against sizes and units written out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.overrides import Overrides
from chopper_core.model.run import Run
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.support import opened_events

COLUMNS = "grid,block,waves_per_cu,unused_cus_pct,tail_pct,registers,lds_bytes"


def events(extended: bool) -> list[dict[str, object]]:
    """A kernel of 152 workgroups for 1 µs, one of 456 for 3 µs, on a GPU of 304 units."""
    made: list[dict[str, object]] = []
    call = "hipExtModuleLaunchKernel" if extended else "hipLaunchKernel"
    sizes = {"small": (152, 1.0), "tailed": (456, 3.0)}
    for number, (name, (grid, duration)) in enumerate(sizes.items(), 1):
        given = grid * 256 if extended else grid
        args = {"device": 0, "stream": 0, "correlation": number, "registers per thread": 64}
        args |= {"grid": [given, 1, 1], "block": [256, 1, 1], "shared memory": 4096 * number}
        at = 100.0 * number
        made += [
            {"ph": "X", "cat": "cuda_runtime", "name": call, "pid": 9, "tid": 9, "ts": at,
             "dur": 1.0, "args": {"correlation": number}},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 0, "ts": at + 5,
             "dur": duration, "args": args},
        ]  # fmt: skip
    return made


def shown(run: Run, address: str) -> Frame:
    return query(run, parse(f"{address}&columns={COLUMNS}"))


@pytest.mark.parametrize("extended", [False, True])
def test_launches_have_the_size_that_was_recorded(tmp_path: Path, extended: bool) -> None:
    opened_events(tmp_path, events(extended))
    mi300x = Overrides(hardware="MI300X")
    run = open_run(str(tmp_path / "rank0.json"), jobs=1, overrides=mi300x)
    frame = shown(run, "R?view=kernels")
    rows = {name: frame.row(place) for place, name in enumerate(frame.labels)}
    small, tailed = rows["small"], rows["tailed"]
    assert (small["grid"], small["block"], small["registers"]) == (152, 256, 64)
    assert (small["lds_bytes"], tailed["lds_bytes"]) == (4096, 8192)
    # Four waves of 64 in each workgroup.
    assert small["waves_per_cu"] == 152 * 4 / 304
    assert (small["unused_cus_pct"], tailed["unused_cus_pct"]) == (50, 0)
    # Two rounds of 304 for 456 workgroups.
    assert small["tail_pct"] == 50
    assert tailed["tail_pct"] == pytest.approx(25)
    assert frame.total["grid"] == pytest.approx((152 * 1 + 456 * 3) / 4)


def test_extended_launches_that_fill_no_workgroups_count_them(tmp_path: Path) -> None:
    """A profiler that counts workgroups in every launch shows it by grids that aren't multiples."""
    made = events(True)
    for event in made:
        if event["cat"] == "kernel":
            event["args"]["grid"][0] //= 256  # type: ignore[index]
    run = opened_events(tmp_path, made)
    frame = shown(run, "R?view=kernels")
    assert sorted(frame.row(place)["grid"] for place in range(2)) == [152, 456]


def test_a_filter_finds_kernels_too_small_for_the_gpu(tmp_path: Path) -> None:
    run = opened_events(tmp_path, events(False))
    assert list(shown(run, "R?view=kernels&filter=grid<304").labels) == ["small"]


def test_what_the_trace_lacks_is_missing(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 1.0, "dur": 2.0}
    run = opened_events(tmp_path, [{**kernel, "args": {"device": 0, "stream": 0}}])
    row = shown(run, "R?view=kernels").row(0)
    assert all(row[name] is None for name in COLUMNS.split(","))
