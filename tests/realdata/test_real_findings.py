"""Findings in real traces: what is known of them is found, and little else."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chopper_core.api import OpenRun
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.views.query import query
from tests.programs.bench.causes import findings_of
from tests.programs.bench.causes_in_files import FILES, STALLS, with_stall
from tests.programs.bench.causes_in_more_files import measure_in_more, measure_late_rank
from tests.support import details
from tests.wording import Wording

Open = Callable[[str], Run]
TRACES = (
    "mi300x_ddp4",
    "v100_dlrm_8rank",
    "mi300x_resnet_act_ckpt_rank0of8.json.gz",
    "mi300x_train_resnet18.json.gz",
    "mi300x_qwen05b.json.gz",
    "mi350x_aorta_rocprofv3",
    "pipeline_pp8",
    "mi300x_sglang_prefill.json.gz",
    "a100_rank0of16.json.gz",
    "traces_2of128",
    "vllm_decode_graph.json.gz",
)
DEBATABLE = 8
"""A real trace has a handful of findings; more would be noise."""


def found(run: Run, scope: str = "") -> dict[str, dict[str, Any]]:
    """The findings by their rule, the first of each."""
    frame = query(run, parse(f"R{scope}?view=findings"))
    rows: dict[str, dict[str, Any]] = {}
    for number in range(len(frame)):
        row = frame.row(number)
        rows.setdefault(row["rule"], row | {"said": row["detail"], "at": frame.addresses(number)})
    return rows


def test_rank_3_of_ddp4_is_host_bound_and_the_others_wait_for_it(
    opened: Open, wording: Wording
) -> None:
    run = opened("mi300x_ddp4")
    row = found(run)["straggler"]
    wording(row["said"], "GPU 3", "its host")
    wording(row["said"], "the other three GPUs")
    assert row["confidence"] == "high"
    # What the others have of exposed communication and rank 3 doesn't, in two of three steps.
    exposed = (41.067730 + 37.330342 + 39.780546) / 3 - 3.383902
    # It isn't worth that: the hosts of the others take nearly as long as that of rank 3.
    assert 0 < row["saving_ns"] / 1e6 < exposed / 6
    assert found(run)["host-bound"]["saving_ns"] > row["saving_ns"]


def test_rank_7_of_dlrm_comes_last(opened: Open, wording: Wording) -> None:
    row = found(opened("v100_dlrm_8rank"))["straggler"]
    wording(row["said"], "GPU 7", "its host")
    assert row["confidence"] == "medium"


def test_one_rank_of_eight_shows_its_communication_but_not_who_waits(
    opened: Open, wording: Wording
) -> None:
    run = opened("mi300x_resnet_act_ckpt_rank0of8.json.gz")
    rows = found(run)
    assert "straggler" not in rows
    outside = int(query(run, parse("R:gpu=0/iteration=none")).total["exposed_comm_ns"] or 0)
    assert rows["exposed"]["gpu_time_ns"] == 55_371_257 - outside
    wording(rows["exposed"]["said"], "missing ranks")
    said = [row["said"] for row in rows.values()]
    whole = query(run, parse("R?view=findings"))
    wording.among(details(whole), "7 of 8 ranks")
    assert said


def test_a_training_that_waits_for_its_host(opened: Open, wording: Wording) -> None:
    row = found(opened("mi300x_train_resnet18.json.gz"))["host-bound"]
    wording(row["said"], "host-bound", "95.0 %")
    wording(row["said"], "memory allocator (hipFree)", "604.8 ms")
    assert row["saving_pct"] > 50


def test_inference_that_keeps_its_gpu_busy_is_not_host_bound(opened: Open) -> None:
    assert set(found(opened("mi300x_qwen05b.json.gz"))) == {"moved-data", "products", "missing"}


@pytest.mark.parametrize("name", TRACES)
def test_findings_are_few_and_lead_to_their_evidence(opened: Open, name: str) -> None:
    run = opened(name)
    frame = query(run, parse("R?view=findings"))
    wholes = frame.values["part_of"].missing
    assert wholes is not None and 0 < wholes.sum() <= DEBATABLE
    for number, label in enumerate(frame.labels):
        assert "nan" not in label and "inf" not in label.replace("information", "")
        assert len(query(run, parse(frame.addresses(number)))) > 0
        # An amount is the same in the title and in the sentence.
        detail = str(frame.values["detail"].cell(number))
        assert all(each in detail for each in re.findall(r"[\d.]+ [mµ]?s\b", label)), label
    assert found(run)["missing"]["saving_ns"] is None


def test_waits_in_the_queue_are_a_finding_where_they_are_most_of_the_step(opened: Open) -> None:
    run = opened("a100_rank0of16.json.gz")
    row = found(run)["queue-bound"]
    launch = query(run, parse("R?view=launch&by=phase&base=total"))
    waits = dict(zip(launch.labels, launch.values["idle_queued_ns"].numbers.tolist(), strict=True))
    assert row["cost_ns"] == pytest.approx((waits["forward"] + waits["backward"]) / 5, abs=1)
    # What they wait for isn't in the trace: no saving is claimed.
    assert row["saving_ns"] is None and row["group"] == "not known"


def test_a_wait_whose_reason_the_trace_lacks_claims_no_saving(opened: Open) -> None:
    """The view of launches names the call that blocks, and the replay saves 32 ms in all."""
    run = opened("mi300x_sglang_prefill.json.gz")
    frame = query(run, parse("R?view=findings"))
    rows = [frame.row(row) for row in range(len(frame))]
    (blocked,) = (row for row in rows if row["rule"] == "queue-bound")
    launch = query(run, parse("R?view=launch&by=host&base=total"))
    assert launch.labels[0] in blocked["detail"] and "(hipMemcpyWithStream)" in launch.labels[0]
    assert blocked["cost_ns"] == pytest.approx(493.2e6, rel=1e-3)
    assert blocked["saving_ns"] is None and blocked["group"] == "not known"
    together = OpenRun(run).what_if().values["saving_ns"].at(-1)
    assert together == pytest.approx(32.0e6, rel=0.01)
    assert sum(row["saving_ns"] or 0.0 for row in rows) <= together


def test_the_slow_stage_of_a_public_schedule_comes_first(
    opened: Callable[[str], Run], wording: Wording
) -> None:
    """Stage 3 repaired is worth 402 ms, as Lin et al. published. Its work doesn't vanish: moved to
    the other stages, it saves less, and no finding saves more."""
    run = opened("straggler_whatif/trace-ST.parquet")
    asked = query(run, parse("R?view=whatif&of=stage:3%20compute%20as%20peers"))
    repaired = asked.values["saving_ns"].at(-1)
    assert repaired == pytest.approx(402e6, rel=0.05)
    frame = query(run, parse("R?view=findings"))
    savings = frame.values["saving_ns"]
    wording(details(frame)[0], "stage 3", "too long")
    # Its GPUs are late by that, and no finding of their own.
    assert not any("hold the others back" in label for label in details(frame))
    assert 0.6 * repaired < savings.at(0) < 0.9 * repaired
    assert max(savings.at(row) or 0 for row in range(len(frame))) == savings.at(0)


def test_all_gpus_of_a_long_stage_are_one_finding(opened: Open) -> None:
    """Each is late in other steps of the larger job, some now and then, some mostly."""
    frame = query(opened("straggler_whatif/trace-SE.parquet"), parse("R?view=findings"))
    rules = [frame.values["rule"].cell(row) for row in range(len(frame))]
    assert rules[0] == "long-stage" and "straggler" not in rules


def test_a_step_is_as_long_for_what_is_left_out_as_for_a_finding(
    opened: Open, wording: Wording
) -> None:
    """GPU 0 takes over twice the median in the first iteration, the GPUs together 1.4 times."""
    frame = query(opened("pipeline_pp8"), parse("R?view=findings"))
    assert not any("left out" in note for note in frame.notes)
    wording(details(frame)[0], "stage 7", "too long")
    assert frame.row(0)["remedy"]
    assert any("step 1 takes 43.2 % longer" in label for label in details(frame))


def test_a_stall_of_all_hosts_is_named_and_sized_beside_what_the_run_loses(
    realdata: Path, tmp_path: Path
) -> None:
    """Four hosts that are late anyway wait for data, too, for 8 ms of each of two steps."""
    for path in sorted((realdata / FILES).glob("rank*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        stall, steps = STALLS["data loading"], frozenset((9, 10, 11))
        events = with_stall(trace["traceEvents"], stall, steps, 8_000_000)
        written = json.dumps({**trace, "traceEvents": events})
        (tmp_path / path.name.removesuffix(".gz")).write_text(written)
    found = findings_of(open_run(str(tmp_path), jobs=1))
    (data,) = (each for each in found if each.title.startswith("Data loading"))
    assert data.saving_ns == pytest.approx(8e6, rel=0.1)
    assert data.saving_ns <= (found[0].saving_ns or 0.0)


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["a slow operation in a layer of qwen", "a slow layer of sglang"])
def test_a_slow_layer_of_a_real_file_is_named_and_sized(realdata: Path, what: str) -> None:
    found = measure_in_more(realdata, what)
    assert found.named is found.found[0] and found.ratio == pytest.approx(1.0, rel=0.25)


@pytest.mark.sweep
def test_data_that_the_last_rank_waits_for_is_named_next_to_its_slow_host(realdata: Path) -> None:
    found = measure_late_rank(realdata, "data late on the last rank of ddp4")
    assert found.named is not None and found.ratio == pytest.approx(1.0, rel=0.25)
