"""A library's samples, as they are taken, have the values that a file of them has."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chopper_core.record.gpus import AmdSmi, Nvml, Reading, Sample
from chopper_core.record.manifest import RecordedGpu
from chopper_core.record.sampler import GpuSampler
from chopper_core.sources.registry import Family, read_source
from chopper_core.sources.signals import GpuName
from chopper_core.sources.telemetry.rounds import SampleRounds

GPUS, ROUNDS, SETTLED = 3, 60, 12
FAR = 2**32 - 2000
"""Counters of 32 bits wrap on the way."""


def number_of(name: str, at: int, chance: random.Random) -> int | float:
    """A reading of a column: counters rise, wrap and are reset; some are what no GPU has."""
    if name.endswith(("_acc", "_accumulator", "_bytes", "energy_j", "accumulation_counter")):
        step = 1000 if "residency" not in name else 300
        number = (FAR if "ppt" in name or "pcie" in name else 0) + step * at
        return number % 2**32 if at < 40 else step * (at - 40)
    if "throttle_status" in name:
        return chance.choice([0, 0, 4])
    bad = [-1, 10**9, 65535, 2**64 - 1]
    usual = chance.choice([60, 71.5, 99])
    return chance.choice([*[usual] * 12, *bad])


def reading_of(name: str, gpu: int, at: int, chance: random.Random) -> Reading:
    is_absent = chance.random() < 0.15 or (gpu == 2 and name == "current_socket_power")
    if is_absent or (name == "current_gfxclks" and gpu == 1):
        return ""
    if name in ("current_gfxclks", "xgmi_read_data_acc", "xgmi_write_data_acc"):
        size = 4 if gpu else 6
        own: list[Any] = [number_of(name, at, chance) for _ in range(size)]
        return tuple(each if chance.random() < 0.9 else "" for each in own)
    return number_of(name, at, chance)


@pytest.mark.parametrize("library", [AmdSmi, Nvml])
@pytest.mark.parametrize("seed", range(3))
def test_samples_have_the_values_of_a_file_of_them(
    library: type[AmdSmi | Nvml], seed: int, tmp_path: Path
) -> None:
    chance, columns = random.Random(seed), library.columns
    gpus = [RecordedGpu(gpu, f"0000:0{gpu}:00.0", kfd_node=gpu + 2) for gpu in range(GPUS)]
    rows: list[Sample] = []
    stand_in = SimpleNamespace(
        columns=columns, rare=library.rare, devices=lambda: gpus, sample=lambda **_: iter(rows)
    )
    sampler = GpuSampler(stand_in)  # type: ignore[arg-type]
    names = [GpuName(each.index, each.kfd_node, pci=each.pci) for each in gpus]
    rounds, lines = SampleRounds(columns, names), [sampler.heading]
    found: dict[tuple[int, str], dict[int, float]] = {}
    for at in range(ROUNDS):
        there = [gpu for gpu in range(GPUS) if chance.random() < 0.9]
        taken_ns = 10**15 + at * 10**9 + chance.randrange(10**8)
        rows[:] = [
            Sample(gpu, tuple(reading_of(name, gpu, at, chance) for name in columns), taken_ns)
            for gpu in there
        ]
        own = sampler.rows()
        lines += [*map(sampler.line, own)]
        telemetry = rounds.telemetry(tmp_path, [(row[0], row[1], row[3]) for row in own])
        for (gpu, name), (samples,) in telemetry.signals.items():
            known = found.setdefault((gpu, name), {})
            known[int(samples.time_ns[0])] = float(samples.value[0])
    path = tmp_path / "gpus.csv"
    path.write_text("\n".join([*lines, ""]))
    of_file = read_source(path, Family.TELEMETRY)
    assert [*of_file.gpus] == names
    expected = {
        (gpu, name): dict(zip(own[0].time_ns.tolist(), own[0].value.tolist(), strict=True))
        for (gpu, name), own in of_file.signals.items()
        if not own[0].part and (gpu, name) in found
    }
    assert found.keys() == expected.keys() and len(found) >= 6 * GPUS
    # Which of two columns counts is settled by a whole file: here once each GPU had its own.
    settled_ns = sorted(at for own in expected.values() for at in own)[0] + SETTLED * 10**9
    for key, values in expected.items():
        for at, value in values.items():
            if at > settled_ns:
                assert found[key].get(at) == pytest.approx(value, rel=1e-6), (key, at)
        more = {at: own for at, own in found[key].items() if at > settled_ns and at not in values}
        assert not more, (key, more)
