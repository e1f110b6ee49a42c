"""Device sampling: increments per instance, wraps, resets, and the kernels beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chopper_core.sources.counters.device_samples import (
    read_kernels,
    read_sampled,
    read_samples,
)
from chopper_core.util.errors import DataError
from tests.wording import Wording


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_differences_are_summed_over_instances(tmp_path: Path) -> None:
    lines = ["timestamp_ns,counter_name,counter_value,agent_id,DIMENSION_XCC"]
    for time_ns, first, second in ((10, 5, 100), (30, 8, 150), (20, 6, 120)):
        lines.append(f"{time_ns},SQ_WAVES,{first},4,0")
        lines.append(f"{time_ns},SQ_WAVES,{second},4,1")
        lines.append(f"{time_ns},SQ_WAVES,{first},5,0")
    (of_4, of_5), _ = read_samples(write(tmp_path / "counter_samples_rank3.csv", lines))
    assert (of_4.name, of_4.gpu, of_5.gpu) == ("SQ_WAVES", 4, 5)
    assert of_4.begin_ns.tolist() == [10, 20]
    assert of_4.time_ns.tolist() == [20, 30] and of_4.counted.tolist() == [21, 32]
    assert of_5.counted.tolist() == [1, 2] and len(of_5.time_ns) == 2


def test_wraps_and_resets(tmp_path: Path, wording: Wording) -> None:
    lines = ["timestamp_ns,counter_name,counter_value"]
    values = (2**32 - 10, 5, 2**31, 7, 9)
    lines += [f"{10 * index},C,{value}" for index, value in enumerate(values)]
    lines += ["junk", "1,C,none", ""]
    (series,), losses = read_samples(write(tmp_path / "counter_samples.csv", lines))
    assert (series.name, series.gpu) == ("C", -1)
    assert np.array_equal(series.counted, [15, 2**31 - 5, np.nan, 2], equal_nan=True), (
        "the increment over a reset is unknown"
    )
    assert losses.unreadable_events == 2
    wording.among(losses.notes, "1 time")


def test_large_values_stay_exact(tmp_path: Path) -> None:
    lines = ["timestamp_ns,counter_name,counter_value", f"1,C,{2**60}", f"2,C,{2**60 + 1}"]
    (series,), _ = read_samples(write(tmp_path / "counter_samples_rank0.csv", lines))
    assert series.counted.tolist() == [1]


def test_kernels(tmp_path: Path) -> None:
    lines = [
        "kernel_name,start_ns,end_ns,duration_ns,agent_id,queue_id,correlation_id",
        '"add(int, int) [clone .kd]",20,30,10,4,1,7',
        '"gemm.kd",5,9,4,4,1,6',
        '"gemm.kd",9,5,4,4,1,6',
    ]
    run, agents = read_kernels(write(tmp_path / "kernel_traces_rank1.csv", lines))
    rows = run.dispatches
    assert [run.names[code] for code in rows.name] == ["gemm", "add(int, int)"]
    assert rows.start_ns.tolist() == [5, 20] and rows.end_ns.tolist() == [9, 30]
    assert agents == [4] and run.agents[0].type_index == 1
    assert len(rows) == 2 and run.losses.bad_times == 1


def test_a_file_without_samples_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ["timestamp_ns,counter_name,counter_value"])
    with pytest.raises(DataError, match=r"a\.csv has no counter samples"):
        read_samples(path)


@pytest.mark.parametrize(
    ("end_ns", "sentence"),
    [
        (160, "spread evenly between samples."),
        (101, "; 1 of 2 kernels are shorter than that and share counts with their neighbours."),
    ],
)
def test_kernels_shorter_than_the_period_are_noted_only_if_there_are_any(
    tmp_path: Path, end_ns: int, sentence: str
) -> None:
    lines = ["timestamp_ns,counter_name,counter_value,agent_id"]
    lines += [f"{10 * step},C,{step},4" for step in range(30)]
    kernels = ["kernel_name,start_ns,end_ns,duration_ns,agent_id,queue_id,correlation_id"]
    kernels += ["gemm,20,90,70,4,1,6", f"add,100,{end_ns},{end_ns - 100},4,1,7"]
    run = read_sampled(
        write(tmp_path / "counter_samples_rank0.csv", lines),
        write(tmp_path / "kernel_traces_rank0.csv", kernels),
    )
    (note,) = run.join_notes
    assert note.endswith(sentence) and " 0 " not in note.partition(";")[2]
    assert not run.losses.notes
