"""Rates of what is accumulated, clocks of XCDs and residencies, at nodes: worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chopper_core.columns import METRICS, Reduces
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.views.query import query
from chopper_tui.actions.signals import signal_options
from tests.wording import Wording

BASE_NS = 1_754_585_900_000_000_000
MS = 1_000_000
WRAP = 2**32
SPANS = {"a": (10, 20), "b": (24, 4), "c": (40, 20), "d": (65, 10)}
"""Kernel → start and duration in ms."""
HEADINGS = (
    "time_ns,gpu,gfx_mhz.xcd0,gfx_mhz.xcd1,xgmi_read_data_acc,energy_j,pcie_bytes,"
    "accumulation_counter,ppt_residency_acc,prochot_residency_acc,power_w"
)
ROWS = (
    (0, 0, 1000, 800, f'"[{WRAP - 1000}, 0]"', 5.0, 900, 100, 0, 0, 600),
    (20, 0, 1200, 900, '"[9000, 4000]"', 15.0, 7000, 120, 10, 0, 600),
    (40, 0, 1400, 1000, '"[9000, 4000]"', 21.0, 50, 140, 15, 20, 600),
    (60, 0, 1600, 1100, '"[10000, 4000]"', 23.0, 10050, 160, 15, 20, 600),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("rates")
    kernel: dict[str, Any] = {"ph": "X", "cat": "kernel", "pid": 2, "tid": 0,
                              "args": {"device": 2, "stream": 0}}  # fmt: skip
    events = [
        kernel | {"name": name, "ts": start * 1e3, "dur": duration * 1e3}
        for name, (start, duration) in SPANS.items()
    ]
    trace = {"baseTimeNanoseconds": BASE_NS, "traceEvents": events}
    (folder / "rank0.json").write_text(json.dumps(trace))
    lines = ["# clock: epoch", HEADINGS]
    lines += [",".join(map(str, (BASE_NS + row[0] * MS, *row[1:]))) for row in ROWS]
    (folder / "samples.csv").write_text("\n".join(lines) + "\n")
    return open_run(str(folder), jobs=1)


def column(run: Run, name: str) -> dict[str, float | None]:
    frame = query(run, parse(f"R?order=kernel&columns={name}"))
    return {label: frame.row(row)[name] for row, label in enumerate(frame.labels)}


def test_links_count_between_samples_over_wraps(run: Run) -> None:
    """KB of two links: 10000 + 4000 in the first 20 ms, nothing, then 1000."""
    first = 14000 * 1024 / (20 * MS)
    last = 1000 * 1024 / (20 * MS)
    assert column(run, "xgmi_read_gbps") == {
        "a": pytest.approx(first / 2),
        "b": 0.0,
        "c": pytest.approx(last),
        "d": None,
    }
    assert column(run, "xgmi_read_gbps.link1")["a"] == pytest.approx(4000 * 1024 / (40 * MS))


def test_what_was_counted_over_a_set_back_is_missing(run: Run) -> None:
    """7000 to 50 bytes: no wrap of 32 bits. What is known of the row is its first half."""
    found = column(run, "pcie_gbps")
    assert found["a"] == pytest.approx(6100 / (20 * MS))
    assert found["b"] is None
    assert found["c"] == pytest.approx(10000 / (20 * MS))


def test_energy_is_that_of_the_counter(run: Run) -> None:
    """10 J, 6 J and 2 J in 20 ms each, while the power reads 600 W throughout."""
    rate = column(run, "energy_rate_w")
    assert rate["a"] == pytest.approx((500 + 300) / 2)
    assert rate["b"] == pytest.approx(300) and rate["c"] == pytest.approx(100)
    assert column(run, "power_w")["a"] == 600
    energy = column(run, "energy_j")
    assert energy["a"] == pytest.approx(500 * 0.01 + 300 * 0.01)
    # The row's time is charged with the gap before it: 30 to 40 ms and 40 to 60 ms.
    assert energy["c"] == pytest.approx(300 * 0.01 + 100 * 0.02)
    # 60 to 75 ms: after the last sample, by less than the 20 ms between samples.
    assert energy["d"] == pytest.approx(100 * 0.015)


def test_a_gpu_s_clock_is_that_of_its_xcds_and_each_is_a_column(run: Run, wording: Wording) -> None:
    assert column(run, "gfx_mhz.xcd0")["b"] == pytest.approx(1200)
    assert column(run, "gfx_mhz.xcd1")["b"] == pytest.approx(900)
    assert column(run, "gfx_mhz")["b"] == pytest.approx((1200 + 900) / 2)
    # 40 to 50 ms is nearest to the sample at 40 ms, 50 to 60 ms to that at 60 ms.
    assert column(run, "gfx_mhz.xcd1")["c"] == pytest.approx((1000 + 1100) / 2)
    frame = query(run, parse("R?order=kernel&columns=gfx_mhz.xcd1,gfx_mhz.xcd9"))
    assert frame.columns[0].title == "xcd1 gfx MHz"
    held = dict(
        zip(frame.labels, map(frame.values["gfx_mhz.xcd1"].is_extrapolated, range(4)), strict=True)
    )
    assert held == {"a": False, "b": True, "c": False, "d": False}
    assert frame.total["gfx_mhz.xcd9"] is None
    wording(frame.columns[1].missing_because, "xcd9", "gfx_mhz")


def test_residencies_are_of_the_time_before_their_stamp(run: Run) -> None:
    """Power: 50 %, 25 %, 0; prochot: 0, 100 %, 0 of the ticks in 20 ms each."""
    assert column(run, "throttle_pct.ppt")["a"] == pytest.approx((50 + 25) / 2)
    assert column(run, "throttle_pct.prochot")["b"] == pytest.approx(100)
    assert column(run, "throttle_pct")["a"] == pytest.approx((50 + 100) / 2)
    assert column(run, "throttle_pct")["c"] == 0.0


def test_parts_are_signals_to_choose_but_not_to_step_through(run: Run, wording: Wording) -> None:
    own = [name for name in run.signal_names if "." not in name]
    assert list(run.signal_names[: len(own)]) == own
    assert {"gfx_mhz.xcd0", "xgmi_read_gbps.link1", "throttle_pct.ppt"} < set(run.signal_names)
    shown = {name: why for name, _, why in signal_options(run)}
    wording(shown["gfx_mhz.xcd0"], "xcd0")


MEANS = [
    name
    for name, metric in METRICS.items()
    if metric.reduces == Reduces.MEAN and metric.source == "telemetry" and name != "energy_rate_w"
]


@pytest.mark.few(5)
@pytest.mark.parametrize("name", MEANS)
def test_every_mean_over_busy_time_by_hand(tmp_path: Path, name: str) -> None:
    """Samples at 0, 20 and 40 ms; two kernels of one name from 5 to 20 and from 25 to 27 ms."""
    kernel: dict[str, Any] = {"ph": "X", "cat": "kernel", "pid": 2, "tid": 0, "name": "a",
                              "args": {"device": 2, "stream": 0}}  # fmt: skip
    events = [kernel | {"ts": 5e3, "dur": 15e3}, kernel | {"ts": 25e3, "dur": 2e3}]
    trace = {"baseTimeNanoseconds": BASE_NS, "traceEvents": events}
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    lines = ["# clock: epoch", f"time_ns,gpu,{name}"]
    lines += [f"{BASE_NS + at * MS},0,{value}" for at, value in ((0, 10), (20, 40), (40, 90))]
    (tmp_path / "samples.csv").write_text("\n".join(lines) + "\n")
    # 5 ms are nearest to the first sample, 10 and 2 ms to the second; the gap counts nothing.
    # A clock read while the GPU was idle says nothing of the kernel beside it.
    expected = 40.0 if name in ("gfx_mhz", "mem_mhz") else (5 * 10 + 12 * 40) / 17
    assert column(open_run(str(tmp_path), jobs=1), name) == {"a": pytest.approx(expected)}
