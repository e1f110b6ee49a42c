"""Readings that contradict the others of their GPU are left out, and said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.align.sensors import unlike_kernels
from chopper_core.align.telemetry import power_of
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.signals import Signal, between
from chopper_core.model.table import KernelTable
from chopper_core.model.units import Unit
from chopper_core.views.query import query
from tests.align.traces import GEMM, TinyTrace
from tests.support import Row, table_of
from tests.wording import Wording

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


def test_zero_power_under_load_is_no_reading(tmp_path: Path, wording: Wording) -> None:
    run = opened(tmp_path, {0: (98, 430), 1: (98, 0), 2: (98, 432), 3: (0, 0)})
    (note,) = texts(run)
    wording(note, "power of GPU 1", "0 W")
    power = query(run, parse("R?columns=energy_j")).values["energy_j"]
    assert power.at(0) is not None and power.at(1) is None


def test_a_gpu_without_any_reading_is_not_covered(tmp_path: Path) -> None:
    run = opened(tmp_path, {0: (98, 430), 1: (98, 0), 2: (98, 432), 3: (98, "N/A")})
    tree = query(run, parse("R?columns=power_w"))
    (note,) = [note for note in tree.notes if note.startswith("* ")]
    assert note == "* telemetry of 2 of 4 GPUs only: 0, 2"
    for view in ("overview", "power"):
        frame = query(run, parse(f"R?view={view}"))
        assert frame.total["mean_power_w"] is None
        powers = frame.values["mean_power_w"]
        # What GPUs 1 and 3 lack says nothing about the others' power.
        assert not any(powers.is_extrapolated(row) for row in range(4))
        assert "mean power, energy: no total, since only 2 of 4 GPUs have it" in frame.notes


def test_use_of_zero_at_full_power_is_no_reading(tmp_path: Path, wording: Wording) -> None:
    run = opened(tmp_path, {0: (0, 700), 1: (0, 150), 2: (90, 700)})
    (note,) = texts(run)
    wording(note, "use of GPU 0", "at most 1 %", "250 W")
    use = query(run, parse("R?columns=gfx_util_pct")).values["gfx_util_pct"]
    assert use.at(0) is None and use.at(1) == 0.0 and use.at(2) == 90.0


def test_partitions_that_repeat_their_socket_count_once(tmp_path: Path, wording: Wording) -> None:
    run = opened(tmp_path, {0: (98, 430), 1: (98, 430), 2: (98, 431)}, changes=True)
    (note,) = texts(run)
    wording(note, "power of GPUs 0, 1")
    frame = query(run, parse("R?columns=energy_j,power_w"))
    joules = [frame.values["energy_j"].at(row) or 0.0 for row in range(3)]
    assert joules[0] == joules[1] and sum(joules[:2]) == pytest.approx(joules[2], rel=0.01)
    power = frame.values["power_w"]
    assert power.at(0) == pytest.approx(215, rel=0.01)
    assert [power.is_extrapolated(row) for row in range(3)] == [True, True, False]
    assert run.doubts[0].as_json["gpus"] == (0, 1)


def test_equal_constant_readings_are_no_doubt(tmp_path: Path) -> None:
    assert texts(opened(tmp_path, {0: (98, 430), 1: (98, 430)})) == []


def test_values_beyond_the_hardware_are_no_readings(tmp_path: Path, wording: Wording) -> None:
    run = opened(tmp_path, {0: (98, 43_000), 1: (98, 430)})
    (note,) = texts(run)
    wording(note, "power of GPU 0")
    power = query(run, parse("R?columns=power_w")).values["power_w"]
    assert power.at(0) is None and power.at(1) == 430.0


def test_one_more_reading_differs_and_its_socket_still_counts_once(tmp_path: Path) -> None:
    """Partitions are read one after the other, so that a change may fall between two."""
    head, *rows = "".join(
        f"{1_760_000_000 + second},{gpu},98,{430 + second % 7 + (gpu == 1 and second == 12)},1700\n"
        for second in range(30)
        for gpu in (0, 1)
    ).splitlines()
    (tmp_path / "amd_smi.csv").write_text("\n".join([HEAD, head, *rows]) + "\n")
    run = open_run(str(tmp_path / "amd_smi.csv"))
    assert len(texts(run)) == 1 and "GPUs 0, 1 repeats" in texts(run)[0]


SAMPLES = "# clock: epoch\ntime_ns,gpu,power_w,energy_j\n"


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.2, 3.0, 1000.0])
def test_energy_that_contradicts_power_is_left_out(tmp_path: Path, factor: float) -> None:
    rows = [
        f"{1_760_000_000_000_000_000 + second * 10**9},0,500,{1e6 + factor * 500 * second:.1f}\n"
        for second in range(60)
    ]
    path = tmp_path / "samples.csv"
    path.write_text(SAMPLES + "".join(rows))
    found = texts(open_run(str(path)))
    wrong = ["energy counter of GPU 0 contradicts its power: left out"]
    assert found == (wrong if factor not in (1.0, 1.2) else [])


def local_log(folder: Path, stamps: Sequence[str]) -> Run:
    rows = [f"2026/03/29 {stamp}.000, 0, 400.00 W, 1700 MHz\n" for stamp in stamps]
    path = folder / "nvidia_smi.csv"
    head = "timestamp, index, power.draw [W], clocks.current.sm [MHz]\n"
    path.write_text(head + "".join(rows))
    return open_run(str(path))


def test_the_hour_that_summer_time_leaves_out_is_no_time(tmp_path: Path, wording: Wording) -> None:
    stamps = [f"01:{minute:02}:{second:02}" for minute in (58, 59) for second in range(0, 60, 5)]
    stamps += [f"03:{minute:02}:{second:02}" for minute in (0, 1) for second in range(0, 60, 5)]
    run = local_log(tmp_path, stamps)
    (note,) = texts(run)
    wording(note, "summer time begins")
    assert run.sampled_ns[1] - run.sampled_ns[0] == 235 * 10**9


def test_a_pause_of_an_hour_is_a_pause(tmp_path: Path) -> None:
    stamps = [f"01:{minute:02}:{second:02}" for minute in (28, 29) for second in range(0, 60, 5)]
    stamps += [f"02:{minute:02}:{second:02}" for minute in (30, 31) for second in range(0, 60, 5)]
    run = local_log(tmp_path, stamps)
    assert texts(run) == [] and run.sampled_ns[1] - run.sampled_ns[0] > 3600 * 10**9


def test_a_clock_that_was_set_back_is_in_doubt(tmp_path: Path, wording: Wording) -> None:
    stamps = [f"10:{minute:02}:{second:02}" for minute in (20, 21) for second in range(0, 60, 5)]
    stamps += [f"10:{minute:02}:{second:02}" for minute in (15, 16) for second in range(0, 60, 5)]
    [text] = texts(local_log(tmp_path, stamps))
    wording(text, "415 s")


def test_an_energy_counter_that_stands_still_is_named_as_such(
    tmp_path: Path, wording: Wording
) -> None:
    """Power is right; the counter is in a unit a million times smaller."""
    rows = [f"{1_760_000_000 + at},0,98,700,{1000 + at * 0.0007:.4f}" for at in range(20)]
    head = "timestamp,gpu,gfx_activity,socket_power,total_energy_consumption"
    path = tmp_path / "amd_smi.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    run = open_run(str(path))
    (note,) = texts(run)
    wording(note, "GPU 0", "1 W")
    assert query(run, parse("R?columns=power_w")).values["power_w"].at(0) == 700


def test_gpus_of_nvidia_are_sockets_of_their_own(tmp_path: Path) -> None:
    """Their counters may be equal by chance, or made up: no energy is divided."""
    lines = "".join(
        f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="{gpu}",UUID="G{gpu}"}} {612_500 * second} '
        f"{1000 * (1_760_000_000 + second)}\n"
        for second in range(20)
        for gpu in (0, 1)
    )
    (tmp_path / "dcgm.prom").write_text(lines)
    run = open_run(str(tmp_path / "dcgm.prom"))
    assert texts(run) == []
    rates = run.sampled["energy_rate_w"]
    assert {gpu: each.mean for gpu, each in rates.items()} == {0: 612.5, 1: 612.5}


def test_a_memory_of_0_degrees_has_no_sensor(tmp_path: Path, wording: Wording) -> None:
    """As dcgm-exporter writes it of an L40S, whose core has one: that fails at times."""
    lines = "".join(
        f'DCGM_FI_DEV_{field}{{gpu="0"}} {value} {1000 * (1_760_000_000 + second)}\n'
        for second in range(3)
        for field, value in (("MEMORY_TEMP", 0), ("GPU_TEMP", 0 if second else 40))
    )
    (tmp_path / "dcgm.prom").write_text(lines)
    run = open_run(str(tmp_path / "dcgm.prom"))
    note, failed = texts(run)
    wording(note, "memory temperature of GPU 0", "0 °C")
    wording(failed, "edge temperature of GPU 0", "0 °C")
    assert "mem_c" not in run.sampled
    assert run.sampled["edge_c"][0].low == run.sampled["edge_c"][0].high == 40.0


def test_gpus_named_by_uuid_keep_the_order_of_the_rows(tmp_path: Path) -> None:
    """nvidia-smi writes a round in the order of its numbers; a UUID is no number."""
    names = [f"GPU-{first}c708d-1111-2222-3333-4444" for first in ("f1e", "9ab", "10d", "0ce")]
    rows = [
        f"2026/01/01 10:00:{second:02d}.000, {name}, {100 * (1 + gpu)} W"
        for second in range(20)
        for gpu, name in enumerate(names)
    ]
    path = tmp_path / "smi.csv"
    path.write_text("\n".join(["timestamp, uuid, power.draw [W]", *rows]) + "\n")
    run = open_run(str(path))
    power = query(run, parse("R?columns=power_w")).values["power_w"]
    assert [power.at(gpu) for gpu in range(4)] == [100.0, 200.0, 300.0, 400.0]


def own_log(folder: Path, headings: str, rows: Sequence[str]) -> Run:
    """A run of a log in Chopper's own format, two samples a second."""
    lines = [f"{1_760_000_000_000_000_000 + at * 500_000_000},{row}" for at, row in enumerate(rows)]
    path = folder / "own.csv"
    path.write_text("\n".join(["# clock: epoch", f"time_ns,{headings}", *lines]) + "\n")
    return open_run(str(path))


@pytest.mark.parametrize("load", ["gfx_util_pct", "power_w"])
@pytest.mark.parametrize("clock", ["gfx_mhz", "mem_mhz"])
def test_a_clock_that_stands_still_under_load_is_no_reading(
    tmp_path: Path, load: str, clock: str, wording: Wording
) -> None:
    """GHz below a heading of MHz, or a sensor that fails; an idle GPU's clock may be as low."""
    at_work = {"gfx_util_pct": (0, 95), "power_w": (150, 600)}[load]
    rows = [f"0,{at_work[at > 3]},{1.83 if at > 5 else 33}" for at in range(20)]
    run = own_log(tmp_path, f"gpu,{load},{clock}", rows)
    (note,) = texts(run)
    wording(note, "clock of GPU 0", "100 MHz under load")
    assert run.sampled[clock][0].samples == 4 and run.sampled[clock][0].low == 33.0


def test_a_power_cap_of_0_w_is_no_reading(tmp_path: Path, wording: Wording) -> None:
    run = own_log(tmp_path, "gpu,power_w,power_cap_w", [f"0,{500 + at},0" for at in range(20)])
    (note,) = texts(run)
    wording(note, "power cap of GPU 0", "0 W")
    assert "power_cap_w" not in run.sampled


def test_without_times_no_counter_contradicts_a_power(tmp_path: Path) -> None:
    """`dcgmi dmon` without stamps: the time in which energy was counted isn't known."""
    rows = [f"GPU 0     {500 + at}.0   {at * 50_000}" for at in range(20)]
    head = ["#Entity   POWER   TOTEC", "ID          W      mJ"]
    (tmp_path / "dcgm.txt").write_text("\n".join([*head, *rows]) + "\n")
    assert not any("contradicts" in text for text in texts(open_run(str(tmp_path / "dcgm.txt"))))


def test_energy_is_that_of_power_while_the_counter_is_unknown() -> None:
    """A counter of 500 W that is reset between 4 and 5 s and stops after 9 s; power of 600 W."""
    second = 1_000_000_000
    at = np.arange(12) * second
    known = np.array([0, 1, 2, 3, 5, 6, 7, 8])
    counter = between(at[known], at[known + 1], np.full(len(known), 500.0))
    power = between(at[:-1], at[1:], np.full(11, 600.0))
    signals = [
        Signal(name, name, Unit.WATTS, {0: curve}, 0.0, 1000.0)
        for name, curve in (("energy_rate_w", counter), ("power_w", power))
    ]
    curve = power_of(signals, 0)
    joules, covered = curve.integrals(at)
    expected = [500, 500, 500, 500, 600, 500, 500, 500, 500, 600, 600]
    assert (np.diff(joules) / second).tolist() == expected
    assert (np.diff(covered) == second).all()
    # What neither has stays unknown.
    power = between(at[2:4], at[3:5], np.full(2, 600.0))
    signals[1] = replace(signals[1], curves={0: power})
    joules, covered = power_of(signals, 0).integrals(at)
    assert (np.diff(joules)[:9] / second).tolist() == [500] * 4 + [0] + [500] * 4
    assert (np.diff(covered) == 0).tolist() == [False] * 4 + [True] + [False] * 4 + [True] * 2


MATRIX, OTHER = "Cijk_Ailk_Bljk_HB_MT256", "vectorized_elementwise_kernel"


def clocked(
    clock: Callable[[int, int], float], slower: Callable[[int, int], float], kernel: str = MATRIX
) -> KernelTable:
    """Four GPUs, six steps of ten kernels: what the clock reads (GPU, step), and how long kernels
    take."""
    rows, mhz = [], []
    for gpu in range(4):
        for step in range(6):
            for number in range(10):
                took = round(100_000 * slower(gpu, step) * (1 + 0.01 * (number % 3)))
                start = (step * 10 + number) * 400_000
                rows.append(Row(start, took, gpu=gpu, iteration=step, kernel=kernel))
                mhz.append(clock(gpu, step))
    table = table_of(rows)
    known = table.duration_ns.astype(np.float64)
    return table.with_measured({"gfx_mhz integral": known * mhz, "gfx_mhz known": known})


def test_a_clock_that_matrix_kernels_do_not_follow_is_no_reading(wording: Wording) -> None:
    def stuck(gpu: int, step: int) -> float:
        return 1000.0 if gpu == 2 and step > 2 else 1700.0

    (doubt,) = unlike_kernels(clocked(stuck, lambda gpu, step: 1.0))
    wording(doubt.sentence, "clock of GPU 2", "41 % lower", "as long")
    assert doubt.gpus == (2,) and doubt.signals == ("gfx_mhz",)
    # A GPU that is slower for another reason, by far less than its clock says.
    (doubt,) = unlike_kernels(clocked(stuck, lambda gpu, step: 1.05 if gpu == 2 else 1.0))
    wording(doubt.sentence, "clock of GPU 2", "41 % lower", "5 % longer")
    # It reads twice what it is.
    (doubt,) = unlike_kernels(clocked(lambda gpu, _: 1700.0 * (1 + (gpu == 0)), lambda *_: 1.0))
    wording(doubt.sentence, "clock of GPU 0", "100 % higher")


def test_a_clock_that_matrix_kernels_follow_is_one() -> None:
    def low(gpu: int, step: int) -> float:
        return 1000.0 if gpu == 2 and step > 2 else 1700.0

    for exponent in (1.0, 0.4):
        follow = clocked(low, lambda gpu, step, by=exponent: (1700 / low(gpu, step)) ** by)
        assert not [*unlike_kernels(follow)]
    # Memory bounds these; and a difference of some percent is one of products.
    assert not [*unlike_kernels(clocked(low, lambda *_: 1.0, OTHER))]
    assert not [*unlike_kernels(clocked(lambda gpu, _: 1700.0 - 50 * gpu, lambda *_: 1.0))]


def test_a_clock_that_is_no_reading_is_missing_everywhere(tmp_path: Path) -> None:
    begin = 1_760_000_000
    for rank in range(3):
        about = {"rank": rank, "world_size": 3}
        members = {"distributedInfo": about, "baseTimeNanoseconds": begin * 10**9}
        trace = TinyTrace(device=rank, members=members)
        for number in range(20):
            trace.op("aten::mm", 10 * number, 10 * number + 8)
            start = 1_000 + 20_000 * number
            trace.launch(GEMM, 10 * number + 2, start=start, duration=19_000)
        trace.write(tmp_path / f"rank{rank}.json")
    rows = [
        f"{begin * 10**9 + 5_000_000 * sample},{gpu},{900 if gpu == 1 else 1700},600"
        for sample in range(82)
        for gpu in range(3)
    ]
    lines = ["# clock: epoch", "time_ns,gpu,gfx_mhz,power_w", *rows]
    (tmp_path / "telemetry.csv").write_text("\n".join(lines) + "\n")
    run = open_run(str(tmp_path), jobs=1)
    assert [text for text in texts(run) if "clock of GPU 1 reads 47 % lower" in text]
    for view, name in (("", "gfx_mhz"), ("view=power&", "mean_gfx_mhz")):
        clock = query(run, parse(f"R?{view}columns={name}")).values[name]
        assert [clock.at(gpu) for gpu in range(3)] == [1700.0, None, 1700.0]
    power = query(run, parse("R?columns=power_w")).values["power_w"]
    assert [power.at(gpu) for gpu in range(3)] == [600.0] * 3


@pytest.mark.parametrize(
    ("use", "watts", "cap", "is_stuck"),
    [(97, 400, 750, True), (97, 740, 750, False), (3, 140, 750, False), (97, 401, 402, False)],
)
def test_a_power_that_stays_the_same_under_load_is_that_of_before(
    tmp_path: Path, use: int, watts: int, cap: int, is_stuck: bool, wording: Wording
) -> None:
    """An idle GPU's power may be steady, and that of one at its cap."""
    head = "gpu,power_w,power_cap_w,gfx_util_pct"
    rows = [
        f"{gpu},{watts if gpu == 1 and at >= 40 else 600 + (7 * at + 3 * gpu) % 11},{cap},{use}"
        for at in range(160)
        for gpu in range(2)
    ]
    lines = [
        f"{1_760_000_000_000_000_000 + at // 2 * 100_000_000},{row}" for at, row in enumerate(rows)
    ]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["# clock: epoch", f"time_ns,{head}", *lines]) + "\n")
    run = open_run(str(path))
    stuck = [text for text in texts(run) if "under load" in text]
    assert bool(stuck) == is_stuck
    assert run.sampled["power_w"][1].samples == (41 if is_stuck else 160)
    if is_stuck:
        wording(stuck[0], "power of GPU 1", "doesn't change")


@pytest.mark.parametrize(("cap", "is_one"), [(750, True), (650, True), (300, False)])
def test_a_power_cap_far_below_the_power_is_none(
    tmp_path: Path, cap: int, is_one: bool, wording: Wording
) -> None:
    """Power may be somewhat above the cap at times, not by a fifth half of the time."""
    rows = [f"0,{700 + at % 7},{cap}" for at in range(20)]
    run = own_log(tmp_path, "gpu,power_w,power_cap_w", rows)
    assert ("power_cap_w" in run.sampled) == is_one
    if not is_one:
        wording(texts(run)[0], "power cap of GPU 0", "far below the power")
