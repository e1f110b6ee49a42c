"""No real trace has a label that contradicts a kernel's or a range's own name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chopper_core.model.run import Run
from tests.align.traces import AUTOGRAD, EVALUATE, TinyTrace, align
from tests.oracles.accounting import read_json
from tests.oracles.contradictions import of_kernels, of_ranges
from tests.wording import Wording

Open = Callable[[str], Run]

RUNS = (
    "mi300x_ddp4",
    "mi300x_ddp4_merged.json.gz",
    "mi300x_resnet_act_ckpt_rank0of8.json.gz",
    "mi300x_train_resnet18.json.gz",
    "mi300x_qwen05b.json.gz",
    "mi300x_sglang_prefill.json.gz",
    "vllm_decode_graph.json.gz",
    "v100_dlrm_8rank",
    "a100_rank0of16.json.gz",
    "traces_2of128",
    "one_kernel.json.gz",
    "mi350x_aorta_rocprofv3",
    "rocprofv3_csv",
)
RANGES = (
    "mi300x_ddp4/rank0.json.gz",
    "mi300x_resnet_act_ckpt_rank0of8.json.gz",
    "a100_rank0of16.json.gz",
    "traces_2of128/sampled_rank-0.json.gz",
)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", RUNS)
def test_no_label_contradicts_a_kernel_s_name(opened: Open, name: str) -> None:
    assert list(of_kernels(opened(name))) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("name", RANGES)
def test_no_phase_contradicts_the_range_around_a_launch(
    realdata: Path, opened: Open, name: str
) -> None:
    run = opened(name.split("/")[0] if "/" in name else name)
    document = read_json(realdata / name)
    events = document if isinstance(document, list) else document["traceEvents"]
    assert list(of_ranges(run, run.gpus[0].index, events)) == []


def test_the_check_finds_contradictions(tmp_path: Path, wording: Wording) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 1000)
    trace.note("forward pass", 10, 90)
    trace.op("aten::mm", 20, 40)
    trace.launch("softmax_warp_backward", 25)
    trace.op(EVALUATE + "MmBackward0", 100, 140, AUTOGRAD)
    trace.launch("void FusedAdam()", 110, thread=AUTOGRAD)
    found = align(trace, tmp_path)
    reasons = list(of_kernels(found.run))
    wording.among(reasons, "backward kernel in forward")
    wording.among(reasons, "optimizer's kernel in backward")
