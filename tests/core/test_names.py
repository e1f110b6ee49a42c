"""Kernel names side by side: told apart, folded, nothing invented."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.render.names import FOLDED, display_names

TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_MT256x256x64_MI16x16x1_SN_GRVWA8_PGR2_PLR{0}_SK{1}"
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{0}, std::array<char*, {1}ul> >"
    "(int, at::native::{0}, std::array<char*, {1}ul>)"
)


def names(*labels: str) -> tuple[str, ...]:
    return display_names(labels, "kernel")


def test_what_templates_share_is_folded() -> None:
    assert names(
        ELEMENTWISE.format("FillFunctor<float>", 1), ELEMENTWISE.format("FillFunctor<int>", 1)
    ) == (
        "vectorized_elementwise_kernel<…, FillFunctor<float>, …>",
        "vectorized_elementwise_kernel<…, FillFunctor<int>, …>",
    )


def test_a_template_alone_is_whole() -> None:
    assert names("indexing_backward_kernel<float, 4>", "other<int>") == (
        "indexing_backward_kernel<float, 4>",
        "other<int>",
    )


def test_tensile_keeps_layout_type_tile_and_the_difference() -> None:
    head = "Cijk_Alik_Bljk_BBS_BH_…_MT256x256x64_…"
    assert names(TENSILE.format(1, 3)) == (head,)
    assert names(TENSILE.format(1, 3), TENSILE.format(2, 3)) == (f"{head}_PLR1_…", f"{head}")
    assert len(set(names(*(TENSILE.format(a, b) for a in range(4) for b in range(4))))) == 16


@pytest.mark.parametrize(
    "label", ["a<b", "operator<", "<", "a<b>>c", "a<(b>c), d>", "x<{l>}>y", ""]
)
def test_names_that_are_no_templates_stay(label: str) -> None:
    assert names(label, label + "x")[0] == label


def test_overloads_show_their_parameters() -> None:
    assert names("f<int>(int)", "f<int>(long)", "g(int)") == ("f<int>(int)", "f<int>(long)", "g")


def test_other_levels_are_not_folded() -> None:
    assert display_names(("a<b, c>", "a<b, d>", "none"), "operation") == (
        "a<b, c>",
        "a<b, d>",
        "unlabelled",
    )


PIECES = st.sampled_from(
    ["a", "b<", "c", ">", ", ", "<", "(", ")", "Cijk_", "MT1x2x3", "_", "PLR1"]
)


@given(st.lists(st.lists(PIECES, max_size=12).map("".join), max_size=8, unique=True))
def test_they_are_told_apart_and_nothing_is_invented(labels: list[str]) -> None:
    shown = names(*labels)
    assert len(set(shown)) == len(labels)
    for label, name in zip(labels, shown, strict=True):
        words = set(re.findall(r"[^\W_]+", name)) - {FOLDED}
        assert words <= set(re.findall(r"[^\W_]+", label))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, unique=True))
def test_different_kernels_never_look_the_same(parameters: list[tuple[int, int]]) -> None:
    labels = [TENSILE.format(a, b) for a, b in parameters]
    labels += [f"void f<{a}, g<{b}, int>, long>(int)" for a, b in parameters]
    assert len(set(names(*labels))) == len(labels)
