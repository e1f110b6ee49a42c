"""The generator of the demonstration traces: its promises about files and truth."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter, defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.align.generated import DEMO, load_generator

RUNS = ("fsdp2", "fsdp1")
ACTIVITIES = ("kernel", "gpu_memcpy", "gpu_memset")
SMALL: dict[str, int] = {"ranks": 2, "iterations": 1, "layers": 3}


generator = load_generator()


class Files:
    """A generated folder, parsed; times are exact ns."""

    def __init__(self, folder: Path, **options: Any) -> None:
        labels = folder / "labels.json"
        generator.generate(folder, labels=labels, **(SMALL | options))
        self.truth = json.loads((folder / "truth.json").read_text())
        self.labels = {int(k): v for k, v in json.loads(labels.read_text()).items()}
        self.ranks = {rank: read_trace(folder / f"rank{rank}.json.gz") for rank in self.labels}

    def activities(self, rank: int) -> list[dict[str, Any]]:
        return [e for e in self.ranks[rank]["traceEvents"] if e.get("cat") in ACTIVITIES]


def read_trace(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    for event in trace["traceEvents"]:
        for key in ("ts", "dur"):
            if key in event:
                assert event[key].as_tuple().exponent == -3
                event[key] = int(event[key] * 1000)
    return trace


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("small"))


def names(trace: dict[str, Any], category: str) -> Counter[str]:
    return Counter(e["name"] for e in trace["traceEvents"] if e.get("cat") == category)


def read_files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_two_runs_are_byte_identical(tmp_path: Path) -> None:
    contents = []
    for run in ("a", "b"):
        generator.generate(tmp_path / run, ranks=2, iterations=1, layers=2)
        contents.append(read_files(tmp_path / run))
    assert contents[0] == contents[1]
    assert {"rank0.json.gz", "rank1.json.gz", "truth.json"} < contents[0].keys()
    assert len(contents[0]) == 3 + 2 * 3 + 1 + 3


def test_seed_changes_the_times(tmp_path: Path) -> None:
    for seed in (1, 2):
        generator.generate(tmp_path / str(seed), ranks=1, iterations=1, layers=1, seed=seed)
    one, two = (read_trace(tmp_path / f"{seed}" / "rank0.json.gz") for seed in (1, 2))
    assert names(one, "kernel") == names(two, "kernel")
    assert one["traceEvents"] != two["traceEvents"]


@pytest.mark.sweep
@pytest.mark.parametrize("name", RUNS)
def test_committed_files_are_what_the_generator_writes(name: str) -> None:
    folder = DEMO / name
    truth = json.loads((folder / "truth.json").read_text())
    digests = truth.pop("sha256_of_text")
    digests_of_tables = truth.pop("sha256_of_tables")
    committed = read_files(folder)
    assert committed.keys() == {"truth.json", *digests, *digests_of_tables}
    for file, digest in (digests | digests_of_tables).items():
        text = gzip.decompress(committed[file]) if file.endswith(".gz") else committed[file]
        assert hashlib.sha256(text).hexdigest() == digest, file
    run = generator.simulate(generator.RUNS[name])
    assert json.loads(json.dumps(run.truth())) == truth
    text = generator.render(run.config, run.traces[5]).encode()
    assert hashlib.sha256(text).hexdigest() == digests["rank5.json.gz"]
    tables = {path: hashlib.sha256(table.encode()).hexdigest() for path, table in run.tables()}
    assert tables == digests_of_tables


def test_committed_size() -> None:
    files = read_files(DEMO).items()
    caches = ("__pycache__", "_cache/")
    sizes = {name: len(data) for name, data in files if not any(c in name for c in caches)}
    assert sum(sizes.values()) <= 13_500_000
    tables = [name for name in sizes if {"counters", "telemetry"} & set(name.split("/"))]
    assert sum(sizes[name] for name in tables) <= 2_000_000


def test_streams_run_one_activity_at_a_time(small: Files) -> None:
    for rank in small.ranks:
        streams = defaultdict(list)
        for event in small.activities(rank):
            assert event["dur"] > 0
            assert event["pid"] == event["args"]["device"] == rank + 2
            assert event["tid"] == event["args"]["stream"]
            streams[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        assert len(streams) >= 3
        for spans in streams.values():
            spans.sort()
            pairs = pairwise(spans)
            assert all(one[1] <= two[0] for one, two in pairs)


def test_nothing_starts_before_its_launch(small: Files) -> None:
    for rank, trace in small.ranks.items():
        calls = {
            e["args"]["correlation"]: e
            for e in trace["traceEvents"]
            if e.get("cat") == "cuda_runtime"
        }
        rows = zip(small.activities(rank), small.labels[rank]["linked"], strict=True)
        for event, linked in rows:
            call = calls.get(event["args"]["correlation"])
            assert linked == (call is not None) == ("External id" in event["args"])
            if call is not None:
                assert call["ts"] < event["ts"]
                assert call["args"]["External id"] == event["args"]["External id"]


def test_host_ranges_nest(small: Files) -> None:
    for trace in small.ranks.values():
        threads = defaultdict(list)
        for event in trace["traceEvents"]:
            if event.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime"):
                threads[event["tid"]].append((event["ts"], -event["dur"]))
        assert len(threads) == 2
        for ranges in threads.values():
            open_ends: list[int] = []
            for start, minus in sorted(ranges):
                while open_ends and open_ends[-1] <= start:
                    open_ends.pop()
                assert not open_ends or start - minus <= open_ends[-1]
                open_ends.append(start - minus)


@pytest.mark.sweep
def test_without_annotations(small: Files, tmp_path: Path) -> None:
    bare = Files(tmp_path, annotations=False)
    gone = {"Iteration11", "Layer0", "attn_fa", "mlp_dp", "dl", "l", "opt_step"}
    for rank, trace in bare.ranks.items():
        annotations = names(trace, "user_annotation")
        assert gone <= names(small.ranks[rank], "user_annotation").keys()
        assert not gone & annotations.keys()
        assert {"ProfilerStep#11", "Optimizer.step#AdamW.step"} <= annotations.keys()
        assert annotations["FSDP::pre_forward (layers.1)"] == 1
        assert bare.labels[rank]["operation"] == small.labels[rank]["operation"]


@pytest.mark.sweep
def test_recompute(small: Files, tmp_path: Path) -> None:
    files = Files(tmp_path, recompute=True)
    for rank, trace in files.ranks.items():
        labels = files.labels[rank]
        again = [
            (phase, layer, operation)
            for phase, layer, operation, recompute in zip(
                labels["phase"],
                labels["layer"],
                labels["operation"],
                labels["recompute"],
                strict=True,
            )
            if recompute
        ]
        assert {phase for phase, _, _ in again} == {"backward"}
        assert {layer for _, layer, _ in again} == {0, 1, 2}
        assert {"attn_fa", "mlp_gu"} <= {operation for _, _, operation in again}
        assert "mlp_dp" not in {operation for _, _, operation in again}
        added = len(labels["name"]) - len(small.labels[rank]["name"])
        # The kernel that runs when the profiler starts need not be of the same sort.
        assert abs(added - len(again)) <= 2 * 20
        assert names(trace, "user_annotation")["attn_fa"] > 3


def test_without_memory_determinism_clocks_are_lower_and_everything_spreads() -> None:
    steady, unsteady = (
        json.loads((DEMO / name / "truth.json").read_text())["stability"] for name in RUNS
    )
    for rank in steady["per_gpu"]:
        one, two = (run["per_gpu"][rank] for run in (steady, unsteady))
        for iteration in ("11", "12"):
            clocks = one["gfx_mhz"][iteration], two["gfx_mhz"][iteration]
            assert clocks[1]["mean"] / clocks[0]["mean"] == pytest.approx(0.955, abs=0.03)
            assert one["mem_mhz"][iteration]["deviation"] == 0
            assert two["mem_mhz"][iteration]["deviation"] > 50
        assert two["kernel_spread_pct"] > 2 * one["kernel_spread_pct"]


def test_a_clean_run_has_nothing_planted(tmp_path: Path) -> None:
    for strategy in ("FSDP1", "FSDP2"):
        run = Files(tmp_path / strategy, strategy=strategy, clean=True, with_counters=False)
        planted = {
            "slow_gpu",
            "overlap_slowed_operation",
            "host_bound_stretch",
            "slow_layer",
            "allocator_retries",
        }
        assert not planted & run.truth.keys()
        clocks = [
            each["gfx_mhz"]["11"]["mean"] for each in run.truth["stability"]["per_gpu"].values()
        ]
        assert max(clocks) < 1.02 * min(clocks)


def test_without_counters_or_telemetry(tmp_path: Path) -> None:
    generator.generate(tmp_path / "whole", **SMALL)
    bare = Files(tmp_path / "bare", with_counters=False, with_telemetry=False)
    files = read_files(tmp_path / "bare")
    assert files.keys() == {"labels.json", "rank0.json.gz", "rank1.json.gz", "truth.json"}
    assert files["rank0.json.gz"] == (tmp_path / "whole" / "rank0.json.gz").read_bytes()
    assert not {"counter_run", "breakdown"} & bare.truth.keys()
    assert bare.truth["clock_offsets"].keys() == {"definition"}


def test_one_gpu_is_enough(tmp_path: Path) -> None:
    generator.generate(tmp_path, **(SMALL | {"ranks": 1, "layers": 1}))
    assert len(list(tmp_path.glob("counters/pass_*/*/*_counter_collection.csv.gz"))) == 3
