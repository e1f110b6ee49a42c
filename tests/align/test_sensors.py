"""Readings that contradict the others of their GPU are left out, and said."""

from __future__ import annotations

from pathlib import Path

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.views.query import query

HEAD = "timestamp,gpu,gfx_activity,socket_power,gfx_0_clk"


def opened(
    folder: Path, readings: dict[int, tuple[float, object]], *, changes: bool = False
) -> Run:
    """A run of an amd-smi log of 20 s: GPU → use in % and power in W."""
    rows = [
        f"{1_760_000_000 + second},{gpu},{use},{power}{f'.{second}' * changes},1700"
        for second in range(20)
        for gpu, (use, power) in readings.items()
    ]
    path = folder / "amd_smi.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return open_run(str(path))


def texts(run: Run) -> list[str]:
    return [doubt.sentence for doubt in run.doubts]


def test_zero_power_under_load_is_no_reading(tmp_path: Path) -> None:
    run = opened(tmp_path, {0: (98, 430), 1: (98, 0), 2: (98, 432), 3: (0, 0)})
    assert texts(run) == ["power of GPU 1 reads 0 W under load: left out"]
    power = query(run, parse("R?columns=energy_j")).values["energy_j"]
    assert power.at(0) is not None and power.at(1) is None


def test_use_of_zero_at_full_power_is_no_reading(tmp_path: Path) -> None:
    run = opened(tmp_path, {0: (0, 700), 1: (0, 150), 2: (90, 700)})
    assert texts(run) == ["use of GPU 0 reads 0 % at more than 250 W: left out"]
    use = query(run, parse("R?columns=gfx_util_pct")).values["gfx_util_pct"]
    assert use.at(0) is None and use.at(1) == 0.0 and use.at(2) == 90.0


def test_partitions_that_repeat_their_socket_count_once(tmp_path: Path) -> None:
    run = opened(tmp_path, {0: (98, 430), 1: (98, 430), 2: (98, 431)}, changes=True)
    assert texts(run) == [
        "power of GPU 1 repeats that of another one, whose socket it shares: left out"
    ]


def test_equal_constant_readings_are_no_doubt(tmp_path: Path) -> None:
    assert texts(opened(tmp_path, {0: (98, 430), 1: (98, 430)})) == []


def test_an_energy_counter_that_stands_still_is_named_as_such(tmp_path: Path) -> None:
    """Power is right; the counter is in a unit a million times smaller."""
    rows = [f"{1_760_000_000 + at},0,98,700,{1000 + at * 0.0007:.4f}" for at in range(20)]
    head = "timestamp,gpu,gfx_activity,socket_power,total_energy_consumption"
    path = tmp_path / "amd_smi.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    run = open_run(str(path))
    assert texts(run) == ["energy counter of GPU 0 counts less than 1 W under load: left out"]
    assert query(run, parse("R?columns=power_w")).values["power_w"].at(0) == 700
