"""Telemetry files of the same GPUs help each other to the run's clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from test_telemetry_clock import BEGIN, MS, bursts, sampled, table_of_work, telemetry_of

from chopper_core.align.telemetry_clock import place
from chopper_core.align.telemetry_pairs import Placed, together
from chopper_core.model.table import KernelTable
from chopper_core.sources.signals import ClockDomain, SignalName, SignalSamples, Telemetry

GPUS = {0: 0, 1: 1}
WARM_NS = 150 * MS


def heat(power: SignalSamples, period_ms: float, seed: int, clock_ns: int = 0) -> SignalSamples:
    """The temperature that follows a power, read at instants a period apart."""
    warm, level = [], float(power.value[0])
    share = 1 - np.exp(-float(np.median(np.diff(power.time_ns))) / WARM_NS)
    for watts in power.value:
        level += share * (watts - level)
        warm.append(level / 10)
    times = np.arange(power.time_ns[0], power.time_ns[-1], period_ms * MS)
    noise = np.random.default_rng(seed).normal(0, 0.05, len(times))
    values = np.interp(times, power.time_ns, warm) + noise
    return SignalSamples((times - clock_ns).astype(np.int64), values)


def made(
    seed: int, first_ns: int, second_ns: int, clock: ClockDomain = ClockDomain.UNKNOWN
) -> tuple[KernelTable, Telemetry, Telemetry]:
    """A file of power and temperature, and one of temperature alone on a clock of its own."""
    random = np.random.default_rng(seed)
    work = [bursts(random, 900) for _ in GPUS]
    power = [sampled(each, 5, 0, (-700, 2000), 10, seed=seed) for each in work]
    files = []
    for period, offset_ns, signals in (
        (5, first_ns, (SignalName.POWER_W, SignalName.HOTSPOT_C)),
        (8, second_ns, (SignalName.HOTSPOT_C,)),
    ):
        parts = {}
        for number, each in enumerate(power):
            if SignalName.POWER_W in signals:
                moved = SignalSamples(each.time_ns - offset_ns, each.value)
                parts[number, SignalName.POWER_W] = [moved]
            warm = heat(each, period, seed + number + period, offset_ns)
            parts[number, SignalName.HOTSPOT_C] = [warm]
        file = replace(telemetry_of(*power), signals=parts, clock=clock, path=Path(f"{period}.csv"))
        files.append(file)
    return table_of_work(*work), *files


def alone(file: Telemetry, table: KernelTable) -> Placed:
    return file, place(file, table, GPUS, {})


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(6))
def test_a_file_that_nothing_places_is_placed_by_another_of_the_same_gpus(seed: int) -> None:
    table, first, second = made(seed, 7_000_000_000_123, -3_000_000_000_456)
    both = [alone(second, table), alone(first, table)]
    assert both[0][1].offset_ns is None and both[1][1].offset_ns is not None
    found = together(both)[0][1]
    assert found.offset_ns is not None and "hotspot_c" in found.method and "5.csv" in found.method
    assert abs(found.offset_ns + 3_000_000_000_456) <= found.uncertainty_ns < 12 * MS
    assert together(both)[1][1] == both[1][1]


def test_files_on_one_clock_share_its_offset() -> None:
    offset_ns = 5_000_000_000_789
    table, first, second = made(1, offset_ns, offset_ns, ClockDomain.MONOTONIC)
    both = [alone(first, table), alone(second, table)]
    found = together(both)[1][1]
    assert found.offset_ns == both[0][1].offset_ns and "same clock" in found.method
    assert found.uncertainty_ns == both[0][1].uncertainty_ns


@pytest.mark.sweep
def test_files_of_other_gpus_or_other_times_do_not_help() -> None:
    table, first, _ = made(1, 10**12, 0)
    _, _, second = made(2, 0, -(10**12))
    both = [alone(first, table), alone(second, table)]
    assert together(both) == both
    table, first, second = made(1, 10**12, 0)
    elsewhere = place(second, table, {0: 2, 1: 3}, {})
    both = [alone(first, table), (second, elsewhere)]
    assert together(both) == both


def test_a_file_placed_by_hand_stays_where_it_is() -> None:
    table, first, second = made(3, 10**12, 10**12, ClockDomain.MONOTONIC)
    by_hand = place(second, table, GPUS, {}, shift_ns=BEGIN)
    both = [alone(first, table), (second, by_hand)]
    assert together(both)[1][1] == by_hand


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
def test_one_that_is_too_noisy_takes_the_place_of_another_on_its_clock(seed: int) -> None:
    work = [bursts(np.random.default_rng(40 + seed), 260) for _ in GPUS]
    offset_ns = 4_000_000_000
    table = table_of_work(*work)
    found = []
    for number, noise_w in enumerate((600, 60)):
        samples = [
            sampled(each, 5, offset_ns, (-2000, 4000), noise_w, seed=seed + 10 * gpu)
            for gpu, each in enumerate(work)
        ]
        found.append(alone(replace(telemetry_of(*samples), path=Path(f"{number}.csv")), table))
    assert [source.offset_ns is None for _, source in found] == [True, False]
    helped = together(found)[0][1]
    assert helped.offset_ns is not None
    assert abs(helped.offset_ns - offset_ns) <= helped.uncertainty_ns
