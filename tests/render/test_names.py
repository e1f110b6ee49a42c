"""Kernel names side by side: told apart, folded, nothing invented."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.render.cells import cell_width, first_cells
from chopper_core.render.glyphs import ASCII, UNICODE, Glyphs
from chopper_core.render.names import FOLDED, display_names, fitting_names
from chopper_core.util.escape import NARROW

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


def test_a_symbol_is_its_names_and_numbers() -> None:
    norms = [
        f"_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi{size}ELb0EEEvPT0_PT_i"
        for size in (64, 256)
    ]
    entry = "_ZN7ck_tile6kentryILi2ENS_17FmhaPrefillKernelINS_5ShapeILi8EEEEEEEvT_"
    assert names(*norms, entry) == (
        "aiter::add_rmsnorm_quant_kernel<…, 64, …>",
        "aiter::add_rmsnorm_quant_kernel<…, 256, …>",
        "FmhaPrefillKernel<2, FmhaPrefillKernel, Shape, 8>",
    )
    assert names("_Z5scalePf", "_Z", "_ZN") == ("scale", "_Z", "_ZN")
    whole = "void ck_tile::kentry<256, 1, ck_tile::FmhaFwdKernel<ck_tile::bf16_t> >(Args)"
    assert names(whole) == ("FmhaFwdKernel<bf16_t>",)


def test_a_template_alone_is_whole() -> None:
    assert names("indexing_backward_kernel<float, 4>", "other<int>") == (
        "indexing_backward_kernel<float, 4>",
        "other<int>",
    )


def test_tensile_is_its_tile_and_layout_and_what_differs() -> None:
    head = "MT256x256x64 TN"
    assert names(TENSILE.format(1, 3)) == (head,)
    assert names(TENSILE.format(1, 3), TENSILE.format(2, 3)) == (
        f"{head} PLR1",
        f"{head} PLR2",
    )
    other = TENSILE.format(1, 3).replace("Alik_Bljk", "Ailk_Bjlk")
    assert names(TENSILE.format(1, 3), other) == (head, "MT256x256x64 NT")
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


LAMBDA = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{0}_kernel_cuda"
    "(at::TensorIteratorBase&)::{{lambda()#2}}::operator()() const::{{lambda()#{1}}}::operator()() "
    "const::{{lambda({2})#1}}, at::detail::Array<char*, 2> >(int, at::native::{0}_kernel_cuda)"
)


def test_of_lambdas_in_lambdas_the_function_and_the_type_stay() -> None:
    assert names(LAMBDA.format("sqrt", 2, "float"), LAMBDA.format("log", 2, "float")) == (
        "vectorized_elementwise_kernel<…, sqrt_kernel_cuda::{lambda(float)#1}, …>",
        "vectorized_elementwise_kernel<…, log_kernel_cuda::{lambda(float)#1}, …>",
    )
    same = LAMBDA.format("log", 2, "float"), LAMBDA.format("log", 7, "float")
    assert names(*same) == same


def test_what_tells_names_apart_stays_when_they_are_cut() -> None:
    long = names(*(LAMBDA.format(what, 2, "float") for what in ("sqrt", "sigmoid", "exp")))
    assert fitting_names((*long, "gemm"), 30, UNICODE) == (
        "vectorized…sqrt_kernel_cuda::…",
        "vectorized…sigmoid_kernel_cud…",
        "vectorized…exp_kernel_cuda::{…",
        "gemm",
    )
    typed = names(*(LAMBDA.format("log", 2, of) for of in ("float", "double")))
    assert fitting_names(typed, 20, ASCII) == ("vector~float)#1}, …>", "vector~double)#1}, ~")
    nested = "FmhaBwdKernel<BlockFmhaBwd<Pipeline<Float16, true> > >"
    assert fitting_names((nested,), 20, UNICODE) == ("FmhaBwdKerne…6, true",)
    assert fitting_names(typed[:1] * 2, 20, UNICODE) == ("vectorized_e…#1}, …>",) * 2


@pytest.mark.parametrize("width", [*range(8, 20), 30, 40, 60])
def test_wide_characters_are_told_apart_too(width: int) -> None:
    head, tail = "前向传播注意力机制计算" * 3, "合并输出张量写回显存" * 3
    shown = fitting_names((f"{head}一{tail}", f"{head}二{tail}"), width, UNICODE)
    assert "一" in shown[0] and "二" in shown[1]
    assert all(cell_width(text) <= width for text in shown)


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


@given(
    st.builds(
        lambda head, tail, middles: [head + middle + tail for middle in middles],
        st.text("a_<é漢", max_size=30),
        st.text("b <é字", max_size=30),
        st.lists(st.text("ab_<é漢\u0301", max_size=12), min_size=1, max_size=8),
    ),
    st.integers(0, 40),
    st.sampled_from([ASCII, UNICODE]),
)
def test_cut_names_have_their_width_and_differ_where_they_can(
    labels: list[str], width: int, glyphs: Glyphs
) -> None:
    shown = fitting_names(tuple(labels), width, glyphs)
    assert all(cell_width(text) <= width for text in shown)
    for label, text in zip(labels, shown, strict=True):
        assert text == label or cell_width(label) > width
    if width >= 20:
        assert len(set(shown)) == len(set(labels))


def test_text_called_narrow_takes_a_cell_for_each_character() -> None:
    wcwidth = pytest.importorskip("wcwidth").wcwidth
    narrow = [chr(code) for code in range(0x3000) if NARROW.fullmatch(chr(code))]
    assert len(narrow) > 1500
    assert {wcwidth(char) for char in narrow if char.isprintable()} == {1}


@pytest.mark.parametrize("text", ["☁️x", "e\u0301x", "👨\u200d👩\u200d👧x", "一二x", "🇩🇪x"])
def test_a_character_and_what_combines_with_it_are_never_parted(text: str) -> None:
    whole = text[:-1] if text[0] != "一" else "一"
    assert first_cells(text, cell_width(whole)) == whole
    assert first_cells(text, cell_width(whole) - 1) == ""


def test_names_of_a_sweep_stay_distinct_in_a_narrow_column() -> None:
    names = tuple(
        f"llama3-70b_tp{tp}_pp{pp}_dp{32 // tp // pp}_mb{mb}"
        for tp in (2, 4, 8)
        for pp in (1, 2, 4)
        for mb in (1, 2, 4, 8)
    )
    shown = fitting_names((*names, "a100"), 18, UNICODE)
    assert shown[0] == "…tp2_pp1_dp16_mb1"
    assert shown[-1] == "a100"
    assert len(set(shown)) == len(shown)
    assert all(cell_width(name) <= 18 for name in shown)
