"""Telemetry files of the same GPUs and clock help each other to the run's clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from test_telemetry_clock import BEGIN, bursts, sampled, table_of_work, telemetry_of

from chopper_core.align.telemetry_clock import Placed, place, placed_together
from chopper_core.model.table import KernelTable
from chopper_core.sources.signals import ClockDomain, Telemetry

GPUS = {0: 0, 1: 1}
OFFSET_NS = 4_000_000_000


def made(seed: int, total_ms: float = 900) -> tuple[KernelTable, Telemetry, Telemetry]:
    """Two files of power on one clock; the first is too noisy to be placed in a short trace."""
    work = [bursts(np.random.default_rng(40 + seed), total_ms) for _ in GPUS]
    files = []
    for number, noise_w in enumerate((600, 60)):
        samples = [
            sampled(each, 5, OFFSET_NS, (-2000, 4000), noise_w, seed=seed + 10 * gpu)
            for gpu, each in enumerate(work)
        ]
        file = replace(telemetry_of(*samples), path=Path(f"{number}.csv"))
        files.append(replace(file, clock=ClockDomain.MONOTONIC))
    return table_of_work(*work), *files


def alone(file: Telemetry, table: KernelTable, gpus: dict[int, int] = GPUS) -> Placed:
    return file, place(file, table, gpus, {})


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(4))
def test_one_that_is_too_noisy_takes_the_place_of_another_on_its_clock(seed: int) -> None:
    table, noisy, clear = made(seed, 260)
    both = [alone(noisy, table), alone(clear, table)]
    assert [source.offset_ns is None for _, source in both] == [True, False]
    helped, same = placed_together(both)
    assert helped[1].offset_ns == both[1][1].offset_ns and "same clock" in helped[1].method
    assert helped[1].uncertainty_ns == both[1][1].uncertainty_ns and same == both[1]


def test_files_of_other_gpus_or_another_clock_do_not_help() -> None:
    table, noisy, clear = made(1, 260)
    elsewhere = alone(clear, table)
    elsewhere = elsewhere[0], replace(elsewhere[1], gpus={0: 2, 1: 3})
    other = alone(replace(clear, clock=ClockDomain.UNKNOWN), table)
    for helper in (elsewhere, other):
        both = [alone(noisy, table), helper]
        assert placed_together(both) == both


def test_a_file_placed_by_hand_stays_where_it_is() -> None:
    table, first, second = made(3)
    by_hand = place(first, table, GPUS, {}, shift_ns=BEGIN)
    assert placed_together([(first, by_hand), alone(second, table)])[0][1] == by_hand
