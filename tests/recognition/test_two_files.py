"""Two files of one thing: which is read, and what is said of the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.overrides import overrides_of
from chopper_core.render.info import info_text
from chopper_core.sources.counters.files import find_counters
from chopper_core.sources.ranks import find_traces
from chopper_core.util.errors import DataError
from tests.recognition.outcomes import put
from tests.recognition.test_near_misses import (
    COUNTS,
    KERNEL,
    METRIC,
    SAMPLES,
    TRACE,
    V1,
    S,
    events,
    lines,
)
from tests.sources.counters.counter_writers import minimal_rocpd, read_counters
from tests.wording import Wording

RANK = {"rank": 1, "world_size": 2}
READING = lines(METRIC, f"{S},2,150,2100,71", f"{S + 1},2,150,2100,71")


@pytest.mark.parametrize(
    ("files", "contradiction"),
    [
        ({"gpu_power_3.csv": SAMPLES, "power_3.csv": SAMPLES}, "power_w of GPU 3"),
        ({"a/gpu_power_3.csv": SAMPLES, "b/gpu_power_3.csv": SAMPLES}, "power_w of GPU 3"),
        ({"a.csv": READING, "b.csv": READING}, "of GPU 2 at the same time"),
        ({"gpu_power_3.csv": SAMPLES, "gpu_power_4.csv": SAMPLES}, ""),
        ({"gpu_power_3.csv": SAMPLES, "mem_power_3.csv": SAMPLES}, ""),
        ({"a.csv": READING, "b.csv": READING.replace(",2,", ",3,")}, ""),
        ({"a.csv": READING, "gpu_power_2.csv": SAMPLES}, ""),
        ({"a.csv": READING, "b.csv": READING.replace(str(S), "17100000").replace("1, ", "")}, ""),
    ],
)
def test_telemetry(tmp_path: Path, files: dict[str, str], contradiction: str) -> None:
    for name, content in files.items():
        put(tmp_path, name, content)
    report = info_text(open_run(str(tmp_path), jobs=1))
    assert ("files that could not be used" in report) == bool(contradiction)
    assert contradiction in report


def test_traces_that_claim_one_rank(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        put(tmp_path, name, events(KERNEL, distributedInfo=RANK))
    with pytest.raises(DataError, match=r"a.json and .*b.json both claim rank 1"):
        open_run(str(tmp_path), jobs=1)


def test_a_trace_and_its_compressed_copy(tmp_path: Path, wording: Wording) -> None:
    for name in ("rank0.json", "rank0.json.gz"):
        put(tmp_path, name, events(KERNEL))
    found = find_traces([tmp_path])
    assert [trace.path.name for trace in found.traces] == ["rank0.json"]
    wording(found.skipped[0].reason, "rank0.json")


def test_a_process_in_two_formats(tmp_path: Path, wording: Wording) -> None:
    minimal_rocpd(tmp_path / "1_results.db", 1)
    put(tmp_path, "1_counter_collection.csv", lines(COUNTS, "1,Agent 4,k,SQ_WAVES,9,5,6"))
    found = find_counters([tmp_path])
    assert [file.format for file in found.files] == ["rocpd"]
    wording(found.skipped[0].reason, "1_results.db")


def test_kernel_traces_of_two_programs(tmp_path: Path) -> None:
    for number in (1, 2):
        row = f"KERNEL_DISPATCH,Agent 4,1,k{number},{number}000,{number}500"
        put(tmp_path, f"{number}_kernel_trace.csv", lines(TRACE, row))
    (run,) = read_counters([tmp_path])
    assert len(run.dispatches) == 2 and run.passes == 1


def test_every_file_of_a_directory_is_read_or_named(tmp_path: Path, wording: Wording) -> None:
    put(tmp_path, "rank0.json", events(KERNEL, KERNEL | {"ts": 9}))
    others = {
        "config.json": json.dumps({"layers": 80}),
        "train.log": "step 1\nstep 2\n",
        "notes.md": "# run\n",
        "gpu_current_3.csv": SAMPLES,
        "power_3.csv": SAMPLES,
        "1_kernel_stats.csv": lines("Name,Calls,TotalDurationNs", "k,1,2"),
        "traces.et": "x",
    }
    for name, content in others.items():
        put(tmp_path, name, content)
    run = open_run(str(tmp_path), jobs=1)
    named = {Path(path).name: reason for path, reason in (*run.skipped, *run.failed)}
    used = {Path(source.path).name for source in (*run.sources, *run.telemetry)}
    assert used == {"rank0.json", "power_3.csv"} and named.keys() == others.keys() - used
    assert all(reason for reason in named.values())
    wording(named["gpu_current_3.csv"], "'gpu_current'")
    assert "Chakra" in named["traces.et"] and "totals" in named["1_kernel_stats.csv"]


def test_a_directory_of_telemetry_names_what_it_leaves_out(
    tmp_path: Path, wording: Wording
) -> None:
    put(tmp_path, "power_3.csv", SAMPLES)
    put(tmp_path, "gpu_current_3.csv", SAMPLES)
    put(tmp_path, "train.log", "step 1\n")
    report = info_text(open_run(str(tmp_path), jobs=1))
    wording.among(report, "gpu_current_3.csv: ", "no headings", "'gpu_current'")
    wording.among(report, "train.log: ")
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.skipped) == 2 and len(run.telemetry) == 1


def test_a_directory_without_anything_to_read_says_what_is_there(tmp_path: Path) -> None:
    put(tmp_path, "rank0.html", "<html>")
    with pytest.raises(DataError, match=r"among 1 file; .* rank0.html is an HTML page"):
        open_run(str(tmp_path), jobs=1)


def test_a_chrome_trace_of_another_tool_does_not_hide_the_counters(
    tmp_path: Path, wording: Wording
) -> None:
    put(tmp_path, "results.json", events(V1))
    header = "Index,KernelName,gpu-id,BeginNs,EndNs,SQ_WAVES"
    put(tmp_path, "results.csv", lines(header, "0,k,0,5,6,9"))
    run = open_run(str(tmp_path), jobs=1)
    assert run.sources[0].facts["format"] == "rocprof v1 CSV"
    ((path, reason),) = run.failed
    assert path.endswith("results.json")
    wording(reason, "rocprof v1")
    with pytest.raises(DataError, match="Chrome trace of rocprof v1"):
        open_run(str(tmp_path / "results.json"), jobs=1)


def test_telemetry_of_an_unnamed_gpu_is_no_guess_among_several(
    tmp_path: Path, wording: Wording
) -> None:
    for rank in (0, 1):
        put(tmp_path, f"rank{rank}.json", events(KERNEL, KERNEL | {"ts": 9}))
    rows = [f"2025/07/27 00:22:{second:02}.5, 7 W" for second in range(4)]
    put(tmp_path, "smi.csv", lines("timestamp, power.draw [W]", *rows))
    (identity,) = open_run(str(tmp_path), jobs=1).identities
    assert identity.gpu is None
    wording(identity.by, "--gpu FILE:unnamed=GPU")
    named = open_run(str(tmp_path), jobs=1, overrides=overrides_of((), [("smi", "unnamed", 1)]))
    assert named.identities[0].gpu == 1
