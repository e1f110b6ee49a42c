"""Layers by repetition: steps built kernel by kernel with the layer of each, and what has none."""

from __future__ import annotations

import numpy as np
import pytest

from chopper_core.align.repeats import OPERATIONS, OUTSIDE, UNKNOWN, Role, layers_of, operations_of

ROLES = {"n": Role.NORM, "g": Role.PRODUCT, "a": Role.ATTENTION}
"""The first letter of a kernel's name says its role."""

DENSE = "n1 g1 rope kv a1 g2 n1 g3 silu g4"
WITH_QK_NORM = "n1 g1 n2 n2 rope kv a1 g2 n1 g3 silu g4"
SPLIT = "n1 g1 g2 g3 a1 a2 g4 plus n1 g5 g6 mul g7 plus"
MOE = "n1 g1 rope a1 g2 n1 g3 top route g4 g5 sum"
GLOBAL = "n1 g1 rope a3 areduce g2 n1 g3 top route g4 g5 sum"
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
    # A step that the profiler cut isn't like the others, and nothing shows where its layers are.
    assert set(found(names * 4 + names[:90], one_step=False)) == {UNKNOWN}


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
