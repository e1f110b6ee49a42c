"""The generated counters and telemetry: their layout, and that they agree with trace and truth."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.test_demo_generator import SMALL, Files, generator, read_files

PEAK_FLOPS_PER_NS = 304 * 2048 * 2.1
SIMDS = 304 * 4
NODE_OF_RANK_0 = 2
TERMS = (
    "theoretical_ns",
    "extra_instructions_ns",
    "mfma_underutilisation_ns",
    "contention_ns",
    "frequency_ns",
)
PASSES = {
    1: {"GRBM_GUI_ACTIVE", "SQ_BUSY_CYCLES", "SQ_WAVES"},
    2: {"SQ_VALU_MFMA_BUSY_CYCLES", "SQ_INSTS_VALU_MFMA_MOPS_BF16"},
    3: {
        "TCC_EA0_RDREQ_sum",
        "TCC_EA0_WRREQ_sum",
        "TCC_EA0_RDREQ_32B_sum",
        "TCC_BUBBLE_sum",
        "TCC_EA0_WRREQ_64B_sum",
    },
}
HEADER = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size",'
    '"Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count",'
    '"Accum_VGPR_Count","SGPR_Count","Counter_Name","Counter_Value","Start_Timestamp",'
    '"End_Timestamp"\n'
)

Row = dict[str, str]


class Dispatch:
    """The rows of one dispatch."""

    def __init__(self, rows: list[Row]) -> None:
        first = rows[0]
        self.name = re.sub(r"( \[clone \.kd\]|\.kd)$", "", first["Kernel_Name"])
        self.suffix = first["Kernel_Name"].removeprefix(self.name)
        self.grid = int(first["Grid_Size"])
        self.workgroup = int(first["Workgroup_Size"])
        self.start_ns = int(first["Start_Timestamp"])
        self.end_ns = int(first["End_Timestamp"])
        self.counters = {row["Counter_Name"]: float(row["Counter_Value"]) for row in rows}

    @property
    def cycles(self) -> float:
        return self.counters["GRBM_GUI_ACTIVE"] / 8

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class Run(Files):
    """A generated run with its tables parsed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.passes = {number: dict(self._pass(number)) for number in PASSES}
        text = gzip.decompress((folder / "telemetry/gpu_metrics.csv.gz").read_bytes()).decode()
        self.comments = [line for line in text.splitlines() if line.startswith("#")]
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        self.samples: dict[int, list[dict[str, float]]] = defaultdict(list)
        for row in csv.DictReader(lines):
            self.samples[int(row["gpu"])].append({key: float(row[key]) for key in row})
            self.samples[int(row["gpu"])][-1]["time_ns"] = int(row["time_ns"])

    def _pass(self, number: int) -> Iterator[tuple[int, list[Dispatch]]]:
        paths = sorted(self.folder.glob(f"counters/pass_{number}/*/*_counter_collection.csv.gz"))
        for path in paths:
            text = gzip.decompress(path.read_bytes()).decode()
            assert text.startswith(HEADER)
            groups: dict[str, list[Row]] = defaultdict(list)
            for row in csv.DictReader(io.StringIO(text)):
                groups[row["Dispatch_Id"]].append(row)
                assert row["Process_Id"] == path.name.split("_")[0]
            agents = {row["Agent_Id"] for rows in groups.values() for row in rows}
            assert len(agents) == 1
            rank = int(agents.pop().removeprefix("Agent ")) - NODE_OF_RANK_0
            yield rank, [Dispatch(rows) for rows in groups.values()]

    def spans(self, rank: int, phase: str, operation: str) -> list[tuple[int, int]]:
        """The complete iterations' activities of an operation, from the trace's labels."""
        labels = self.labels[rank]
        keys = ("phase", "operation", "iteration", "start_ns", "dur_ns")
        rows = zip(*(labels[key] for key in keys), strict=True)
        return [
            (start, start + duration)
            for *place, iteration, start, duration in rows
            if place == [phase, operation] and iteration > 10
        ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("counted"))


def facts(run: Run, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = run.truth["counter_run"]["per_gpu"][str(rank)]
    return found


def occurrences(dispatches: list[Dispatch]) -> dict[tuple[str, int], Dispatch]:
    seen: Counter[str] = Counter()
    keyed = {}
    for dispatch in dispatches:
        keyed[dispatch.name, seen[dispatch.name]] = dispatch
        seen[dispatch.name] += 1
    return keyed


def test_each_pass_has_its_counters_for_every_dispatch(run: Run) -> None:
    assert run.truth["counter_run"]["gpus"] == [0, 1]
    for number, gpus in run.passes.items():
        assert list(gpus) == [0, 1]
        for rank, dispatches in gpus.items():
            assert len(dispatches) == facts(run, rank)["dispatches_of_pass"][number - 1]
            assert all(dispatch.counters.keys() == PASSES[number] for dispatch in dispatches)
    processes = [process for rank in (0, 1) for process in facts(run, rank)["process_of_pass"]]
    assert len(set(processes)) == 6


def test_passes_join_on_kernel_and_occurrence(run: Run) -> None:
    for rank in (0, 1):
        one, two, three = (occurrences(run.passes[number][rank]) for number in PASSES)
        assert list(one) == list(two)
        joined = list(three)
        assert joined == list(one)[: len(joined)]
        assert len(one) - len(joined) == facts(run, rank)["cut_from_last_pass"] > 0
        for key in joined:
            assert one[key].grid == two[key].grid == three[key].grid
            assert one[key].start_ns != two[key].start_ns != three[key].start_ns


def test_names_have_suffixes_in_two_passes(run: Run) -> None:
    for number, expected in ((1, {" [clone .kd]", ".kd"}), (2, {""}), (3, {" [clone .kd]", ".kd"})):
        assert {dispatch.suffix for dispatch in run.passes[number][0]} == expected


def test_the_counter_run_is_serialised_without_collectives(run: Run) -> None:
    for gpus in run.passes.values():
        for dispatches in gpus.values():
            assert all(one.end_ns < two.start_ns for one, two in pairwise(dispatches))
            assert not any("nccl" in dispatch.name for dispatch in dispatches)


def test_dispatches_are_two_iterations_less_the_missing_and_the_extra(run: Run) -> None:
    for rank in (0, 1):
        labels = run.labels[rank]
        rows = zip(labels["name"], labels["iteration"], strict=True)
        kernels = Counter(
            name for name, i in rows if i == 11 and not name.startswith(("nccl", "Mem"))
        )
        expected = facts(run, rank)
        counts = expected["trace_kernels"]["11"]
        assert counts["compute_kernels"] == kernels.total()
        never = len(expected["missing_in_every_iteration"])
        assert counts["measured_once_or_more"] == kernels.total() - never
        assert expected["missing_of_iteration"] == [13, 13]
        found = Counter(dispatch.name for dispatch in run.passes[1][rank])
        assert found.total() == 2 * kernels.total() - 26 + sum(expected["extra"].values())
        assert found["__amd_rocclr_fillBufferAligned"] == expected["extra"]["memset_kernels"] == 4
        # Of the eight matrix products that the library tries, two are the ones it then uses.
        unknown = sum(count for name, count in found.items() if name not in kernels)
        assert unknown == expected["extra"]["autotuning"] * 6 // 8 + 4


def test_cycles_over_durations_are_the_serialised_clock(run: Run) -> None:
    for rank, dispatches in run.passes[1].items():
        cycles = sum(dispatch.cycles for dispatch in dispatches)
        mhz = cycles * 1e3 / sum(dispatch.duration_ns for dispatch in dispatches)
        assert mhz == pytest.approx(facts(run, rank)["mean_mhz_of_pass"][0], rel=1e-6)
        base = run.truth["slow_gpu"]["mhz"][str(rank)] * run.truth["counter_run"]["clock_factor"]
        assert mhz == pytest.approx(base, rel=0.01)
        for dispatch in dispatches:
            one = dispatch.cycles * 1e3 / dispatch.duration_ns
            assert one == pytest.approx(base, rel=0.02)


def test_counters_agree_with_each_other(run: Run) -> None:
    one, two, three = (occurrences(run.passes[number][0]) for number in PASSES)
    for key, dispatch in one.items():
        assert dispatch.counters["SQ_WAVES"] == dispatch.grid // 64 or dispatch.workgroup < 64
        assert dispatch.counters["SQ_BUSY_CYCLES"] <= 32 * dispatch.cycles
        matrix = two[key].counters
        busy = matrix["SQ_VALU_MFMA_BUSY_CYCLES"]
        assert busy == matrix["SQ_INSTS_VALU_MFMA_MOPS_BF16"]
        assert busy < 0.9 * SIMDS * dispatch.cycles
        assert (busy > 0) == ("Cijk" in key[0] or "FmhaFwd" in key[0] or "DQDKDV" in key[0])
    for dispatch in three.values():
        memory = dispatch.counters
        small = memory["TCC_BUBBLE_sum"] + memory["TCC_EA0_RDREQ_32B_sum"]
        assert small <= memory["TCC_EA0_RDREQ_sum"]
        assert memory["TCC_EA0_WRREQ_64B_sum"] <= memory["TCC_EA0_WRREQ_sum"]
        middle = memory["TCC_EA0_RDREQ_sum"] - small
        read = 128 * memory["TCC_BUBBLE_sum"] + 64 * middle + 32 * memory["TCC_EA0_RDREQ_32B_sum"]
        assert read / dispatch.duration_ns < 5_325


def test_agents_are_the_trace_s_devices(run: Run) -> None:
    (path,) = run.folder.glob("counters/*/*/*_agent_info.csv")
    agents = {int(row["Node_Id"]): row for row in csv.DictReader(path.read_text().splitlines())}
    assert [agents[node]["Agent_Type"] for node in range(10)] == ["CPU"] * 2 + ["GPU"] * 8
    for rank in run.ranks:
        (device,) = {event["args"]["device"] for event in run.activities(rank)}
        assert agents[device]["Name"] == "gfx942"
        assert agents[device]["Cu_Count"] == "304" and agents[device]["Num_Xcc"] == "8"


def test_breakdown_adds_up_to_the_durations_of_the_trace(run: Run) -> None:
    for rank, phases in run.truth["breakdown"]["per_gpu"].items():
        assert phases["forward"].keys() | phases["backward"].keys() >= {"attn_fa", "mlp_dp", "lp"}
        for phase, operations in phases.items():
            for operation, row in operations.items():
                spans = run.spans(int(rank), phase, operation)
                assert len(spans) == row["kernels"]
                assert sum(end - start for start, end in spans) == row["durations_ns"]
                assert sum(row[term] for term in TERMS) == row["durations_ns"]
                assert row["durations_ns"] + row["launch_gaps_ns"] == row["elapsed_ns"]
                theoretical = row["flops"] / PEAK_FLOPS_PER_NS
                assert row["theoretical_ns"] == round(theoretical)
                executed = theoretical * (1 + row["extra_instructions"])
                undisturbed = executed / row["mfma_util"]
                at_peak_clock = undisturbed * row["contention"]
                for upper, level in ((2, executed), (3, undisturbed), (4, at_peak_clock)):
                    found = sum(row[term] for term in TERMS[:upper])
                    assert found == pytest.approx(level, abs=1)
                share = 1 - row["mean_mhz"] / 2100
                assert row["frequency_ns"] == pytest.approx(share * row["durations_ns"], abs=2)
                assert row["contention"] > 1 - 1e-4


def test_counters_give_the_undisturbed_time_of_attention(run: Run) -> None:
    for rank, dispatches in run.passes[1].items():
        row = run.truth["breakdown"]["per_gpu"][str(rank)]["forward"]["attn_fa"]
        cycles = [each.cycles for each in dispatches if "FmhaFwdKernel" in each.name]
        undisturbed_ns = sum(cycles) / len(cycles) * row["kernels"] / 2.1
        assert undisturbed_ns == pytest.approx(sum(row[term] for term in TERMS[:3]), rel=0.01)


def test_samples_cover_the_run_on_the_monotonic_clock(run: Run) -> None:
    assert run.comments[0] == "# clock: monotonic"
    assert "generated" in run.comments[1]
    offset = run.truth["clock_offsets"]["telemetry/gpu_metrics.csv.gz"]["offset_ns"]
    for rank, samples in run.samples.items():
        times = [int(sample["time_ns"]) for sample in samples]
        steps = [after - before for before, after in pairwise(times)]
        assert min(steps) > 1_000_000 and max(steps) < 8_000_000
        assert sorted(steps)[len(steps) // 2] < 1_500_000
        labels = run.labels[rank]
        ends = [s + d for s, d in zip(labels["start_ns"], labels["dur_ns"], strict=True)]
        assert times[0] + offset == pytest.approx(
            run.truth["time_origin_ns"] - 100_000_000, abs=1e6
        )
        assert 95e6 < times[-1] + offset - max(ends) < 110e6
        idle = [s for s in samples if s["time_ns"] + offset > max(ends) + 2_000_000]
        assert all(sample["gfx_util_pct"] == 0 for sample in idle)


def test_energy_is_the_power_over_time(run: Run) -> None:
    for samples in run.samples.values():
        energy = samples[-1]["energy_j"] - samples[0]["energy_j"]
        spans = (
            (after["time_ns"] - before["time_ns"], after) for before, after in pairwise(samples)
        )
        assert energy == pytest.approx(
            sum(span * after["power_w"] for span, after in spans) / 1e9, rel=0.005
        )
        assert all(one["energy_j"] < two["energy_j"] for one, two in pairwise(samples))


def test_telemetry_gives_each_operation_s_clock(run: Run) -> None:
    offset = run.truth["clock_offsets"]["telemetry/gpu_metrics.csv.gz"]["offset_ns"]
    for rank, samples in run.samples.items():
        pieces = [
            (before["time_ns"] + offset, after["time_ns"] + offset, after["gfx_mhz"])
            for before, after in pairwise(samples)
        ]
        clocks = run.truth["operation_clocks"]["per_gpu"][str(rank)]
        for phase in ("forward", "backward"):
            for operation in ("attn_fa", "mlp_gp", "mlp_dp", "lp"):
                shares = [
                    (min(end, until) - max(start, since), mhz)
                    for start, end in run.spans(rank, phase, operation)
                    for since, until, mhz in pieces
                    if since < end and start < until
                ]
                mean = sum(ns * mhz for ns, mhz in shares) / sum(ns for ns, _ in shares)
                assert mean == pytest.approx(clocks[phase][operation], rel=0.01)


def test_the_hot_gpu_is_slow_throttled_and_hot(run: Run) -> None:
    means = {
        rank: {key: sum(s[key] for s in busy) / len(busy) for key in busy[0]}
        for rank, samples in run.samples.items()
        if (busy := [s for s in samples if s["gfx_util_pct"] == 100])
    }
    assert means[1]["gfx_mhz"] < 0.96 * means[0]["gfx_mhz"]
    assert means[1]["hotspot_c"] > means[0]["hotspot_c"] + 8
    assert means[1]["throttle_pct"] > 50 > means[0]["throttle_pct"]


def test_the_coarse_log_is_stamped_with_whole_seconds(run: Run) -> None:
    text = (run.folder / "telemetry/amd_smi_monitor.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["gpu"] for row in rows} == {"0", "1"}
    assert len(rows) < 30
    origin_s = run.truth["time_origin_ns"] / 1e9
    stamps = [int(row["timestamp"]) for row in rows]
    assert stamps == sorted(stamps)
    assert stamps[0] < origin_s - 2 and stamps[-1] > origin_s + 2
    offsets = run.truth["clock_offsets"]
    assert offsets["telemetry/amd_smi_monitor.csv"]["offset_ns"] == -370_000_000


def test_without_counters_or_telemetry(run: Run, tmp_path: Path) -> None:
    options: dict[str, Any] = {"with_counters": False, "with_telemetry": False}
    bare = Files(tmp_path, **options)
    files = read_files(tmp_path)
    assert files.keys() == {"labels.json", "rank0.json.gz", "rank1.json.gz", "truth.json"}
    assert files["rank0.json.gz"] == (run.folder / "rank0.json.gz").read_bytes()
    assert "counter_run" not in bare.truth
    assert bare.truth["clock_offsets"].keys() == {"definition"}
    assert "breakdown" in run.truth and "breakdown" not in bare.truth


def test_one_gpu_is_enough(tmp_path: Path) -> None:
    generator.generate(tmp_path, **(SMALL | {"ranks": 1, "layers": 1}))
    assert len(list(tmp_path.glob("counters/pass_*/*/*_counter_collection.csv.gz"))) == 3
