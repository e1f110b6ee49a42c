"""Kernels that were renamed between two runs are paired by where they stand: a planted truth."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.table import Phase
from chopper_core.model.view import View
from chopper_core.render import render_frame as rendered
from chopper_core.render.cells import elide
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.support import Row, rows_of, run_of
from tests.tui.explorer import explorer, sample_run
from tests.wording import Wording

BEFORE = {"mlp": ("a", "b", "c"), "attn": ("d", "e"), "norm": ("n",)}
AFTER = {"mlp": ("x", "a", "b2", "c2"), "attn": ("d2", "e"), "norm": ("n",)}
RENAMED = {"b2": "b", "c2": "c", "d2": "d"}


def run_with(
    kernels: dict[str, Sequence[str]], gpus: int = 2, iterations: int = 2, layers: int = 3
) -> Run:
    rows, now = [], 0
    for gpu in range(gpus):
        for iteration in range(iterations):
            for layer in range(layers):
                for operation, names in kernels.items():
                    for place, name in enumerate(names):
                        took = 100 + 10 * place + layer
                        rows.append(
                            Row(
                                now,
                                took,
                                gpu=gpu,
                                iteration=iteration,
                                phase=Phase.FORWARD,
                                layer=layer,
                                operation=operation,
                                kernel=name,
                            )
                        )
                        now += took + 7
    return run_of(rows, name="after")


def compared(address: str, after: dict[str, Sequence[str]] = AFTER) -> Frame:
    base = run_with(BEFORE, gpus=1, iterations=3)
    run = replace(run_with(after), others={"before": base})
    return query(run, parse(address))


def pairs(frame: Frame) -> dict[str, str]:
    return {
        label: frame.partner(row) for row, label in enumerate(frame.labels) if frame.partner(row)
    }


@pytest.mark.parametrize(
    ("path", "renamed"),
    [
        ("?order=kernel&", RENAMED),
        (":gpu=1?order=gpu,kernel&", RENAMED),
        (":operation=mlp?order=operation,kernel&", {"b2": "b", "c2": "c"}),
        (":gpu=0/iteration=1/phase=forward/layer=2/operation=attn?", {"d2": "d"}),
        (":layer=1?order=layer,kernel&", RENAMED),
    ],
)
def test_the_planted_pairs_are_found(path: str, renamed: dict[str, str]) -> None:
    base = "before:gpu=0" if path.startswith(":gpu=1") else "before"
    frame = compared(f"after{path}base={base}&base=total")
    assert pairs(frame) == renamed
    rows = rows_of(frame)
    assert not set(renamed.values()) & set(rows)
    if "mlp" in path or len(renamed) == 3:
        assert rows["x"]["elapsed_ns_delta"] == rows["x"]["elapsed_ns"]
    total = sum(row["elapsed_ns_delta"] or 0 for row in rows.values())
    assert total == frame.total["elapsed_ns_delta"]


def test_the_difference_is_that_of_the_pair() -> None:
    frame = compared("after?order=kernel&columns=kernel_ns&base=before")
    base = query(run_with(BEFORE, gpus=1, iterations=3), parse("r?order=kernel&columns=kernel_ns"))
    own = query(run_with(AFTER), parse("r?order=kernel&columns=kernel_ns"))
    times = {label: base.row(row)["kernel_ns"] for row, label in enumerate(base.labels)}
    ours = {label: own.row(row)["kernel_ns"] for row, label in enumerate(own.labels)}
    for label, partner in RENAMED.items():
        row = frame.labels.index(label)
        assert frame.row(row)["kernel_ns_delta"] == ours[label] - times[partner]


def test_what_stands_elsewhere_is_no_counterpart() -> None:
    moved = {"mlp": ("a", "b", "c"), "attn": ("e",), "norm": ("n", "d2")}
    frame = compared("after?order=kernel&base=before", moved)
    assert pairs(frame) == {}
    assert {"d", "d2"} <= set(frame.labels)
    assert "another name" not in " ".join(frame.notes)


def test_half_of_the_places_is_the_least() -> None:
    """A kernel that took the place of two: the one with which it shares the most."""
    split = {"mlp": ("a", "y"), "attn": ("d", "e"), "norm": ("n",)}
    assert pairs(compared("after?order=kernel&base=before", split)) == {"y": "b"}
    merged = {"mlp": ("a", "z"), "attn": ("z", "z"), "norm": ("z",)}
    assert pairs(compared("after?order=kernel&base=before", merged)) == {}


def test_a_pair_is_shown_as_one_and_leads_to_both(wording: Wording) -> None:
    frame = compared("after?order=kernel&base=before&base=total")
    text = rendered(frame, "text")
    assert "b → b2" in text
    wording.among(text, "3 kernels")
    assert "b > b2" in rendered(frame, "text", glyphs=ASCII)
    assert "b → b2" in rendered(frame, "markdown")
    document = json.loads(rendered(frame, "json"))
    names = {row["name"]: row.get("base_name") for row in document["rows"]}
    assert names["b2"] == "b" and names["a"] is None
    row = next(row for row in document["rows"] if row["name"] == "b2")
    inside = compared(row["address"])
    assert inside.view.baseline is not None and inside.view.baseline.path == ("b",)
    assert (
        sum(inside.row(n)["elapsed_ns_delta"] or 0 for n in range(len(inside)))
        == (row["elapsed_ns_delta"])
    )


def test_two_long_names_are_both_seen() -> None:
    text = f"{'a' * 60} → {'b' * 80}"
    for width in range(15, 150):
        shown = elide(text, width, UNICODE)
        assert len(shown) <= width and " → " in shown
        before, _, after = shown.partition(" → ")
        assert before.startswith("a") and after.endswith("b")
        assert len(shown) == min(width, len(text))


def test_the_sample_with_all_kernels_renamed() -> None:
    base = sample_run()
    table = base.table
    renamed = replace(table, names=[f"{name}.v2" for name in table.names])
    run = replace(base, table=renamed, others={"old": base})
    frame = query(run, parse("sample.json?order=kernel&base=old"))
    assert pairs(frame) == {f"{name}.v2": name for name in table.names}
    assert all(frame.row(row)["elapsed_ns_delta"] == 0 for row in range(len(frame)))


@pytest.mark.sweep
async def test_into_a_pair_and_back() -> None:
    base = sample_run()
    table = base.table
    names = [name.replace("Cijk_Alik", "Tensile") for name in table.names]
    run = replace(base, table=replace(table, names=names), others={"old": base})
    view = parse("sample.json:gpu=1/iteration=11/phase=forward/layer=2/operation=qkv_ip?base=old")
    async with explorer((120, 30), run, view) as at:
        assert re.search(r"Cijk\S*256 → Tens\S*256", at.text())
        await at.press("enter")
        assert at.frame.level == "activity" and at.frame.row(0)["kernel_ns_delta"] == 0
        await at.press("escape")
        assert at.label == "Tensile_Bljk_MT256x256"
        assert at.frame.view == View(
            "sample.json", ("1", "11", "forward", "2", "qkv_ip"), baseline=view.baseline
        )
        await at.press("x")
        assert re.search(r"Cijk\S*256 → Tens\S*256", at.text())


def test_of_very_many_kernels_some_iterations_tell_the_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chopper_core.analyses.same_work._MAX_ROWS", 20)
    assert pairs(compared("after?order=kernel&base=before")) == RENAMED


EAGER = {"norm": ("n",), "qkv": ("g",), "sdpa": ("f", "s"), "proj": ("g",), "norm2": ("n",),
         "gate": ("gemm",), "up": ("gemm",), "act": ("silu", "mul"), "down": ("gemm",)}  # fmt: skip
ENGINE = {"norm": ("n",), "qkv": ("g",), "flash_attn": ("a",), "proj": ("g",), "norm2": ("n", "n"),
          "gate_up": ("gemm",), "silu_and_mul": ("act_and_mul",), "down": ("gemm",)}  # fmt: skip


@pytest.mark.parametrize("by", ["view=compare&by=operation", "order=operation"])
def test_operations_of_two_frameworks_are_paired_by_what_is_around_them(by: str) -> None:
    base = run_with(EAGER, gpus=1)  # type: ignore[arg-type]
    run = replace(run_with(ENGINE), others={"before": base})  # type: ignore[arg-type]
    frame = query(run, parse(f"after?{by}&base=before&base=total"))
    found = pairs(frame)
    if "compare" in by:
        words = {label: frame.row(row)["partner"] for row, label in enumerate(frame.labels)}
        assert {name for name, word in words.items() if word == "removed"} == {"up"}
        found = {name: word for name, word in words.items() if word not in (None, "removed")}
    # One product in place of two: the first of them is the same work, the other one is gone.
    assert found == {"flash_attn": "sdpa", "gate_up": "gate", "silu_and_mul": "act"}


COPY, MULTIPLY = "vectorized_copy_kernel", "vectorized_mul_kernel"
UNPACK = {"split": ("cat_copy_kernel",), "qkv": ("g",), "mlp": ("gemm",), "proj": ("g",)}
HOOK = {**UNPACK, "hook": (COPY, MULTIPLY)}
OUT = {"copy_out": ("split_copy_kernel",), **UNPACK, "reduce": ("chunk_copy_kernel",)}
del OUT["split"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (HOOK, OUT, {"copy_out": "split", "reduce": "hook"}),
        # Kernels of the same names, after others than before.
        ({"a": ("x", "y"), "b": ("z",)}, {"b": ("z",), "c": ("x", "y")}, {"c": "a"}),
        ({"Conv2d": ("x",), "b": ("z",)}, {"b": ("z",), "conv_2d": ("y",)}, {"conv_2d": "Conv2d"}),
        # Less than half of the kernels, or a place in the middle in place of the end.
        ({"a": ("x", "y", "w"), "b": ("z",)}, {"b": ("z",), "c": ("x", "u", "v", "t")}, {}),
        ({"a": ("x",), "b": "zz", "e": "ww"}, {"b": "zz", "c": ("x",), "e": "ww"}, {}),
    ],
)
def test_operations_are_paired_by_their_kernels_and_their_place(
    before: dict[str, Sequence[str]], after: dict[str, Sequence[str]], expected: dict[str, str]
) -> None:
    base = run_with(before, gpus=1)
    run = replace(run_with(after), others={"before": base})
    frame = query(run, parse("after?view=compare&by=operation&base=before&base=total"))
    words = {label: frame.row(row)["partner"] for row, label in enumerate(frame.labels)}
    found = {name: word for name, word in words.items() if word not in (None, "removed", "new")}
    assert found == expected
    assert frame.total["elapsed_ns_delta"] == sum(
        frame.row(row)["elapsed_ns_delta"] or 0 for row in range(len(frame))
    )
