"""Layers by repetition: steps built kernel by kernel with the layer of each, and what has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chopper_core.align.repeats import OPERATIONS, OUTSIDE, UNKNOWN, Role, layers_of, operations_of
from chopper_core.model.table import NO_LABEL, Rule
from tests.align.traces import TinyTrace, align

ROLES = {
    "n": Role.NORM,
    "g": Role.PRODUCT,
    "a": Role.ATTENTION,
    "t": Role.TANH,
    "e": Role.EMBEDDING,
}
"""The first letter of a kernel's name says its role."""

DENSE = "n1 g1 rope kv a1 g2 n1 g3 silu g4"
WITH_QK_NORM = "n1 g1 n2 n2 rope kv a1 g2 n1 g3 silu g4"
SPLIT = "n1 g1 g2 g3 a1 a2 g4 plus n1 g5 g6 mul g7 plus"
MOE = "n1 g1 rope a1 g2 n1 g3 top route g4 g5 sum"
GLOBAL = "n1 g1 rope a3 areduce g2 n1 g3 top route g4 g5 sum"
POST_NORM = "g1 rope a1 g2 plus n1 g3 gelu g4 plus n2"
LINEAR = "n1 g1 conv a5 n3 g2 plus n1 g3 silu g4 plus"
"""Linear attention, with a norm of its own after it; FULL attends as usual, to another depth."""
FULL = "n1 g1 g1 rope a1 g2 plus n1 g3 silu g4 plus"
HYBRID = [LINEAR, LINEAR, LINEAR, FULL]
HEAD, TAIL = "embed", "n1 g9 max"


def place(*parts: tuple[int, str]) -> tuple[list[str], list[int]]:
    names, layers = [], []
    for layer, text in parts:
        names += text.split()
        layers += [layer] * len(text.split())
    return names, layers


def found(names: list[str], *, one_step: bool = True) -> list[int]:
    role = np.array([ROLES.get(name[0], Role.OTHER) for name in names], np.intp)
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    kernel = np.array([codes[name] for name in names], np.int32)
    return layers_of(role, kernel, one_step=one_step).tolist()


def step(*layers: str) -> tuple[list[str], list[int]]:
    return place((OUTSIDE, HEAD), *enumerate(layers), (OUTSIDE, TAIL))


@pytest.mark.parametrize("layer", [DENSE, WITH_QK_NORM, SPLIT, MOE])
@pytest.mark.parametrize("count", [8, 24, 48])
def test_layers_begin_at_their_norm(layer: str, count: int) -> None:
    names, expected = step(*[layer] * count)
    assert found(names) == expected


def test_layers_of_two_kinds_may_alternate() -> None:
    names, expected = step(*[MOE, GLOBAL] * 12)
    assert found(names) == expected


@pytest.mark.parametrize("count", [8, 24])
@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("tail", ["n9 g9 loss", "pool g9 loss"])
def test_layers_may_end_with_their_norm(count: int, passes: int, tail: str) -> None:
    layers = enumerate([POST_NORM] * count)
    names, expected = place((OUTSIDE, "embed g7 plus"), *layers, (OUTSIDE, tail))
    for one_step in (True, False):
        assert found(names * passes, one_step=one_step) == expected * passes


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("kinds", [HYBRID, HYBRID[::-1], [LINEAR, FULL], [FULL, LINEAR, LINEAR]])
def test_layers_of_one_model_may_attend_in_two_ways(kinds: list[str], passes: int) -> None:
    names, expected = step(*kinds * 6)
    assert found(names * passes) == expected * passes


@pytest.mark.parametrize("layers", [[POST_NORM] * 24, HYBRID * 6])
@pytest.mark.parametrize("changed", range(24))
@pytest.mark.parametrize("more", [" x", " g8", " n3"])
def test_an_irregular_layer_of_these_leaves_no_wrong_label(
    layers: list[str], changed: int, more: str
) -> None:
    for other in (layers[changed] + more, layers[changed].replace("g2", f"g2{more}")):
        names, expected = step(*layers[:changed], other, *layers[changed + 1 :])
        got = found(names)
        pairs = zip(got, expected, strict=True)
        assert all(label in (true, OUTSIDE, UNKNOWN) for label, true in pairs)


def test_the_first_layer_may_lack_a_kernel() -> None:
    names, expected = step(MOE.replace("rope ", ""), *[MOE] * 23)
    assert found(names) == expected


def test_backward_runs_the_layers_from_the_last_to_the_first() -> None:
    """Turned around, it begins with the norm of the first layer, whose gradients take two."""
    layer = "g8 g7 xgelu g6 g5 n3 n4 g4 g3 a5 a6 g2 g1 n3 n4"
    names, expected = place(
        (OUTSIDE, "loss g9 n3 n4"),
        *((number, layer) for number in reversed(range(24))),
        (OUTSIDE, "embed"),
    )
    assert found(names[::-1]) == expected[::-1]


def test_steps_without_a_mark_start_again_at_layer_0() -> None:
    names, expected = step(*[DENSE] * 24)
    assert found(names * 5, one_step=False) == expected * 5


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_the_profiler_may_cut_the_last_pass(passes: int) -> None:
    """It begins like the others; what begins otherwise, or has no beginning, says nothing."""
    names, expected = step(*[DENSE] * 24)
    for cut in (40, 90, 201):
        rest = names[:cut]
        assert (
            found(names * passes + rest, one_step=False)
            == (expected * (passes + 1))[: passes * len(names) + cut]
        )
        for other in (["x", *rest[1:]], [*rest[:30], "x", *rest[31:]]):
            assert set(found(names * passes + other, one_step=False)) == {UNKNOWN}


@pytest.mark.parametrize("layer", [DENSE, WITH_QK_NORM, SPLIT, MOE, POST_NORM])
@pytest.mark.parametrize("passes", [2, 3])
def test_the_profiler_may_cut_the_first_pass(layer: str, passes: int) -> None:
    """It ends like the others; where it doesn't, nothing has a wrong layer."""
    around = ("embed g7", "n9 g9 loss") if layer == POST_NORM else (HEAD, TAIL)
    layers = enumerate([layer] * 24)
    names, expected = place((OUTSIDE, around[0]), *layers, (OUTSIDE, around[1]))
    for begin in (5, 61, 118, len(names) - 2):
        for end in (0, 33):
            rows, truth = (each * (passes + 1) for each in (names, expected))
            rows, truth = rows[begin : len(rows) - end], truth[begin : len(truth) - end]
            assert found(rows, one_step=False) == truth
            rows[(len(names) - begin) // 2] = "x"
            pairs = zip(found(rows, one_step=False), truth, strict=True)
            assert all(label in (true, UNKNOWN) for label, true in pairs)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("norm", ["n9", "plus n2"])
@pytest.mark.parametrize("head", ["g9 tanh", "g9 tanh g8", "g9 gelu n2 g8 loss"])
def test_layers_after_the_norm_of_an_embedding_end_with_theirs(
    head: str, norm: str, passes: int
) -> None:
    """BERT: its pooler or the norm in its head tells it from layers that begin with a norm."""
    names, expected = place(
        (OUTSIDE, f"embed embed {norm}"), *enumerate([POST_NORM] * 12), (OUTSIDE, head)
    )
    assert found(names * passes, one_step=passes == 1) == expected * passes


@pytest.mark.parametrize("passes", [1, 3])
def test_a_tanh_of_logits_or_of_an_image_is_no_sign_of_such_layers(passes: int) -> None:
    for first, tail in (("embed", "n1 g9 div tanh mul"), ("patches", "n1 g9 tanh")):
        names, expected = place((OUTSIDE, first), *enumerate([DENSE] * 12), (OUTSIDE, tail))
        assert found(names * passes) == expected * passes


def test_the_types_of_quantized_weights_don_t_tell_layers_apart(tmp_path: Path) -> None:
    """llama.cpp keeps every other layer in a finer type; another program ran minutes before."""
    trace = TinyTrace()
    for place, number in enumerate([0, 0, *range(12), 0]):
        kind = number % 2 + 12
        product = f"void mul_mat_q<(ggml_type){kind}, 128, false>(char const*)"
        names = [KERNELS["n"], product, KERNELS["a"], product, KERNELS["n"], product, product]
        for at, name in enumerate(names if place < 14 else [KERNELS["e"], product]):
            trace.gpu(name, place * 100 + at * 10 + (100_000_000 if place > 1 else 0))
    layer = align(trace, tmp_path).texts("layer")
    assert (
        layer == ["none"] * 14 + [str(each) for each in range(12) for _ in range(7)] + ["none"] * 2
    )


def test_what_does_not_repeat_has_no_layers() -> None:
    too_few, _ = step(*[DENSE] * 7)
    no_norm = " ".join([DENSE.replace("n1", "mean")] * 24).split()
    no_attention = " ".join(["n1 g1 relu"] * 24).split()
    all_differ, _ = step(*[f"{DENSE} x{number}" for number in range(24)])
    cross = "n1 g1 a1 g2 n1 g3 a1 g4 n1 g5 g6"
    two_attentions, _ = step(*[cross] * 12)
    for names in (too_few, no_norm, no_attention, all_differ, two_attentions, [], ["a1"] * 30):
        assert set(found(names)) <= {UNKNOWN}


def operations(names: list[str]) -> list[str]:
    role = np.array([ROLES.get(name[0], Role.OTHER) for name in names], np.intp)
    layer = np.array(found(names), np.intp)
    return [OPERATIONS[code] for code in operations_of(role, layer).tolist()]


def test_the_place_in_a_layer_names_what_surrounds_its_attention() -> None:
    names, _ = step(*[WITH_QK_NORM] * 24)
    # n1 g1 n2 n2 rope kv a1 g2 n1 g3 silu g4: further norms and products have no sure name.
    layer = ["attn_n", "qkv_ip", "", "", "", "", "attn_fa", "attn_op", "mlp_n", "", "", ""]
    assert operations(names) == ["", *layer * 24, "", "", ""]


def test_products_whose_place_is_open_have_no_name() -> None:
    """Three projections can't be told apart; without a second norm any product may follow first."""
    names, _ = step(*["n1 g1 g2 g3 a1 g4 g5 xgelu g6"] * 24)
    layer = ["attn_n", "", "", "", "attn_fa", "", "", "", ""]
    assert operations(names) == ["", *layer * 24, "", "", ""]


@pytest.mark.parametrize("one_step", [True, False])
@pytest.mark.parametrize("passes", [2, 3, 16])
@pytest.mark.parametrize("layers", [8, 24])
def test_each_microbatch_has_the_same_layers(layers: int, passes: int, one_step: bool) -> None:
    names, expected = step(*[DENSE] * layers)
    assert found(names * passes, one_step=one_step) == expected * passes
    backward, numbers = names[::-1], expected[::-1]
    again = found((backward * passes)[::-1], one_step=one_step)
    assert again == (numbers * passes)[::-1]


@pytest.mark.parametrize("passes", [1, 2, 3, 4, 32])
@pytest.mark.parametrize("layers", [0, 1, 2, 4, 6, 7])
def test_passes_of_few_layers_are_no_layers(layers: int, passes: int) -> None:
    """Nor is the last layer of a pass, with the head and the embedding after it, another kind."""
    for head, tail in ((HEAD, TAIL), ("", TAIL), (HEAD, ""), ("", ""), (HEAD, "n1 g9 max loss")):
        names, _ = place((OUTSIDE, head), *enumerate([DENSE] * layers), (OUTSIDE, tail))
        for cut in (0, 3, 20, 41):
            for rows in (names * passes, (names * passes)[cut:], names * passes + names[:cut]):
                for one_step in (True, False):
                    assert set(found(rows, one_step=one_step)) <= {UNKNOWN}


@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize(
    "irregular", [f"{DENSE} x", f"{DENSE} g8", DENSE.replace("g2", "g2 x"), DENSE.replace("kv", "")]
)
def test_an_irregular_layer_leaves_no_label_or_the_right_one(irregular: str, passes: int) -> None:
    for place_of_it in range(23):
        layers = [DENSE] * 24
        layers[place_of_it] = irregular
        names, expected = step(*layers)
        for one_step in (True, False):
            got = found(names * passes, one_step=one_step)
            assert set(got) == {UNKNOWN} or got == expected * passes
            assert set(got) == {UNKNOWN} or place_of_it == 0


def test_layers_without_an_end_are_not_counted() -> None:
    """A stage of a pipeline, and what the profiler cut, may have more layers or several passes."""
    names, _ = place((OUTSIDE, HEAD), *enumerate([DENSE] * 24))
    for rows in (names, names[1:], [*names, "x"], names + names[1:4], names + names[1:9]):
        for one_step in (True, False):
            assert set(found(rows, one_step=one_step)) == {UNKNOWN}


KERNELS = {
    "n": "rms_norm_kernel", "g": "Cijk_gemm", "h": "Cijk_head_gemm", "a": "flash_fwd_kernel",
    "b": "flash_bwd_kernel", "m": "rms_norm_backward_kernel", "s": "silu_kernel",
    "e": "embedding_kernel", "l": "nll_loss_kernel", "p": "ncclDevKernel_SendRecv",
    "o": "multi_tensor_apply_kernel<FusedAdamMathFunctor>",
}  # fmt: skip
FORWARD, BACKWARD = "n g a g n g s g", "g g s g g m g g b g g m"
"""Backward has two products for each of forward, for the inputs and for the weights."""
Part = tuple[int, str]


def forward_of(layers: int) -> list[Part]:
    return [(-1, "e"), *((number, FORWARD) for number in range(layers)), (-1, "n h l")]


def backward_of(layers: int, again: str = "") -> list[Part]:
    numbers = reversed(range(layers))
    return [(-1, "l h h m"), *((each, f"{again} {BACKWARD}") for each in numbers), (-1, "e")]


def labelled(folder: Path, *passes: tuple[str, list[Part]]) -> list[tuple[str, int, int]]:
    """Phase, true layer and found layer of each kernel of two steps; -1 where there is none."""
    trace, at = TinyTrace(), 10
    truth: list[tuple[str, int]] = []
    for number in range(2):
        begin = at
        for phase, parts in passes:
            since = at
            for layer, text in parts:
                for letter in text.split():
                    trace.launch(KERNELS[letter], at + 2)
                    truth.append((phase, layer))
                    at += 10
            trace.note(phase, since, at)
        trace.note(f"ProfilerStep#{number}", begin - 1, at + 1)
        at += 10
    found = align(trace, folder)
    rules = {each.rules["layer_rule"] for each in found.activities}
    assert rules <= {Rule.REPETITION, Rule.NONE}
    pairs = zip(truth, found.texts("layer"), strict=True)
    return [(*true, int(text) if text.isdigit() else NO_LABEL) for true, text in pairs]


STEP = ("optimizer_step", [(-1, "o " * 24)])


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("again", ["", FORWARD])
@pytest.mark.parametrize("microbatches", [1, 2, 3])
def test_training_labels_forward_and_never_a_wrong_layer(
    tmp_path: Path, microbatches: int, again: str, together: bool
) -> None:
    """Microbatches follow each other, or all forwards precede the backwards; with recompute too."""
    forward, backward = ("forward", forward_of(12)), ("backward", backward_of(12, again))
    passes = [forward, backward] * microbatches
    got = labelled(tmp_path, *(sorted(passes, reverse=True) if together else passes), STEP)
    assert all(layer == true for phase, true, layer in got if phase == "forward")
    assert all(layer == -1 for phase, _, layer in got if phase == "optimizer_step")
    assert all(layer in (true, -1) for _, true, layer in got)


FALSE = {
    "few layers, accumulated": [("forward", forward_of(4)), ("backward", backward_of(4))] * 4,
    "no layers, accumulated": [("forward", [(-1, "e n g a g n g s g n h l")])] * 24,
    "decoded tokens": [("decode", [(-1, "e n g a g n g s g n h")])] * 32,
    "forwards of two models": [("forward", forward_of(9)), ("decode", forward_of(12))],
    "a stage of a pipeline": [
        ("forward", [(number, f"{'p' * (number == 0)} {FORWARD}") for number in range(8)])
    ]
    * 3,
    "the last stage of a pipeline": [("forward", [(-1, "p"), *forward_of(8)[1:]])] * 3,
}


@pytest.mark.parametrize("name", FALSE)
def test_other_repeats_are_no_layers(tmp_path: Path, name: str) -> None:
    assert {layer for _, _, layer in labelled(tmp_path, *FALSE[name], STEP)} == {-1}
