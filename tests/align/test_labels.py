"""Our labels against the generator's own, activity by activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from chopper_core.model.table import Kind, Rule
from tests.align.generated import (
    LEVELS,
    SMALL,
    VARIANTS,
    Activity,
    Generated,
    activity_rows,
)
from tests.align.traces import TinyTrace, align

Make = Callable[[str], Generated]

WITH_ANNOTATIONS = ("annotated", "recompute")
WITHOUT = ("bare", "bare recompute")
PRODUCTS = frozenset(("q_ip", "k_ip", "v_ip", "attn_op", "mlp_gp", "mlp_up", "mlp_dp"))
ATTENTION = "attn_fa"
KERNEL_CLASSES = frozenset(
    ("norm", "softmax", "elementwise", "gemm", "copy", "collective", "attention", "reduction",
     "embedding")
)  # fmt: skip


def wrong(activities: Iterable[Activity], level: str) -> list[str]:
    return [each.says(level) for each in activities if not each.is_right(level)]


def share_right(activities: list[Activity], level: str) -> float:
    assert activities
    return sum(each.is_right(level) for each in activities) / len(activities)


def compute(activities: Iterable[Activity]) -> list[Activity]:
    """What the model and the optimizer compute: FSDP's own copies are no part of it."""
    return [each for each in activities if each.kind == Kind.COMPUTE and not each.is_fsdp_copy]


@pytest.mark.sweep
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_activity_is_in_the_table_once(generated: Make, variant: str) -> None:
    made = generated(variant)
    assert len(activity_rows(made.run.table)) == len(made.activities) > 1500
    events = [source.events for source in made.run.sources]
    in_files = sum(
        counts.get(category, 0)
        for counts in events
        for category in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    assert in_files == len(activity_rows(made.run.table))


@pytest.mark.few(1)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("variant", WITH_ANNOTATIONS)
def test_launched_activities_of_complete_iterations_have_the_true_labels(
    generated: Make, variant: str, level: str
) -> None:
    launched = generated(variant).of(cut=False, linked=True)
    # The value that the host reads back lies in no operation of the model.
    nameless = [each for each in launched if each.truth["operation"] is None]
    assert [each.ours["operation"] for each in nameless] == ["item"]
    known = [each for each in launched if each not in nameless or level != "operation"]
    assert not wrong(known, level)
    assert len(known) > 1000
    assert share_right(launched, level) >= 0.999 - (level == "operation") / len(launched)


@pytest.mark.few(1)
@pytest.mark.parametrize("variant", VARIANTS)
def test_launched_activities_of_the_cut_iteration_have_the_true_place(
    generated: Make, variant: str
) -> None:
    launched = generated(variant).of(cut=True, linked=True)
    assert len(launched) > 200
    for level in ("iteration", "layer"):
        assert not wrong(launched, level), level
    # Outside of steps nothing has a place in the order of one.
    unsure = [each for each in launched if each.ours["phase"] == "none"]
    assert not wrong([each for each in launched if each not in unsure], "phase")
    assert {each.truth["operation"] for each in unsure} <= {"opt_gc", "all_reduce"}
    assert not generated(variant).run.cut_iterations


@pytest.mark.few(1)
@pytest.mark.parametrize("variant", WITH_ANNOTATIONS)
def test_backward_of_the_cut_iteration_has_the_true_operation_or_the_framework_s_name(
    generated: Make, variant: str
) -> None:
    """Its forward is not in the file: only other iterations can tell the model's word."""
    launched = generated(variant).of(cut=True, linked=True)
    unsure = [each for each in launched if not each.is_right("operation")]
    assert {each.truth["phase"] for each in unsure} <= {"backward"}
    for each in unsure:
        assert each.rules["operation"] == Rule.HOST_OPERATOR, each.says("operation")
    assert share_right(launched, "operation") > 0.9


@pytest.mark.few(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_activities_without_a_launch_have_the_true_iteration_and_phase(
    generated: Make, variant: str
) -> None:
    lost = generated(variant).of(linked=False)
    assert len(lost) > 100
    for level in ("iteration", "phase"):
        assert not wrong(lost, level), level


@pytest.mark.parametrize("variant", VARIANTS)
def test_activities_without_a_launch_have_the_true_layer_or_none(
    generated: Make, variant: str
) -> None:
    lost = generated(variant).of(linked=False)
    for each in lost:
        assert each.ours["layer"] in (each.truth["layer"], None), each.says("layer")
    planted = [each for each in lost if not each.is_cut]
    assert len(planted) == 10 * SMALL["ranks"]
    assert share_right(planted, "layer") >= 0.9


@pytest.mark.parametrize("variant", WITH_ANNOTATIONS)
def test_activities_without_a_launch_have_the_true_operation_or_the_class_of_their_kernel(
    generated: Make, variant: str
) -> None:
    lost = generated(variant).of(linked=False)
    for each in lost:
        if not each.is_right("operation"):
            assert each.rules["operation"] == Rule.KERNEL_NAME, each.says("operation")
            assert each.ours["operation"] in KERNEL_CLASSES, each.says("operation")
    assert share_right([each for each in lost if not each.is_cut], "operation") >= 0.9


@pytest.mark.parametrize("variant", VARIANTS)
def test_work_of_fsdp_has_the_layer_that_it_serves_not_the_one_it_runs_in(
    generated: Make, variant: str
) -> None:
    made = generated(variant)
    layers = [None, *range(SMALL["layers"])]
    found: Counter[tuple[str, str, int | None]] = Counter(
        (each.ours["phase"], each.ours["operation"], each.ours["layer"])
        for each in made.of(cut=False, linked=True)
        if each.rank == 0 and each.ours["iteration"] == 11
        if each.ours["operation"].startswith("FSDP::") or each.kind == Kind.COMM
    )
    expected = {
        (phase, name, layer): 1
        for phase, gathered in (("forward", layers), ("backward", layers[1:]))
        for name in ("FSDP::all_gather_copy_in", "all_gather", "FSDP::all_gather_copy_out")
        for layer in gathered
    }
    for name in ("FSDP::post_backward_reduce", "reduce_scatter"):
        expected |= {("backward", name, layer): 1 for layer in layers}
    expected["optimizer", "all_reduce", None] = 1
    # An activity without a launch may lack its layer; nothing else differs.
    lost = [
        each
        for each in made.of(cut=False, linked=False)
        if each.rank == 0 and each.ours["iteration"] == 11 and each.is_fsdp_copy
    ]
    for each in lost:
        found[each.ours["phase"], each.ours["operation"], each.ours["layer"]] += 1
    assert found == expected


def test_an_all_gather_launched_in_one_layer_for_the_next_is_the_next_one_s(
    generated: Make,
) -> None:
    """The prefetch for layer 2 is launched inside `Layer1`, by an annotation in the file."""
    made = generated("annotated")
    gathers = [
        each
        for each in made.of(cut=False, linked=True)
        if each.truth["phase"] == "forward" and each.truth["operation"] == "all_gather"
    ]
    assert {each.ours["layer"] for each in gathers} == {None, 0, 1, 2, 3}
    of_layers = [each for each in gathers if each.ours["layer"] is not None]
    assert {each.rules["layer"] for each in of_layers} == {Rule.FSDP}


@pytest.mark.parametrize("variant", ["recompute", "bare recompute"])
def test_recomputed_work_is_backward_and_its_operation_is_marked(
    generated: Make, variant: str
) -> None:
    activities = generated(variant).activities
    again = [each for each in activities if each.recompute and each.linked]
    assert len(again) > 100
    for each in again:
        assert each.ours["phase"] == "backward"
        assert each.ours["operation"].endswith(" (recompute)"), each.says("operation")
    for each in activities:
        if not each.recompute:
            assert not each.ours["operation"].endswith("(recompute)"), each.says("operation")


@pytest.mark.parametrize("variant", WITH_ANNOTATIONS)
def test_the_region_around_backward_is_backward_on_the_main_thread_too(
    generated: Make, variant: str
) -> None:
    regions = [each for each in generated(variant).activities if each.truth["operation"] == "l"]
    assert len(regions) == SMALL["ranks"] * SMALL["iterations"]
    assert {(each.ours["operation"], each.ours["phase"]) for each in regions} == {("l", "backward")}


@pytest.mark.parametrize("variant", WITHOUT)
def test_without_annotations_layers_of_compute_are_right(generated: Make, variant: str) -> None:
    activities = compute(generated(variant).of(cut=False))
    assert len(activities) > 1000
    assert share_right(activities, "layer") >= 0.99, wrong(activities, "layer")


@pytest.mark.parametrize("variant", WITHOUT)
def test_without_annotations_phases_of_compute_are_right(generated: Make, variant: str) -> None:
    activities = compute(generated(variant).of(cut=False))
    assert share_right(activities, "phase") >= 0.99, wrong(activities, "phase")


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("variant", WITHOUT)
def test_without_annotations_products_and_attention_have_the_true_operation(
    generated: Make, variant: str, phase: str
) -> None:
    activities = [
        each
        for each in compute(generated(variant).of(cut=False))
        if each.truth["operation"] in PRODUCTS | {ATTENTION}
        if each.truth["phase"] == phase and not each.recompute
    ]
    named = {each.truth["operation"] for each in activities}
    assert named == PRODUCTS | {ATTENTION}
    for operation in named:
        own = [each for each in activities if each.truth["operation"] == operation]
        assert share_right(own, "operation") >= 0.95, wrong(own, "operation")


def test_without_annotations_recomputed_products_and_attention_have_the_true_operation(
    generated: Make,
) -> None:
    activities = [
        each
        for each in compute(generated("bare recompute").of(cut=False))
        if each.recompute and each.truth["operation"] in PRODUCTS | {ATTENTION}
    ]
    assert len(activities) > 100
    assert share_right(activities, "operation") >= 0.95, wrong(activities, "operation")


@pytest.mark.parametrize("variant", WITHOUT)
def test_without_annotations_nothing_is_called_after_another_operation_of_the_model(
    generated: Make, variant: str
) -> None:
    """A framework's name (`add`, `silu`) is a fallback; a wrong word of the model is an error."""
    made = generated(variant)
    vocabulary = {str(each.truth["operation"]) for each in made.activities}
    for each in made.activities:
        given = each.ours["operation"].removesuffix(" (recompute)")
        if given in vocabulary:
            assert given == each.truth["operation"], each.says("operation")


def test_every_phase_is_one_that_the_truth_has(generated: Make) -> None:
    for variant in VARIANTS:
        phases = {each.ours["phase"] for each in generated(variant).of(cut=False)}
        assert phases == {"forward", "backward", "optimizer", "data"}, variant


@pytest.mark.parametrize("late", [0, 3, 31, -40])
def test_an_operator_is_the_one_with_the_same_external_id(tmp_path: Path, late: int) -> None:
    """HIP calls are stamped by another clock: in the next operator, or outside any."""
    trace = TinyTrace()
    trace.note("ProfilerStep#3", 0, 400)
    for at, name in ((50, "aten::mm"), (65, "aten::silu"), (80, "aten::mm")):
        operator = trace.op(name, at, at + 12)
        trace.launch(
            f"kernel_of_{name[6:]}", at + 2 + late, start=at + 100,
            external_id=operator["args"]["External id"],
        )  # fmt: skip
    assert align(trace, tmp_path).texts("operation") == ["mm", "silu", "mm"]
