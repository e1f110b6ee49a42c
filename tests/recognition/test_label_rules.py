"""Each label rule on a trace where it applies, and on one like it where it must not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from chopper_core.align.phases import kernel_phase, range_phase
from chopper_core.align.steps import batch_of
from chopper_core.model.address import parse
from chopper_core.model.table import Category, Phase, Rule
from chopper_core.views.query import query
from tests.align.traces import (
    ADAM,
    ADD,
    AUTOGRAD,
    EVALUATE,
    FLASH,
    GEMM,
    MAIN,
    RCCL,
    TinyTrace,
    align,
)

Build = Callable[[TinyTrace], None]

SOFTMAX = "void softmax_warp_forward<float>()"
SOFTMAX_BACKWARD = "void softmax_warp_backward<float>()"
WRW = "igemm_wrw_gtcx3_nhwc_fp16_bx0_ex0_bt256x256x32"
DGRAD = "sm80_xmma_dgrad_implicit_gemm_bf16_nhwc"


def launched(*kernels: str, step: str = "ProfilerStep#1", recorded: bool = True) -> Build:
    """Kernels launched one after the other on the main thread, in operators or without."""

    def build(trace: TinyTrace) -> None:
        if step:
            trace.note(step, 0, 1000)
        for place, name in enumerate(kernels):
            at = 20 + 20 * place
            if recorded:
                trace.op("aten::something", at, at + 10)
            trace.launch(name, at + 2)

    return build


def within(name: str, *kernels: str, category: str = "user_annotation") -> Build:
    """The same inside a range of a name."""

    def build(trace: TinyTrace) -> None:
        trace.host(category, name, 10, 900)
        launched(*kernels)(trace)

    return build


def with_autograd(trace: TinyTrace) -> None:
    """Forward, backward on another thread, then one more kernel."""
    launched(GEMM, ADD)(trace)
    trace.op(EVALUATE + "MmBackward0", 100, 140, AUTOGRAD)
    trace.launch(GEMM, 110, thread=AUTOGRAD)
    trace.op("aten::something", 200, 210)
    trace.launch(ADD, 202)


def accumulation(trace: TinyTrace) -> None:
    """Two micro-steps: forward and backward twice."""
    with_autograd(trace)
    trace.op("aten::something", 240, 250)
    trace.launch(GEMM, 242)
    trace.op(EVALUATE + "MmBackward0", 300, 340, AUTOGRAD)
    trace.launch(GEMM, 310, thread=AUTOGRAD)


def unannotated(trace: TinyTrace) -> None:
    """No range of the loop, and the first node of the backward graph on the main thread."""
    for place in range(3):
        trace.op("aten::mm", 20 * place, 20 * place + 10, **{"Sequence number": place})
        trace.launch(GEMM, 20 * place + 2)
    trace.op(EVALUATE + "DDPSinkBackward", 100, 110)
    trace.launch(ADD, 102)
    trace.op(EVALUATE + "MmBackward0", 120, 140, AUTOGRAD)
    trace.launch(GEMM, 125, thread=AUTOGRAD)
    trace.launch(ADD, 145, thread=AUTOGRAD)


def hooks(trace: TinyTrace, *, around: bool) -> None:
    """No operators; FSDP's ranges on autograd's thread, and one around its backward on the main."""
    trace.note("ProfilerStep#1", 0, 1000)
    trace.launch(SOFTMAX, 20)
    trace.launch(GEMM, 30)
    if around:
        trace.note("## backward ##", 90, 300)
    trace.note("FSDP::pre_backward", 100, 110, AUTOGRAD)
    trace.launch(ADD, 102, thread=AUTOGRAD)
    trace.launch(GEMM, 150, thread=AUTOGRAD)
    trace.note("FSDP::post_backward_reduce", 200, 210, AUTOGRAD)
    trace.launch(ADD, 202, thread=AUTOGRAD)


def checkpointed(trace: TinyTrace) -> None:
    """No operators: a frame that recomputes on autograd's thread, and backward work around it."""
    trace.note("ProfilerStep#1", 0, 1000)
    trace.launch(SOFTMAX, 20)
    trace.launch(GEMM, 30)
    trace.launch(GEMM, 100, thread=AUTOGRAD)
    frame = "torch/utils/checkpoint.py(1115): recompute_fn"
    trace.host("python_function", frame, 120, 160, AUTOGRAD)
    trace.launch(GEMM, 130, thread=AUTOGRAD)
    trace.launch(GEMM, 180, thread=AUTOGRAD)


def unlinked(trace: TinyTrace) -> None:
    """The same kernels in forward, and twice on a thread of unknown phase: there one of the second
    time has no launch record."""
    trace.note("forward", 10, 190)
    for place in range(27):
        at, name = 20 + 20 * place, GEMM if place % 9 == 4 else ADD
        if place == 22:
            trace.gpu(name, at + 10)
        else:
            trace.launch(name, at, thread=MAIN if place < 9 else AUTOGRAD)


def pipeline(trace: TinyTrace) -> None:
    """A zero-bubble schedule: forward, gradient of the input, gradient of the weight."""
    trace.note("ProfilerStep#1", 0, 1000)
    for place, name in enumerate(("mb 0 (F)", "mb 1 (F)", "mb 0 (B)", "mb 0 (W)", "mb 1 (B)")):
        at = 20 + 100 * place
        trace.note(name, at, at + 80)
        trace.op("aten::mm", at + 10, at + 30)
        trace.launch(GEMM, at + 15)


def transposed(trace: TinyTrace) -> None:
    """The forward of a transposed convolution runs the kernel of another's input gradient."""
    trace.note("ProfilerStep#1", 0, 1000)
    trace.op("aten::cudnn_convolution_transpose", 20, 40)
    trace.launch(DGRAD, 25)
    trace.op("aten::relu", 50, 60)
    trace.launch(ADD, 52)


def graph(trace: TinyTrace) -> None:
    """A whole training step as one graph: its launch says nothing of the phases within."""
    trace.note("ProfilerStep#1", 0, 1000)
    trace.op("aten::copy_", 10, 20)
    trace.launch(ADD, 12)
    trace.call("cudaGraphLaunch", 30, 77)
    for place, name in enumerate((GEMM, SOFTMAX, SOFTMAX_BACKWARD, GEMM, ADAM)):
        trace.gpu(name, 50 + 10 * place, correlation=77)


PHASES = {
    "autograd's thread is backward, what the main thread launches before it forward": (
        with_autograd,
        ["forward", "forward", "backward", "other"],
    ),
    "a thread that runs forward operators isn't autograd's": (
        unannotated,
        [*["forward"] * 3, "backward", "backward", "backward"],
    ),
    "ranges of parts of backward say nothing of what is beside them": (
        partial(hooks, around=False),
        ["forward", "none", "backward", "backward", "backward"],
    ),
    "a range around backward holds the work of autograd's thread": (
        partial(hooks, around=True),
        ["forward", "forward", "backward", "backward", "backward"],
    ),
    "recomputation says nothing of what is beside it": (
        checkpointed,
        ["forward", "none", "none", "backward", "none"],
    ),
    "a kernel without a launch isn't like others of a known phase, where some have none": (
        unlinked,
        [*["forward"] * 9, *["none"] * 18],
    ),
    "between two backward passes lies forward work": (
        accumulation,
        ["forward", "forward", "backward", "forward", "forward", "backward"],
    ),
    "operators without any backward node are a forward": (
        launched(GEMM, ADD),
        ["forward", "forward"],
    ),
    "launches without operators say nothing": (
        launched(GEMM, ADD, recorded=False),
        ["none", "none"],
    ),
    "an optimizer shows training: without backward nodes order says nothing": (
        launched(GEMM, ADAM, ADD),
        ["none", "optimizer", "none"],
    ),
    "kernel names against order: gradients of a convolution": (
        launched(GEMM, WRW, WRW, ADD),
        ["none", "backward", "backward", "none"],
    ),
    "between backward kernels lies backward work, up to a forward kernel forward work": (
        launched(GEMM, SOFTMAX, GEMM, SOFTMAX_BACKWARD, GEMM, WRW, ADD),
        ["forward", "forward", "none", "backward", "backward", "backward", "none"],
    ),
    "a forward kernel between backward ones: several micro-steps, nothing is certain": (
        launched(SOFTMAX, SOFTMAX_BACKWARD, GEMM, SOFTMAX, GEMM, SOFTMAX_BACKWARD),
        ["forward", "backward", "none", "none", "none", "backward"],
    ),
    "F, B and W of a schedule": (
        pipeline,
        ["forward", "forward", "backward", "backward", "backward"],
    ),
    "an input gradient's kernel in a transposed convolution": (
        transposed,
        ["forward", "forward"],
    ),
    "the kernels of a graph": (
        graph,
        ["none", "none", "none", "backward", "none", "optimizer"],
    ),
    "a range named backward": (within("loss backward", GEMM, ADD), ["backward", "backward"]),
    "a range named forward": (within("encoder_forward", GEMM, ADD), ["forward", "forward"]),
    "a range of both names is neither": (
        within("forward_backward_step", GEMM, ADAM),
        ["none", "optimizer"],
    ),
    "a step of prefill": (within("step[EXTEND bs=2 toks=64]", GEMM, ADD), ["prefill", "prefill"]),
    "a step of decode": (
        within("execute_8_context_0(sq0sk0)_generation_8(sq8sk99)", GEMM),
        ["decode"],
    ),
    "a batch of both phases is neither": (
        within("execute_9_context_1(sq1sk1)_generation_8(sq8sk99)", GEMM),
        ["forward"],
    ),
}


@pytest.mark.parametrize("case", PHASES)
def test_phases(case: str, tmp_path: Path) -> None:
    build, expected = PHASES[case]
    trace = TinyTrace()
    build(trace)
    assert align(trace, tmp_path).texts("phase") == expected


RANGES = {
    "## backward ##": Phase.BACKWARD,
    "backward_step": Phase.BACKWARD,
    "alltoall_bwd_single": Phase.BACKWARD,
    "PP:3B1": Phase.BACKWARD,
    "PP:3W1": Phase.BACKWARD,
    "PP:0RECV_B2": Phase.BACKWARD,
    "stage 1 (W)": Phase.BACKWARD,
    "PP:3F1": Phase.FORWARD,
    "## forward:sparse_arch ##": Phase.FORWARD,
    "DistributedDataParallel.forward": Phase.FORWARD,
    "Optimizer.step#Muon.step": Phase.OPTIMIZER,
    "optimizer_step": Phase.OPTIMIZER,
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": Phase.DATA,
    "## data_load ##": Phase.DATA,
    "## encoder fp8 None ##": None,
    "## sparse_data_dist ##": None,
    "straightforward": None,
    "forwarded_tokens": None,
    "forward-backward": None,
    "PP:2UNSHARD": None,
    "(FB) mixed": None,
    "band width": None,
    "Layer3": None,
    "mlp_gp": None,
}
KERNELS = {
    SOFTMAX_BACKWARD: Phase.BACKWARD,
    WRW: Phase.BACKWARD,
    DGRAD: Phase.BACKWARD,
    "bwd_kernel_dk_dv": Phase.BACKWARD,
    "triton_red_fused_native_layer_norm_backward_3": Phase.BACKWARD,
    "split_embedding_backward_codegen_rowwise_adagrad_kernel": Phase.BACKWARD,
    ADAM: Phase.OPTIMIZER,
    "split_embedding_codegen_forward_adagrad": Phase.FORWARD,
    SOFTMAX: Phase.FORWARD,
    "void foo<std::forward<float> >()": None,
    GEMM: None,
    ADD: None,
    RCCL: None,
    "void multi_tensor_apply_kernel<LpNormFunctor<float> >()": None,
    "adaptive_average_pool": None,
    "gradient_free_kernel": None,
}
BATCHES = {
    "step[EXTEND bs=15 toks=15360]": (Phase.PREFILL, 15, 15360),
    "step[DECODE bs=32]": (Phase.DECODE, 32, 32),
    "step[MIXED bs=5 toks=900]": (None, 5, 900),
    "step[IDLE bs=0]": (None, 0, None),
    "execute_15360_context_15(sq15360sk15360sqsq15728640sqsk15728640)"
    "_generation_0(sq0sk0sqsq0sqsk0)": (Phase.PREFILL, 15, 15360),
    "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)": (
        Phase.DECODE,
        32,
        32,
    ),
    "execute_context_2(512)_generation_3(3)": (None, 5, 515),
    "execute_context_2(512)_generation_0(0)": (Phase.PREFILL, 2, 512),
    "execute_new_1_cached_4": (None, 5, None),
    "[Executor] _forward_step 7: 0 ctx reqs, 0 ctx tokens, 16 gen reqs": (Phase.DECODE, 16, 16),
    "decode_step_12": (Phase.DECODE, None, None),
    "Prefill": (Phase.PREFILL, None, None),
}
NO_BATCHES = (
    "step 7",
    "step_7",
    "execute",
    "execute_model",
    "execute_context_switch",
    "decode_jpeg",
    "prefill_cache_miss",
    "context_2_generation_3",
)


@pytest.mark.parametrize("name", RANGES)
def test_the_phase_in_a_range_s_name(name: str) -> None:
    assert range_phase(name) == RANGES[name]


@pytest.mark.parametrize("name", KERNELS)
def test_the_phase_in_a_kernel_s_name(name: str) -> None:
    assert kernel_phase(name) == KERNELS[name]


@pytest.mark.parametrize("name", BATCHES)
def test_the_batch_in_a_range_s_name(name: str) -> None:
    found = batch_of(name)
    assert found is not None
    assert (found.phase, found.requests, found.tokens) == BATCHES[name]


@pytest.mark.parametrize("name", NO_BATCHES)
def test_other_names_describe_no_batch(name: str) -> None:
    assert batch_of(name) is None


def test_steps_of_an_engine_are_iterations_with_tokens_and_requests(tmp_path: Path) -> None:
    trace = TinyTrace()
    names = ("step[EXTEND bs=2 toks=64]", "step[DECODE bs=2]", "step[DECODE bs=3]")
    for place, name in enumerate(names):
        at = 1000 * place
        # vLLM's range and SGLang's around the same step are one step.
        trace.note("execute_model", at + 5, at + 900)
        trace.note(name, at + 10, at + 800)
        for kernel in (GEMM, ADD, FLASH):
            trace.op("aten::mm", at + 20, at + 60)
            trace.launch(kernel, at + 30)
            at += 60
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    frame = query(found.run, parse("R?order=iteration&columns=tokens,requests"))
    rows = [frame.row(frame.labels.index(label)) for label in ("0", "1", "2")]
    assert [row["tokens"] for row in rows] == [64, 2, 3]
    assert [row["requests"] for row in rows] == [2, 2, 3]


def test_numbered_steps_of_a_run_that_trains_too_stay_its_iterations(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#4", 0, 1000)
    trace.note("step[DECODE bs=3]", 10, 100)
    trace.op("aten::mm", 20, 30)
    trace.launch(GEMM, 22)
    trace.op(EVALUATE + "MmBackward0", 200, 220, AUTOGRAD)
    trace.launch(GEMM, 205, thread=AUTOGRAD)
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["4", "4"]
    assert found.texts("phase") == ["decode", "backward"]


KINDS = [f"void kernel_{number}()" for number in range(12)]


def ranged(name: str, kernels: list[str], *, others: int = 0) -> Build:
    """Kernels of different operators in one range, and others outside of it."""

    def build(trace: TinyTrace) -> None:
        trace.note("ProfilerStep#1", 0, 5000)
        trace.note(name, 10, 2000)
        for place, kernel in enumerate(kernels):
            at = 20 + 20 * place
            trace.op(f"aten::op{place}", at, at + 10)
            trace.launch(kernel, at + 2)
        for place in range(others):
            at = 2100 + 20 * place
            trace.op("aten::mm", at, at + 10)
            trace.launch(GEMM, at + 2)

    return build


OPERATIONS = {
    "a range around most of a step is a scope": (
        ranged("my model", KINDS),
        [f"op{place}" for place in range(12)],
    ),
    "a range around a part of a step is an operation": (
        ranged("my part", KINDS, others=13),
        ["my part"] * 12 + ["mm"] * 13,
    ),
    "a wide range of few kernels is an operation": (
        ranged("my attention", KINDS[:3]),
        ["my attention"] * 3,
    ),
    "a wide optimizer stays the optimizer": (
        ranged("Optimizer.step#AdamW.step", KINDS),
        ["opt_step"] * 12,
    ),
    "a compiled graph is a scope": (
        ranged("## Call CompiledFxGraph fd4hc6 ##", KINDS[:3], others=20),
        ["op0", "op1", "op2"] + ["mm"] * 20,
    ),
    "a pass of a schedule is a scope": (
        ranged("PP:0F1", KINDS[:2], others=9),
        ["op0", "op1"] + ["mm"] * 9,
    ),
    "an engine's step is a scope": (
        ranged("step[DECODE bs=4]", KINDS[:2]),
        ["op0", "op1"],
    ),
}


@pytest.mark.parametrize("case", OPERATIONS)
def test_operations_of_ranges(case: str, tmp_path: Path) -> None:
    build, expected = OPERATIONS[case]
    trace = TinyTrace()
    build(trace)
    assert align(trace, tmp_path).texts("operation") == expected


def test_the_innermost_of_range_and_module_wins(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 1000)
    trace.note("around", 10, 200)
    trace.module("Linear_0", 20, 80)
    trace.op("aten::linear", 30, 60)
    trace.launch(GEMM, 40)
    trace.module("MoE_0", 100, 190)
    trace.note("dispatch tokens", 110, 150)
    trace.op("aten::index", 120, 130)
    trace.launch(ADD, 122)
    assert align(trace, tmp_path).texts("operation") == ["Linear", "dispatch tokens"]


def test_compiled_functions_do_not_name_their_kernels(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 1000)
    trace.op(EVALUATE + "CompiledFunctionBackward", 20, 200, AUTOGRAD)
    trace.op("CompiledFunctionBackward", 25, 190, AUTOGRAD)
    trace.launch("triton_red_fused_add_sum_1", 40, thread=AUTOGRAD)
    trace.launch(GEMM, 60, thread=AUTOGRAD)
    found = align(trace, tmp_path)
    assert found.texts("operation") == ["add_sum", "gemm"]
    assert found.texts("phase") == ["backward"] * 2


def blocks(trace: TinyTrace, numbers: list[int], at: int, thread: int = MAIN) -> int:
    """The frames of a language model's blocks in this order, each with one product."""
    for number in numbers:
        trace.host("python_function", f"nn.Module: DecoderLayer_{number}", at, at + 40, thread)
        trace.op("aten::mm", at + 5, at + 20, thread)
        trace.launch(GEMM, at + 10, thread=thread)
        at += 50
    return at


def recompute(trace: TinyTrace, numbers: list[int], at: int) -> int:
    """Backward that calls blocks again, on autograd's thread."""
    trace.op(EVALUATE + "CheckpointBackward", at, at + 50 * len(numbers), AUTOGRAD)
    return blocks(trace, numbers, at + 1, AUTOGRAD) + 20


def starts_in_backward(trace: TinyTrace) -> None:
    """Frames are numbered by their first call: in reverse."""
    at = recompute(trace, [0, 1, 2], 10)
    blocks(trace, [2, 1, 0], at)


def no_whole_forward(trace: TinyTrace) -> None:
    at = recompute(trace, [0, 1, 2], 10)
    blocks(trace, [2, 1], at)


def forwards_that_disagree(trace: TinyTrace) -> None:
    blocks(trace, [1, 0], blocks(trace, [0, 1], 10))


def starts_within_a_forward(trace: TinyTrace) -> None:
    at = blocks(trace, [0, 1], 10)
    trace.module("Model_0", at, at + 400)
    blocks(trace, [2, 0, 1], at + 10)


LAYERS = {
    "frames in the order of a forward": (lambda trace: blocks(trace, [0, 1, 2], 10), "012"),
    "a profiler that starts in backward": (starts_in_backward, "210012"),
    "a profiler that starts within a forward": (starts_within_a_forward, "12012"),
    "a start within a forward, and nothing that parts it from the next": (
        lambda trace: blocks(trace, [0, 1, 2, 0, 1], 10),
        "-----",
    ),
    "no forward calls all blocks": (no_whole_forward, "-----"),
    "a forward whose first block isn't recorded": (
        lambda trace: blocks(trace, [1, 2, 3], 10),
        "---",
    ),
    "forwards of different order": (forwards_that_disagree, "----"),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers_are_places_in_a_whole_forward(case: str, tmp_path: Path) -> None:
    build, expected = LAYERS[case]
    trace = TinyTrace()
    build(trace)
    found = align(trace, tmp_path).texts("layer")
    assert "".join("-" if each == "none" else each for each in found) == expected


def test_where_a_block_is_missing_its_own_modules_are_no_head(tmp_path: Path) -> None:
    trace = TinyTrace()
    for at, number in ((10, 0), (500, 2)):
        trace.module("Model_0", at, at + 300)
        trace.module(f"DecoderLayer_{number}", at + 10, at + 100)
        trace.module(f"Attention_{number}", at + 20, at + 80)
        trace.module("Linear_9", at + 150, at + 200)
        trace.launch(GEMM, at + 160)
    assert align(trace, tmp_path).texts("operation") == ["Linear", "Linear"]


def language_model(trace: TinyTrace, *, with_loss_module: bool) -> None:
    """A model of embedding, two blocks, norm and head; the head hangs on the outer module."""
    trace.module("LlamaForCausalLM_0", 10, 500)
    trace.module("LlamaModel_0", 20, 300)
    trace.module("Embedding_0", 30, 50)
    trace.op("aten::embedding", 31, 49)
    trace.launch(ADD, 35)
    at = 60
    for number in range(2):
        trace.module(f"LlamaDecoderLayer_{number}", at, at + 80)
        trace.module(f"LlamaAttention_{number}", at + 10, at + 70)
        trace.op("aten::mm", at + 20, at + 40)
        trace.launch(GEMM, at + 25)
        at += 90
    trace.module("LlamaRMSNorm_9", 250, 270)
    trace.launch("rms_norm_kernel", 255)
    trace.op("aten::mul", 280, 290)
    trace.launch(ADD, 282)
    trace.module("Linear_9", 320, 360)
    trace.op("aten::linear", 321, 350)
    trace.launch(GEMM, 330)
    if with_loss_module:
        trace.module("CrossEntropyLoss_0", 520, 560)
    trace.op("aten::cross_entropy_loss", 530, 550)
    trace.launch(SOFTMAX, 535)


@pytest.mark.parametrize("with_loss_module", [False, True])
def test_what_lies_outside_the_layers_is_known_to(tmp_path: Path, with_loss_module: bool) -> None:
    trace = TinyTrace()
    language_model(trace, with_loss_module=with_loss_module)
    found = align(trace, tmp_path)
    operations = ["ie", "LlamaAttention", "LlamaAttention", "ln", "mul", "lp", "cel"]
    assert found.texts("operation") == operations
    assert found.texts("layer") == ["none", "0", "1", "none", "none", "none", "none"]
    # Each has the rule that shows it, which an unknown layer lacks.
    assert all(each.rules["layer_rule"] != Rule.NONE for each in found.activities)


def test_an_unknown_layer_has_no_rule(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 1000)
    blocks(trace, [0, 1], 10)
    trace.op("aten::mm", 300, 320)
    trace.launch(ADD, 305)
    trace.module("Linear_3", 400, 450)
    trace.launch(GEMM, 410)
    found = align(trace, tmp_path)
    assert found.texts("layer") == ["0", "1", "none", "none"]
    assert [each.rules["layer_rule"] for each in found.activities[2:]] == [Rule.NONE] * 2


def test_batches_are_counted_once_per_step(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("execute_64_context_2(sq64sk64)_generation_0(sq0sk0)", 0, 900)
    trace.note("step[EXTEND bs=2 toks=64]", 10, 800)
    for at in (20, 60, 850):
        trace.op("aten::mm", at, at + 20)
        trace.launch(GEMM, at + 5)
    table = align(trace, tmp_path).run.table
    assert np.nansum(table.measured["tokens"]) == 64
    assert np.nansum(table.measured["requests"]) == 2
    assert set(table.iteration[table.category != Category.OUTSIDE].tolist()) == {0}


def captured(trace: TinyTrace, *, replayed: int = 2, captures: int = 1, streams: int = 1) -> None:
    """A capture of two blocks' products, and two replays of a graph of some kernels."""
    at = 10
    for number in range(captures):
        trace.call("hipStreamBeginCapture", at, 900 + number)
        for layer in range(2):
            trace.module(f"DecoderLayer_{layer}", at + 5, at + 35)
            trace.module(f"Linear_{layer}", at + 8, at + 30)
            trace.op("aten::mm", at + 10, at + 20)
            trace.call("hipLaunchKernel", at + 12, 800 + 10 * number + layer)
            at += 40
        trace.call("hipStreamEndCapture", at, 910 + number)
        at += 20
    for replay in range(2):
        at += 100
        trace.op("aten::copy_", at, at + 5)
        trace.call("hipGraphLaunch", at + 10, 1000 + replay)
        for place in range(replayed):
            stream = place % streams
            trace.gpu(GEMM, at + 30 + 10 * place, correlation=1000 + replay, stream=stream)


GRAPHS = {
    "replays have the layers of the capture": ({}, ["0", "1"] * 2),
    "a graph of another size is another graph": ({"replayed": 3}, ["none"] * 6),
    "two captures of one size": ({"captures": 2}, ["none"] * 4),
    "branches on two streams": ({"streams": 2}, ["none"] * 4),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_replays_of_a_graph(case: str, tmp_path: Path) -> None:
    options, layers = GRAPHS[case]
    trace = TinyTrace()
    captured(trace, **options)
    found = align(trace, tmp_path)
    assert found.texts("layer") == layers
    operation = "Linear" if "0" in layers else "gemm"
    assert set(found.texts("operation")) == {operation}
