"""Single rules of the alignment, each on a trace made for it: nothing raises, nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chopper_core.model.address import parse
from chopper_core.model.table import NO_TIME, Kind, Rule
from chopper_core.render import as_json
from chopper_core.render.info import describe, info_text
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


def add_step(trace: TinyTrace, at: int, *, optimizer: bool = True) -> int:
    """Forward, backward and an optimizer step from `at` on; gives the time after them."""
    trace.op("aten::mm", at, at + 20)
    trace.launch(GEMM, at + 5)
    trace.op(EVALUATE + "MmBackward0", at + 30, at + 50, AUTOGRAD)
    trace.launch(GEMM, at + 35, thread=AUTOGRAD)
    if optimizer:
        trace.note("Optimizer.step#AdamW.step", at + 60, at + 80)
        trace.launch(ADAM, at + 65)
    return at + 100


def test_profiler_steps_alone_number_the_iterations(tmp_path: Path) -> None:
    trace = TinyTrace()
    for number in (3, 4):
        trace.note(f"ProfilerStep#{number}", 1000 * number, 1000 * number + 100)
        add_step(trace, 1000 * number)
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["3", "3", "3", "4", "4", "4"]
    assert found.texts("phase") == ["forward", "backward", "optimizer"] * 2
    assert {each.rules["iteration_rule"] for each in found.activities} == {Rule.ANNOTATION}


def test_an_activity_belongs_to_the_step_that_launched_it_not_to_the_one_it_runs_in(
    tmp_path: Path,
) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 100)
    trace.note("ProfilerStep#2", 100, 200)
    trace.launch(GEMM, 95, start=150)
    trace.launch(ADD, 105, start=160)
    assert align(trace, tmp_path).texts("iteration") == ["1", "2"]


def test_iteration_annotations_win_over_profiler_steps(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 100)
    trace.note("Iteration71", 10, 90)
    trace.launch(GEMM, 20)
    assert align(trace, tmp_path).texts("iteration") == ["71"]


@pytest.mark.parametrize(
    "name",
    ["Iteration 7", "Iteration_7", "step 7", "train_step_7", "step#7", "iteration 7", "iter_7",
     "Step 7", "global_step_7", "training step: 7", "iter7"],
)  # fmt: skip
def test_other_spellings_of_a_step(tmp_path: Path, name: str) -> None:
    trace = TinyTrace()
    trace.note(name, 0, 100)
    trace.launch(GEMM, 20)
    assert align(trace, tmp_path).texts("iteration") == ["7"]


def test_torch_up_to_1_9_calls_operators_and_ranges_alike(tmp_path: Path) -> None:
    """Both are of the category `Operator`; only operators have a namespace or a sequence."""
    trace = TinyTrace()
    for number in (5, 6):
        at = 1000 * number
        trace.note(f"ProfilerStep#{number}", at, at + 100)
        add_step(trace, at)
        trace.op("MyFunction", at + 82, at + 90, **{"Sequence number": 4})
        trace.launch(ADD, at + 84)
    for event in trace.events:
        if event["cat"] in ("cpu_op", "user_annotation"):
            event["cat"] = "Operator"
        if event["cat"] == "cuda_runtime":
            event["cat"] = "Runtime"
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["5"] * 4 + ["6"] * 4
    assert found.texts("phase")[:3] == ["forward", "backward", "optimizer"]
    assert found.texts("operation")[2:4] == ["opt_step", "MyFunction"]


def test_what_was_launched_before_the_first_step_is_of_none(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.launch(GEMM, 10)
    trace.note("ProfilerStep#5", 100, 200)
    trace.launch(GEMM, 110)
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["none", "5"]
    assert found.run.partial_iterations == {0: frozenset()}


@pytest.mark.parametrize(("launched", "expected"), [(True, "none"), (False, "5")])
def test_a_first_activity_without_a_launch_is_of_the_step_that_lacks_it(
    launched: bool, expected: str, tmp_path: Path
) -> None:
    """It runs after the step's first kernel: its launch is lost, or it is one that was launched to
    a slow stream before the window, in no step of it."""
    trace = TinyTrace()
    trace.gpu(RCCL, 120, stream=7)
    for step in (5, 6, 7):
        at = 100 * (step - 4)
        trace.note(f"ProfilerStep#{step}", at, at + 90)
        trace.launch(GEMM, at + 5)
        if launched or step > 5:
            trace.launch(RCCL, at + 40, stream=7)
    found = align(trace, tmp_path).texts("iteration")
    assert found.count(expected) == {"none": 1, "5": 2}[expected]
    assert len(found) == 6 + launched and found.count("6") == found.count("7") == 2


def test_without_steps_the_optimizer_ends_them_and_accumulation_keeps_one(tmp_path: Path) -> None:
    trace = TinyTrace()
    at = add_step(trace, 0, optimizer=False)
    at = add_step(trace, at)
    at = add_step(trace, at, optimizer=False)
    at = add_step(trace, at)
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["0"] * 5 + ["1"] * 5
    assert found.texts("phase") == ["forward", "backward", "forward", "backward", "optimizer"] * 2


def test_two_optimizers_in_a_row_end_one_iteration(tmp_path: Path) -> None:
    trace = TinyTrace()
    at = add_step(trace, 0)
    trace.note("Optimizer.step#SGD.step", at, at + 20)
    trace.launch(ADAM, at + 5)
    add_step(trace, at + 100)
    assert align(trace, tmp_path).texts("iteration") == ["0"] * 4 + ["1"] * 3


def test_a_closure_in_an_optimizer_step_is_forward_and_backward(tmp_path: Path) -> None:
    """As PyTorch Lightning calls `optimizer.step(closure)`; the update follows the closure."""
    trace = TinyTrace()
    for number in (3, 4):
        at = 1000 * number
        trace.note(f"ProfilerStep#{number}", at, at + 120)
        trace.note("Optimizer.step#AdamW.step", at + 5, at + 110)
        add_step(trace, at + 10, optimizer=False)
        trace.op("aten::_foreach_add_", at + 80, at + 90)
        trace.launch(ADD, at + 85)
    found = align(trace, tmp_path)
    assert found.texts("phase") == ["forward", "backward", "optimizer"] * 2


def test_work_after_the_last_optimizer_step_is_an_iteration_that_the_end_cut(
    tmp_path: Path,
) -> None:
    trace = TinyTrace()
    at = add_step(trace, 0)
    add_step(trace, at, optimizer=False)
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["0"] * 3 + ["1"] * 2
    assert found.run.partial_iterations == {0: {1}}


def test_a_trace_of_the_gpu_alone_is_cut_by_its_bursts_of_optimizer_kernels(
    tmp_path: Path,
) -> None:
    trace = TinyTrace()
    at = 0
    expected: list[tuple[str, bool]] = []
    for iteration in ("0", "1", "2"):
        for name, count in ((GEMM, 250), (ADAM, 8)):
            for _ in range(count):
                trace.gpu(name, at)
                at += 10
                expected.append((iteration, name == ADAM))
    found = align(trace, tmp_path)
    assert found.texts("iteration") == [iteration for iteration, _ in expected]
    optimizer = [each.phase == "optimizer" for each in found.activities]
    assert optimizer == [is_optimizer for _, is_optimizer in expected]
    assert set(found.texts("layer")) == {"none"}
    assert found.findings["activities without a launch record"] == len(expected)


def llama_block(trace: TinyTrace, layer: int, at: int, sequence: int) -> int:
    """A decoder layer's module frames with an operator and a kernel in each leaf."""
    first = at
    leaves: list[tuple[str, str, str, int]] = []

    def leaf(name: str, op: str, kernel: str) -> None:
        nonlocal at, sequence
        trace.module(name, at, at + 18)
        record = trace.op(op, at + 2, at + 16, **{"Sequence number": sequence})
        trace.launch(kernel, at + 5, external_id=record["args"]["External id"])
        leaves.append((name, op, kernel, sequence))
        sequence += 1
        at += 20

    leaf(f"LlamaRMSNorm_{2 * layer}", "aten::rms_norm", "rms_norm_kernel")
    attention = at
    at += 2
    for number in range(3):
        leaf(f"Linear_{7 * layer + number}", "aten::linear", GEMM)
    numbered = {"Sequence number": sequence}
    record = trace.op("aten::scaled_dot_product_attention", at, at + 10, **numbered)
    sequence += 1
    trace.launch(FLASH, at + 3, external_id=record["args"]["External id"])
    at += 20
    leaf(f"Linear_{7 * layer + 3}", "aten::linear", GEMM)
    trace.module(f"LlamaAttention_{layer}", attention, at)
    leaf(f"LlamaRMSNorm_{2 * layer + 1}", "aten::rms_norm", "rms_norm_kernel")
    feed_forward = at
    at += 2
    leaf(f"Linear_{7 * layer + 4}", "aten::linear", GEMM)
    leaf(f"SiLU_{layer}", "aten::silu", "silu_kernel")
    leaf(f"Linear_{7 * layer + 5}", "aten::linear", GEMM)
    leaf(f"Linear_{7 * layer + 6}", "aten::linear", GEMM)
    trace.module(f"LlamaMLP_{layer}", feed_forward, at)
    trace.module(f"LlamaDecoderLayer_{layer}", first, at + 5)
    return at + 10


LLAMA = ("attn_n", "q_ip", "k_ip", "v_ip", "attn_fa", "attn_op", "mlp_n", "mlp_gp", "mlp_gs",
         "mlp_up", "mlp_dp")  # fmt: skip


def test_module_frames_name_layers_and_operations(tmp_path: Path) -> None:
    trace = TinyTrace()
    at = 10
    for layer in (0, 1, 2):
        at = llama_block(trace, layer, at, sequence=50 * layer)
    found = align(trace, tmp_path)
    assert found.texts("layer") == [str(layer) for layer in (0, 1, 2) for _ in LLAMA]
    assert found.texts("operation") == list(LLAMA) * 3
    assert {each.rules["layer_rule"] for each in found.activities} == {Rule.MODULE}


def test_sequence_numbers_alone_carry_module_labels_to_backward(tmp_path: Path) -> None:
    trace = TinyTrace()
    at = 10
    for layer in (0, 1):
        at = llama_block(trace, layer, at, sequence=50 * layer)
    forward = {
        event["args"]["Sequence number"]: event
        for event in trace.events
        if "Sequence number" in event["args"]
    }
    at += 100
    for sequence in sorted(forward, reverse=True):
        args = {"Sequence number": sequence, "Fwd thread id": 1}
        trace.op(EVALUATE + "SomeBackward0", at, at + 18, AUTOGRAD, **args)
        trace.op("SomeBackward0", at + 1, at + 17, AUTOGRAD, **args)
        trace.launch("backward_kernel", at + 5, thread=AUTOGRAD)
        at += 20
    assert not any(event["cat"] == "fwdbwd" for event in trace.events)
    found = align(trace, tmp_path)
    backward = found.activities[2 * len(LLAMA) :]
    assert [each.layer for each in backward] == ["1"] * len(LLAMA) + ["0"] * len(LLAMA)
    # Which of an attention module's kernels is the attention, only its name can say.
    wanted = [name if name != "attn_fa" else "LlamaAttention" for name in reversed(LLAMA)] * 2
    assert [each.operation for each in backward] == wanted
    assert {each.phase for each in backward} == {"backward"}
    assert {each.rules["layer_rule"] for each in backward} == {Rule.AUTOGRAD}


@pytest.mark.parametrize(
    "operator",
    [
        "aten::convolution_backward",
        "aten::_softmax_backward_data",
        "aten::_scaled_dot_product_flash_attention_backward",
        "flash_attn::_flash_attn_backward",
        "aiter::fmha_v3_bwd",
        "torch::autograd::AccumulateGrad",
        "torch::autograd::CopyBackwards",
    ],
)
def test_an_operator_of_gradients_is_backward_without_autograd_around_it(
    tmp_path: Path, operator: str
) -> None:
    trace = TinyTrace()
    trace.op(operator, 0, 40)
    trace.launch("kernel0", 10)
    trace.launch("kernel1", 20)
    assert align(trace, tmp_path).texts("phase") == ["backward", "backward"]


def test_what_lies_between_operators_of_gradients_is_backward_too(tmp_path: Path) -> None:
    trace = TinyTrace()
    names = ("mm", "threshold_backward", "add", "convolution_backward", "mul")
    for at, name in enumerate(names):
        trace.op(f"aten::{name}", 100 * at, 100 * at + 40)
        trace.launch(f"kernel{at}", 100 * at + 10)
    # Forward isn't shown, and what follows backward may be anything.
    phases = ["none", "backward", "backward", "backward", "none"]
    assert align(trace, tmp_path).texts("phase") == phases


def test_a_flow_with_one_end_links_nothing_but_its_sequence_number_does(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("Layer3", 0, 50)
    trace.note("mlp_up", 5, 45)
    forward = trace.op("aten::mm", 10, 40, **{"Sequence number": 9})
    trace.launch(GEMM, 20)
    args = {"Sequence number": 9, "Fwd thread id": 1}
    backward = trace.op("MmBackward0", 100, 120, AUTOGRAD, **args)
    trace.launch(GEMM, 110, thread=AUTOGRAD)
    trace.flow(forward, backward, ends="f")
    found = align(trace, tmp_path)
    assert found.texts("layer") == ["3", "3"]
    assert found.texts("operation") == ["mlp_up", "mlp_up"]
    assert found.texts("phase") == ["forward", "backward"]
    assert found.findings["fwdbwd flows with one end"] == 1


def test_flows_say_which_thread_a_number_in_backward_means(tmp_path: Path) -> None:
    """A node without a flow finds its forward by its number on the thread that other flows show."""
    trace = TinyTrace()
    flows = []
    for thread_number, (thread, operation) in enumerate(((201, "q_ip"), (202, "mlp_up")), 1):
        at = 100 * thread_number
        for sequence, layer in ((5, 1), (6, 2)):
            trace.note(f"Layer{layer}", at, at + 40, thread)
            trace.note(operation, at + 5, at + 35, thread)
            args = {"Sequence number": sequence}
            forward = trace.op("aten::mm", at + 10, at + 30, thread, **args)
            trace.launch(GEMM, at + 20, thread=thread)
            flows.append((thread_number, sequence, forward))
            at += 50
    at = 1000
    for thread_number, sequence, forward in reversed(flows):
        args = {"Sequence number": sequence, "Fwd thread id": thread_number}
        node = trace.op("MmBackward0", at, at + 40, AUTOGRAD, **args)
        trace.launch(GEMM, at + 10, thread=AUTOGRAD)
        trace.flow(forward, node, ends="sf" if sequence == 6 else "s")
        at += 50
    found = align(trace, tmp_path)
    places = [(each.layer, each.operation) for each in found.activities]
    assert places[:4] == [("1", "q_ip"), ("2", "q_ip"), ("1", "mlp_up"), ("2", "mlp_up")]
    assert places[4:] == places[3::-1]
    assert found.findings["fwdbwd flows with one end"] == 2


@pytest.mark.parametrize(
    ("kernel", "argument", "around", "expected"),
    [
        (RCCL, "_allgather_base", "", "all_gather"),
        (RCCL, "allreduce", "nccl:_all_gather_base", "all_reduce"),
        (RCCL, "", "nccl:_all_gather_base", "all_gather"),
        (RCCL, "", "nccl:_reduce_scatter_base", "reduce_scatter"),
        (RCCL, "", "FSDP::all_gather (layers.4)", "all_gather"),
        (RCCL, "", "FSDP::post_backward_reduce (layers.4)", "reduce_scatter"),
        (RCCL, "", "", "collective"),
        ("ncclKernel_Generic_4(ncclDevComm*)", "", "", "collective"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "", "", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "", "", "reduce_scatter"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "", "", "all_reduce"),
        ("ncclKernel_SendRecv(ncclDevComm*)", "", "", "send_recv"),
        ("ncclDevKernel_Broadcast_RING_LL(x)", "", "", "broadcast"),
        (RCCL, "alltoall", "", "all_to_all"),
        (RCCL, "send", "", "send_recv"),
    ],
)
def test_collectives_are_named_by_arguments_then_ranges_then_kernels(
    tmp_path: Path, kernel: str, argument: str, around: str, expected: str
) -> None:
    trace = TinyTrace()
    if around:
        trace.note(around, 10, 40)
    args: dict[str, Any] = {"Collective name": argument, "In msg nelems": 8, "Out msg nelems": 64,
            "dtype": "BFloat16", "Group size": 8} if argument else {}  # fmt: skip
    trace.launch(kernel, 20, stream=11, **args)
    found = align(trace, tmp_path)
    assert found.texts("operation") == [expected]
    assert found.run.table.kind.tolist() == [Kind.COMM]
    assert found.run.table.bytes.tolist() == [128 if argument else -1]
    assert found.findings["collectives without arguments"] == (not argument)


def test_a_collective_without_arguments_has_those_of_the_operator_around_its_launch(
    tmp_path: Path,
) -> None:
    trace = TinyTrace()
    args: dict[str, Any] = {
        "Collective name": "reduce_scatter",
        "In msg nelems": 64,
        "Out msg nelems": 8,
        "dtype": "Float",
        "Group size": 8,
        "Process Group Name": "0",
        "Process Group Description": "tp",
    }
    trace.op("record_param_comms", 10, 40, **args)
    trace.launch(RCCL, 20, stream=11)
    trace.launch(RCCL, 60, stream=11)
    found = align(trace, tmp_path)
    assert found.texts("operation") == ["reduce_scatter", "collective"]
    table = found.run.table
    by_start = table.start_ns.argsort()
    assert table.bytes[by_start].tolist() == [256, -1]
    (group, nothing) = table.group[by_start].tolist()
    assert (table.names[group], nothing) == ("0 (tp) of 8", -1)
    assert found.findings["collectives without arguments"] == 1


def test_kernels_of_one_graph_launch_share_its_correlation(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#2", 0, 100)
    trace.note("attn_op", 10, 40)
    trace.call("hipGraphLaunch", 20, correlation=77)
    for start in (50, 60, 70):
        trace.gpu(GEMM, start, correlation=77)
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["2"] * 3
    assert found.texts("operation") == ["attn_op"] * 3
    assert found.run.table.launch_ns[found.rows].tolist() == [20_000] * 3


def test_of_several_calls_with_one_correlation_the_last_before_the_start_launched_it(
    tmp_path: Path,
) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#2", 0, 100)
    trace.note("ProfilerStep#3", 100, 200)
    for at in (20, 120):
        trace.call("hipGraphLaunch", at, correlation=77)
        trace.gpu(GEMM, at + 30, correlation=77)
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["2", "3"]
    assert found.run.table.launch_ns[found.rows].tolist() == [20_000, 120_000]
    name = "activities whose correlation several launch calls share"
    assert found.findings[name] == 2


@pytest.mark.parametrize("correlation", [0, None])
def test_correlation_zero_or_none_is_no_link(tmp_path: Path, correlation: int | None) -> None:
    trace = TinyTrace()
    trace.note("attn_op", 0, 100)
    trace.call("hipLaunchKernel", 20, correlation=0)
    trace.gpu(GEMM, 50, correlation=correlation)
    found = align(trace, tmp_path)
    assert found.run.table.launch_ns.tolist() == [NO_TIME]
    assert found.findings["kernels without a launch record"] == 1
    assert found.texts("operation") == ["gemm"]


def test_without_a_launch_the_external_id_tells_the_operator(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#2", 0, 100)
    trace.note("attn_op", 10, 40)
    record = trace.op("aten::mm", 15, 35)
    trace.gpu(GEMM, 50, correlation=0, **{"External id": record["args"]["External id"]})
    found = align(trace, tmp_path)
    assert (found.texts("iteration"), found.texts("operation")) == (["2"], ["attn_op"])
    assert found.run.table.launch_ns.tolist() == [NO_TIME]


def test_a_launch_stamped_after_the_start_is_used_and_counted(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#2", 0, 100)
    trace.note("attn_op", 10, 40)
    trace.launch(GEMM, 5, start=10)
    trace.launch(GEMM, 30, start=25)
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["2", "2"]
    assert found.texts("operation")[1] == "attn_op"
    assert found.findings["activities that start before their launch call (clocks disagree)"] == 1
    total = query(found.run, parse(f"{found.run.name}?columns=idle_ns,idle_host_ns")).total
    # The host was late for all of the 10 µs before the second kernel, not for 15; for 5 µs before
    # the first launch, and for 70 after the second kernel. The first launch took 5 µs.
    assert total == {"idle_ns": 90_000, "idle_host_ns": 85_000}


def test_a_kernel_outside_every_annotation_has_the_framework_s_or_its_own_name(
    tmp_path: Path,
) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#2", 100, 200)
    trace.note("attn_op", 110, 120)
    trace.launch(GEMM, 115)
    trace.op("aten::mm", 130, 150)
    trace.launch(GEMM, 135)
    trace.launch(GEMM, 300)
    found = align(trace, tmp_path)
    assert found.texts("iteration") == ["2", "2", "none"]
    assert found.texts("layer") == ["none"] * 3
    assert found.texts("operation") == ["attn_op", "mm", "gemm"]
    path = f"{found.run.name}:gpu=0/iteration=none"
    assert query(found.run, parse(path)).total["kernels"] == 1


NASTY = (
    "[red]kernel[/red]",
    "a\x1b[31mb\x07\n\tc\r",
    'quote " backslash \\ slash / = ? & # % : end',
    "layer=3/operation=x",
    "[/]",
    "\u202eright to left \U0001f600",
    " ",
)


def test_names_with_markup_and_control_characters_are_kept_as_they_are(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 10_000)
    for number, name in enumerate(NASTY):
        trace.note(name, 100 * number, 100 * number + 50)
        trace.launch(name, 100 * number + 20)
    found = align(trace, tmp_path)
    assert found.texts("kernel") == list(NASTY)
    frame = query(found.run, parse(f"{found.run.name}?order=kernel"))
    document = json.loads(as_json(frame))
    assert sorted(row["name"] for row in document["rows"]) == sorted(NASTY)
    for row in document["rows"]:
        assert row["address"].isprintable()
        child = query(found.run, parse(row["address"]))
        assert child.view.path == (row["name"],)
        assert child.total["kernels"] == 1
    assert "\x1b" not in info_text(found.run)


def test_empty_names_have_addresses_too(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 100)
    trace.note("", 10, 30)
    trace.launch("", 20)
    found = align(trace, tmp_path)
    for order in ("operation", "kernel"):
        frame = query(found.run, parse(f"{found.run.name}?order={order}"))
        assert query(found.run, parse(frame.addresses(0))).total["kernels"] == 1


def test_a_module_frame_without_a_number_names_itself(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.module("Odd", 0, 100)
    trace.launch(GEMM, 20)
    assert align(trace, tmp_path).texts("operation") == ["Odd"]


@pytest.mark.parametrize("number", [2**31, 10**14, 10**26])
@pytest.mark.parametrize("name", ["Iteration{}", "ProfilerStep#{}", "Layer{}"])
def test_numbers_that_no_table_can_hold_are_no_markers(
    tmp_path: Path, name: str, number: int
) -> None:
    trace = TinyTrace()
    trace.note(name.format(number), 0, 100)
    trace.launch(GEMM, 20)
    (found,) = align(trace, tmp_path).activities
    assert (found.iteration, found.layer) == ("none", "none")


def test_an_operation_called_none_is_not_a_missing_one(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 100)
    trace.note("none", 10, 20)
    trace.launch(GEMM, 15)
    found = align(trace, tmp_path)
    assert found.texts("operation") == ["none"]
    for order in ("operation", "kernel", "layer"):
        frame = query(found.run, parse(f"{found.run.name}?order={order}"))
        assert query(found.run, parse(frame.addresses(0))).total["kernels"] == 1


def test_process_and_thread_ids_can_be_text(tmp_path: Path) -> None:
    trace = TinyTrace(process="python 100")
    trace.note("ProfilerStep#2", 0, 100, thread="main")
    trace.note("attn_op", 10, 40, thread="main")
    trace.note("mlp_up", 10, 40, thread="other")
    trace.launch(GEMM, 20, thread="main")
    trace.events[-1] |= {"pid": "0", "tid": "stream 7"}
    trace.launch(GEMM, 30, thread="other")
    found = align(trace, tmp_path)
    assert found.texts("operation") == ["attn_op", "mlp_up"]
    assert found.texts("iteration") == ["2", "2"]


def test_a_process_id_can_be_a_process_and_a_gpu(tmp_path: Path) -> None:
    trace = TinyTrace(process=2, device=2)
    trace.note("attn_op", 0, 40, thread=0)
    trace.launch(GEMM, 20, thread=0)
    found = align(trace, tmp_path)
    assert found.texts("operation") == ["attn_op"]
    assert [gpu.device for gpu in found.run.gpus] == [2]


def test_two_devices_of_one_trace_are_two_gpus_with_their_own_time(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#2", 0, 100)
    trace.note("attn_op", 10, 60)
    for device, at in ((5, 20), (3, 30), (5, 40)):
        trace.launch(GEMM, at, device=device, stream=0)
    found = align(trace, tmp_path)
    assert [(gpu.index, gpu.rank, gpu.device) for gpu in found.run.gpus] == [(0, 0, 3), (1, 0, 5)]
    columns = "kernels,elapsed_ns,compute_ns,idle_ns"
    frame = query(found.run, parse(f"{found.run.name}?columns={columns}"))
    assert [frame.row(row) for row in range(2)] == [
        # The annotation's 100 µs.
        {"kernels": 1, "elapsed_ns": 100_000, "compute_ns": 5_000, "idle_ns": 95_000},
        {"kernels": 2, "elapsed_ns": 100_000, "compute_ns": 10_000, "idle_ns": 90_000},
    ]
    assert set(found.texts("operation")) == {"attn_op"}


def test_fsdp1_names_its_work_and_its_backward(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 1000)
    trace.note("FullyShardedDataParallel.forward", 10, 200)
    trace.note("FullyShardedDataParallel._pre_forward", 20, 60)
    trace.note("nccl:_all_gather_base", 30, 50)
    trace.launch(RCCL, 40, stream=11)
    trace.op("aten::mm", 100, 120)
    trace.launch(GEMM, 110)
    trace.op(EVALUATE + "MmBackward0", 300, 320, AUTOGRAD)
    trace.launch(GEMM, 310, thread=AUTOGRAD)
    trace.note("FullyShardedDataParallel._post_backward_hook", 330, 400, AUTOGRAD)
    trace.launch(ADD, 340, thread=AUTOGRAD)
    trace.note("nccl:_reduce_scatter_base", 350, 390, AUTOGRAD)
    trace.launch(RCCL, 360, thread=AUTOGRAD, stream=12)
    found = align(trace, tmp_path)
    assert found.texts("phase") == ["forward", "forward", "backward", "backward", "backward"]
    assert found.texts("operation")[0] == "all_gather"
    assert found.texts("operation")[1] == "mm"
    assert found.texts("operation")[3:] == [
        "FullyShardedDataParallel._post_backward_hook",
        "reduce_scatter",
    ]


def test_copies_and_memsets_have_their_kinds_and_uploads_are_data(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 1000)
    trace.launch("Memcpy HtoD (Host -> Device)", 10, category="gpu_memcpy", bytes=64)
    trace.launch("Memset (Device)", 30, category="gpu_memset")
    trace.launch(GEMM, 50)
    found = align(trace, tmp_path)
    assert found.texts("phase") == ["data", "none", "none"]
    kinds = [Kind(kind) for kind in found.run.table.kind[found.rows].tolist()]
    assert kinds == [Kind.COPY, Kind.COMPUTE, Kind.COMPUTE]
    assert found.run.table.bytes[found.rows].tolist()[0] == 64
    (gpu,) = describe(found.run)["gpus"]
    assert (gpu["kernels"], gpu["copies"], gpu["memsets"]) == (1, 1, 1)


def test_layer_and_operation_are_those_of_the_launching_thread(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#1", 0, 1000)
    trace.note("Layer1", 10, 100, thread=MAIN)
    trace.note("mlp_up", 20, 90, thread=MAIN)
    trace.note("Layer8", 30, 80, thread=555)
    trace.note("attn_op", 40, 70, thread=555)
    trace.launch(GEMM, 50, thread=MAIN)
    trace.launch(ADD, 60, thread=555)
    found = align(trace, tmp_path)
    assert found.texts("layer") == ["1", "8"]
    assert found.texts("operation") == ["mlp_up", "attn_op"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("ffn_up", "mlp_up"),
        ("fc_n", "mlp_n"),
        ("attn_sdpa", "attn_fa"),
        ("ra", "attn_ra"),
        ("f_q_ip", "q_ip"),
        ("b_q_ip", "q_ip"),
        ("Optimizer.step#AdamW.step", "opt_step"),
        ("Optimizer.zero_grad#AdamW.zero_grad", "opt_zg"),
        ("b_ga", "b_ga"),
        ("opt_gc", "opt_gc"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "dl"),
    ],
)
def test_operations_have_one_name_whatever_the_trace_writes(
    tmp_path: Path, written: str, shown: str
) -> None:
    trace = TinyTrace()
    trace.note(written, 0, 100)
    trace.launch(ADD, 20)
    assert align(trace, tmp_path).texts("operation") == [shown]


def test_a_custom_backward_isn_t_named_after_what_ran_before_its_forward(tmp_path: Path) -> None:
    """All operators before a custom function's forward have its sequence number."""
    tiny = TinyTrace()
    node = "torch::autograd::CppNode<fbgemm::SplitLookup_Op>"
    tiny.op("aten::to", 0, 10, **{"Sequence number": 5, "Fwd thread id": 0})
    tiny.launch(ADD, 1)
    given = {"Sequence number": 5, "Fwd thread id": 1}
    tiny.op(f"{EVALUATE}{node}", 100, 150, AUTOGRAD, **given)
    tiny.op(node, 101, 149, AUTOGRAD, **given)
    tiny.launch(ADD, 110, thread=AUTOGRAD)
    assert align(tiny, tmp_path).texts("operation") == ["to", "SplitLookup_Op"]


@pytest.mark.parametrize("container", ["GraphModule", "CompiledFxGraph", "CUDAGraphWrapper"])
def test_compiled_code_is_split_by_what_its_kernels_say(tmp_path: Path, container: str) -> None:
    """A container is no operation: Triton's names list their operators, others have a class."""
    tiny = TinyTrace()
    tiny.module(f"{container}_0", 0, 100)
    tiny.note(f"## Call {container} fq2x ##", 1, 99)
    tiny.op(f"## Call {container} fq2x ##", 2, 98)
    for at, name in (
        (10, GEMM),
        (20, "triton_poi_fused_add_mul_silu_7"),
        (30, "triton_red_fused_3"),
    ):
        tiny.launch(name, at)
    found = align(tiny, tmp_path)
    assert found.texts("operation") == ["gemm", "add_mul_silu", "reduction"]
    assert {each.rules["operation_rule"] for each in found.activities} == {Rule.KERNEL_NAME}
