"""The offset of a telemetry file is estimated from its signal, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from chopper_core.align.identity import gpus_of_telemetry
from chopper_core.align.telemetry import signals, telemetry_columns
from chopper_core.align.telemetry_clock import Estimate, Recording, place
from chopper_core.model.column_names import integral_of, known_of
from chopper_core.model.inputs import Gpu, TelemetrySource
from chopper_core.model.signals import Signal, nearest_values
from chopper_core.model.table import KernelTable, Kind
from chopper_core.model.units import Unit
from chopper_core.sources.signals import ClockDomain, GpuName, SignalName, SignalSamples, Telemetry
from chopper_core.tables.losses import Losses
from tests.programs.bench.joins import STYLES, placed_telemetry
from tests.support import Row, table_of
from tests.wording import Wording

MS = 1_000_000
BEGIN = 1_000 * MS
IDLE_W, BUSY_W = 200.0, 700.0
Stretch = tuple[int, int]


def bursts(random: np.random.Generator, total_ms: float, slowest_ms: float = 40) -> list[Stretch]:
    """Starts and ends of work in irregular bursts."""
    now, found = 0.0, []
    while now < total_ms:
        busy, idle = random.uniform(1, slowest_ms), random.uniform(1, slowest_ms / 1.6)
        found.append((BEGIN + int(now * MS), BEGIN + int((now + busy) * MS)))
        now += busy + idle
    return found


def busy_share(
    stretches: Sequence[Stretch], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.float64]:
    share = np.zeros(len(begins))
    for start, end in stretches:
        share += np.maximum(np.minimum(end, ends) - np.maximum(start, begins), 0)
    return share / (ends - begins)


def sampled(
    stretches: Sequence[Stretch],
    period_ms: float,
    offset_ns: int,
    span_ms: Stretch,
    noise_w: float = 0.0,
    stamped_at_end: bool = False,
    seed: int = 0,
) -> SignalSamples:
    """Power while the work runs, on a clock that needs `offset_ns` to be the trace's."""
    period = int(period_ms * MS)
    begins = np.arange(BEGIN + span_ms[0] * MS, BEGIN + span_ms[1] * MS, period, dtype=np.int64)
    ends = begins + period
    power = IDLE_W + (BUSY_W - IDLE_W) * busy_share(stretches, begins, ends)
    power += np.random.default_rng(seed).normal(0, noise_w, len(power)) if noise_w else 0.0
    stamps = ends if stamped_at_end else begins + period // 2
    return SignalSamples(stamps - offset_ns, power)


def telemetry_of(*gpus: SignalSamples, signal: SignalName = SignalName.POWER_W) -> Telemetry:
    return Telemetry(
        Path("made.csv"),
        "made",
        ClockDomain.MONOTONIC,
        1,
        [GpuName(index=number) for number in range(len(gpus))],
        {(number, signal): [samples] for number, samples in enumerate(gpus)},
        (),
        Losses(),
    )


def table_of_work(*gpus: Sequence[Stretch]) -> KernelTable:
    return table_of(
        [
            Row(start, end - start, gpu=gpu, iteration=0)
            for gpu, stretches in enumerate(gpus)
            for start, end in stretches
        ]
    )


def estimated(telemetry: Telemetry, table: KernelTable) -> Estimate | str:
    return Recording(telemetry, table, {n: n for n in range(len(telemetry.gpus))}).estimate()


@pytest.mark.sweep
@limits(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    offset_ns=st.integers(-(2 * 10**18), 2 * 10**18),
    period_ms=st.sampled_from([1.0, 1.25, 5.0, 10.0]),
    noise_w=st.sampled_from([0.0, 20.0, 60.0]),
    begin_ms=st.integers(-900, 0),
)
def test_a_known_offset_is_found_within_the_stated_uncertainty(
    seed: int, offset_ns: int, period_ms: float, noise_w: float, begin_ms: int
) -> None:
    random = np.random.default_rng(seed)
    work = [bursts(random, 100 * period_ms + 400) for _ in range(2)]
    span = (begin_ms, int(100 * period_ms) + 700)
    samples = [sampled(each, period_ms, offset_ns, span, noise_w, seed=seed) for each in work]
    found = estimated(telemetry_of(*samples), table_of_work(*work))
    assert isinstance(found, Estimate), found
    assert abs(found.offset_ns - offset_ns) <= found.uncertainty_ns
    assert found.uncertainty_ns <= 2 * period_ms * MS
    assert "power_w" in found.method


@pytest.mark.sweep
@limits(max_examples=8)
@given(seed=st.integers(0, 10**6), offset_ns=st.integers(-(10**15), 10**15))
def test_stamps_at_the_end_of_what_they_average_cost_half_a_distance(
    seed: int, offset_ns: int
) -> None:
    work = bursts(np.random.default_rng(seed), 600)
    samples = sampled(work, 1.25, offset_ns, (-300, 1200), 10, stamped_at_end=True)
    found = estimated(telemetry_of(samples), table_of_work(work))
    assert isinstance(found, Estimate), found
    assert abs(found.offset_ns - offset_ns) <= 2 * found.uncertainty_ns
    assert abs(found.offset_ns - offset_ns) < 1 * MS


def test_utilisation_serves_where_power_is_not_there() -> None:
    work = bursts(np.random.default_rng(5), 800)
    samples = sampled(work, 5, 12_345_678_901, (-500, 2000))
    telemetry = telemetry_of(samples, signal=SignalName.GFX_UTIL_PCT)
    found = estimated(telemetry, table_of_work(work))
    assert isinstance(found, Estimate), found
    assert abs(found.offset_ns - 12_345_678_901) <= found.uncertainty_ns
    assert "gfx_util_pct" in found.method


def test_lost_samples_do_not_hide_the_offset() -> None:
    work = bursts(np.random.default_rng(6), 900)
    whole = sampled(work, 2, 77 * MS, (-500, 2000), 20)
    kept = np.random.default_rng(7).random(len(whole)) > 0.1
    telemetry = telemetry_of(SignalSamples(whole.time_ns[kept], whole.value[kept]))
    found = estimated(telemetry, table_of_work(work))
    assert isinstance(found, Estimate), found
    assert abs(found.offset_ns - 77 * MS) <= found.uncertainty_ns


def test_strictly_periodic_work_without_an_edge_is_refused() -> None:
    """The trace shows 400 ms of work that began before and goes on after it."""
    work = [(BEGIN + at * 10 * MS, BEGIN + at * 10 * MS + 5 * MS) for at in range(-100, 200)]
    traced = [each for each in work if BEGIN <= each[0] < BEGIN + 400 * MS]
    samples = sampled(work, 1, 0, (-900, 1900))
    found = estimated(telemetry_of(samples), table_of_work(traced))
    assert isinstance(found, str)
    assert "several places" in found


def test_a_file_shorter_than_the_trace_is_refused(wording: Wording) -> None:
    work = bursts(np.random.default_rng(8), 900)
    found = estimated(telemetry_of(sampled(work, 1, 0, (200, 700))), table_of_work(work))
    wording(found, "less time")


def test_a_trace_shorter_than_a_few_samples_is_refused() -> None:
    work = bursts(np.random.default_rng(9), 900)
    found = estimated(telemetry_of(sampled(work, 100, 0, (-4000, 5000))), table_of_work(work))
    assert isinstance(found, str)
    assert "too short" in found


def test_a_constant_signal_is_refused() -> None:
    work = bursts(np.random.default_rng(10), 900)
    samples = sampled(work, 1, 0, (-500, 2000))
    constant = SignalSamples(samples.time_ns, np.full(len(samples), 400.0))
    found = estimated(telemetry_of(constant), table_of_work(work))
    assert isinstance(found, str)
    assert "doesn't follow" in found


def test_a_signal_of_nothing_known_is_refused() -> None:
    work = bursts(np.random.default_rng(11), 900)
    samples = sampled(work, 1, 0, (-500, 2000))
    unknown = SignalSamples(samples.time_ns, np.full(len(samples), np.nan))
    found = estimated(telemetry_of(unknown), table_of_work(work))
    assert isinstance(found, str)


def test_a_file_of_temperatures_only_has_nothing_to_go_by(wording: Wording) -> None:
    work = bursts(np.random.default_rng(12), 900)
    samples = sampled(work, 1, 0, (-500, 2000))
    telemetry = telemetry_of(samples, signal=SignalName.HOTSPOT_C)
    found = estimated(telemetry, table_of_work(work))
    assert isinstance(found, str)
    wording(found, "no signal")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("total_ms", "period_ms"), [(400, 1.25), (400, 10), (1000, 10), (3000, 100)]
)
@pytest.mark.parametrize("memory_ms", [pytest.param(0, marks=pytest.mark.sweep), 12])
def test_noise_is_placed_nowhere(total_ms: int, period_ms: float, memory_ms: int) -> None:
    """Another machine's power, as noise without and with a memory, is no one's of this run."""
    random = np.random.default_rng(13)
    placed = []
    for _ in range(20):
        work = bursts(random, total_ms)
        count = int(3 * total_ms / period_ms)
        noise = random.normal(size=count)
        keep = np.exp(-period_ms / memory_ms) if memory_ms else 0.0
        for at in range(1, count):
            noise[at] += keep * noise[at - 1]
        times = (np.arange(count) * period_ms * MS).astype(np.int64)
        found = estimated(telemetry_of(SignalSamples(times, 400 + 30 * noise)), table_of_work(work))
        if isinstance(found, Estimate):
            placed.append(found.method)
    assert placed == []


@pytest.mark.sweep
def test_work_of_another_machine_is_placed_nowhere() -> None:
    random = np.random.default_rng(14)
    placed = []
    for seed in range(20):
        theirs = bursts(random, 1500)
        samples = sampled(theirs, 5, 0, (-100, 1700), 20, seed=seed)
        found = estimated(telemetry_of(samples), table_of_work(bursts(random, 600)))
        if isinstance(found, Estimate):
            placed.append(found.method)
    assert placed == []


@pytest.mark.sweep
def test_what_is_placed_from_few_samples_is_placed_right() -> None:
    wrong = []
    for seed in range(40):
        work = bursts(np.random.default_rng(seed), 3000)
        samples = sampled(work, 100, 5 * MS, (-3000, 6000), 30, seed=seed)
        found = estimated(telemetry_of(samples), table_of_work(work))
        if isinstance(found, Estimate) and abs(found.offset_ns - 5 * MS) > found.uncertainty_ns:
            wrong.append(((found.offset_ns - 5 * MS) / MS, found.method))
    assert wrong == []


GPUS = {0: 0}
EPOCH = {ClockDomain.EPOCH: (0, "its clock is the run's")}
HOUR_NS = 3_600_000 * MS


def test_a_file_without_a_place_makes_no_track() -> None:
    work = bursts(np.random.default_rng(15), 900)
    table = table_of_work(work)
    samples = sampled(work, 1, 0, (-500, 2000))
    constant = telemetry_of(SignalSamples(samples.time_ns, np.full(len(samples), 400.0)))
    placement = place(constant, table, GPUS, EPOCH)
    assert placement.offset_ns is None
    assert placement.method
    assert signals([(constant, placement)], (BEGIN, BEGIN + 900 * MS)) == {}


@pytest.mark.parametrize("hours", [-12, -3.5, 0, 2, 5.75, 14])
def test_local_time_is_of_the_only_zone_in_which_it_covers_the_run(
    hours: float, wording: Wording
) -> None:
    placement = in_local_time(hours, (-500, 2000))
    assert placement.offset_ns == -int(hours * HOUR_NS)
    sign, minutes = "-" if hours < 0 else "+", int(abs(hours) * 60)
    zone = f"UTC{sign}{minutes // 60:02d}:{minutes % 60:02d}"
    wording(placement.method, f"local time of {zone}")


@pytest.mark.sweep
def test_of_several_zones_the_signals_tell_which(wording: Wording) -> None:
    """Two hours of samples: of the zones the one at which the power follows the work."""
    placement = in_local_time(2, (-7_200_000, 3_000), period_ms=10)
    assert placement.offset_ns == -2 * HOUR_NS
    wording(placement.method, "local time of UTC+02:00", "8 zones", "estimated")


def test_local_time_that_no_zone_brings_to_the_run_is_not_placed(wording: Wording) -> None:
    placement = in_local_time(2, (600_000, 650_000), period_ms=10)
    assert placement.offset_ns is None
    wording(placement.method, "time zone")


@pytest.mark.parametrize("span", [(-500, 400), (300, 2000), (100, 600)])
def test_local_time_of_a_log_of_a_part_of_the_run(span: tuple[int, int], wording: Wording) -> None:
    """One that was stopped, one that begins late, and both; the run takes 0.9 s."""
    placement = in_local_time(2, span)
    assert placement.offset_ns == -2 * HOUR_NS
    wording(placement.method, "local time of UTC+02:00", "covers some of it")


@pytest.mark.parametrize("span", [(-500, 100), (800, 2000), (1000, 2000)])
def test_local_time_of_a_log_with_hardly_any_of_the_run_has_no_place(
    span: tuple[int, int],
) -> None:
    assert in_local_time(2, span).offset_ns is None


def in_local_time(hours: float, span_ms: Stretch, period_ms: float = 1) -> TelemetrySource:
    work = bursts(np.random.default_rng(19), 900)
    samples = sampled(work, period_ms, -int(hours * HOUR_NS), span_ms, 10)
    telemetry = replace(telemetry_of(samples), clock=ClockDomain.LOCAL, resolution_ns=MS)
    return place(telemetry, table_of_work(work), GPUS, EPOCH)


def test_a_shift_is_added_and_said() -> None:
    work = bursts(np.random.default_rng(16), 900)
    table, telemetry = table_of_work(work), telemetry_of(sampled(work, 1, 0, (-500, 2000)))
    plain = place(telemetry, table, GPUS, EPOCH)
    shifted = place(telemetry, table, GPUS, EPOCH, 1_250 * MS)
    assert plain.offset_ns is not None
    assert shifted.offset_ns == plain.offset_ns + 1_250 * MS
    assert "+1.25 s" in shifted.method


def test_a_file_that_no_signal_places_is_placed_by_hand() -> None:
    work = bursts(np.random.default_rng(18), 900)
    table, samples = table_of_work(work), sampled(work, 1, 33 * MS, (-500, 2000))
    constant = telemetry_of(SignalSamples(samples.time_ns, np.full(len(samples), 400.0)))
    placement = place(constant, table, GPUS, EPOCH, 33 * MS)
    assert placement.offset_ns == 33 * MS
    assert "by hand" in placement.method
    (signal,) = signals([(constant, placement)], (BEGIN, BEGIN + 900 * MS)).values()
    assert signal.curves[0].means(np.array([BEGIN, BEGIN + 900.0 * MS])).tolist() == [400.0]


def named(*names: GpuName) -> Telemetry:
    nothing = SignalSamples(np.empty(0, np.int64), np.empty(0))
    return replace(telemetry_of(nothing), gpus=names)


def match_gpus(telemetry: Telemetry, gpus: Sequence[Gpu], **said: int | None) -> dict[int, int]:
    found = gpus_of_telemetry(telemetry.gpus, gpus, said)
    return {number: who.gpu for number, who in enumerate(found) if who.gpu is not None}


def test_gpus_are_told_by_their_node_where_a_file_gives_it() -> None:
    gpus = [Gpu(4, 4, 2, "MI300X"), Gpu(5, 5, 3, "MI300X")]
    by_node = named(GpuName(index=0, kfd_node=3), GpuName(index=1, kfd_node=2))
    assert match_gpus(by_node, gpus) == {0: 5, 1: 4}
    assert match_gpus(named(GpuName(kfd_node=3), GpuName(kfd_node=9)), gpus) == {0: 5}


def test_gpus_are_told_by_their_number_else_by_their_order() -> None:
    gpus = [Gpu(0, 0, 2, "MI300X"), Gpu(1, 1, 3, "MI300X")]
    assert match_gpus(named(GpuName(index=1), GpuName(index=0)), gpus) == {0: 1, 1: 0}
    assert match_gpus(named(GpuName(card="a"), GpuName(card="b")), gpus) == {0: 0, 1: 1}
    assert match_gpus(named(GpuName(index=40), GpuName(index=1)), gpus) == {1: 1}
    assert match_gpus(named(GpuName(index=40)), gpus) == {}


def test_collectives_do_not_count_as_work() -> None:
    """Waiting for others draws little power: only compute is what the signal follows."""
    random = np.random.default_rng(17)
    work = bursts(random, 900)
    rows = [Row(start, end - start, iteration=0) for start, end in work]
    rows += [
        Row(end, following - end, Kind.COMM, 11, iteration=0)
        for (_, end), (following, _) in pairwise(work)
    ]
    found = estimated(telemetry_of(sampled(work, 1, 42 * MS, (-500, 2000))), table_of(rows))
    assert isinstance(found, Estimate), found
    assert abs(found.offset_ns - 42 * MS) <= found.uncertainty_ns


@pytest.mark.sweep
def test_telemetry_of_simulated_runs_is_placed_within_its_stated_error() -> None:
    """Means and instants, at 10 and 20 ms; seeds that the rules weren't written with."""
    errors = []
    for seed in (9_100, 9_103):
        for period_ms in (10, 20):
            for averages in (True, False):
                found, true = placed_telemetry(
                    seed, period_ms, averages=averages, **STYLES[seed % len(STYLES)]
                )
                if isinstance(found, Estimate):
                    errors.append(abs(found.offset_ns - true))
                    assert errors[-1] <= found.uncertainty_ns
                    assert found.uncertainty_ns <= 2 * period_ms * MS
    assert len(errors) >= 7
    assert np.median(errors) <= 5 * MS


def test_means_are_placed_over_the_time_before_their_stamp() -> None:
    work = bursts(np.random.default_rng(21), 900)
    telemetry = telemetry_of(sampled(work, 10, 42 * MS, (-500, 2000), stamped_at_end=True))
    placement = place(telemetry, table_of_work(work), GPUS, {})
    assert placement.late_ns == 5 * MS
    assert placement.offset_ns is not None and abs(placement.offset_ns - 42 * MS) < MS
    (signal,) = signals([(telemetry, placement)], (BEGIN, BEGIN + 900 * MS)).values()
    at = BEGIN + np.arange(0, 900 * MS, 10 * MS)
    true = busy_share(work, at[:-1], at[1:])
    seen = (signal.curves[0].means(at) - IDLE_W) / (BUSY_W - IDLE_W)
    assert np.corrcoef(true, seen)[0, 1] > 0.95


@pytest.mark.parametrize("stamped_at_end", [True, False])
def test_stamps_of_a_known_clock_are_half_a_period_late_where_samples_average(
    stamped_at_end: bool,
    wording: Wording,
) -> None:
    work = bursts(np.random.default_rng(9), 900)
    samples = sampled(work, 10, 0, (-300, 1400), 20, stamped_at_end=stamped_at_end)
    known = {ClockDomain.MONOTONIC: (0, "its clock is the run's")}
    placement = place(telemetry_of(samples), table_of_work(work), {0: 0}, known)
    assert placement.offset_ns == 0
    wording(placement.method, "the run's")
    assert placement.late_ns == (5 * MS if stamped_at_end else 0)


def test_the_clock_of_an_idle_gpu_says_nothing_of_the_kernels_beside_it() -> None:
    """Samples every 10 ms; the GPU idles from 200 to 300 ms and falls asleep."""
    work = [(BEGIN, BEGIN + 200 * MS), (BEGIN + 300 * MS, BEGIN + 303 * MS),
            (BEGIN + 303 * MS, BEGIN + 600 * MS)]  # fmt: skip
    times = BEGIN + np.arange(-5, 65) * 10 * MS
    idle = (times < BEGIN) | ((times >= BEGIN + 200 * MS) & (times <= BEGIN + 300 * MS))
    curve = nearest_values(times, np.where(idle, 132.0, 1_730.0), 80 * MS)
    table = table_of_work(work)
    signal = Signal("gfx_mhz", "gfx", Unit.MHZ, {0: curve}, 0.0, 2_000.0)
    columns = telemetry_columns(table, {"gfx_mhz": signal})
    clocks = columns[integral_of("gfx_mhz")] / columns[known_of("gfx_mhz")]
    assert clocks.tolist() == pytest.approx([1_730.0] * 3)
