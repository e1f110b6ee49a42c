"""Two runs of different operators, compared at the deepest place that both have."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from chopper_core.api import OpenRun
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from tests.align.traces import ADD, FLASH, GEMM, TinyTrace
from tests.wording import Wording

EAGER = [("aten::bmm", GEMM, 30), ("aten::_softmax", "softmax_warp_forward", 20),
         ("aten::bmm", GEMM, 30)]  # fmt: skip
FUSED = [("aten::_scaled_dot_product_flash_attention", FLASH, 25)]


def trace(path: Path, attention: list[tuple[str, str, int]], *, wrapped: bool = False) -> str:
    """Two layers: a projection, attention in one of two ways, a sum outside its modules."""
    made, at = TinyTrace(), 100
    made.note("ProfilerStep#3", 0, 100_000)
    if wrapped:
        made.module("DistributedDataParallel_0", 40, 90_000)
    made.module("Model_0", 50, 80_000)
    for layer in range(2):
        length = 200 * (len(attention) + 1)
        made.module(f"DecoderLayer_{layer}", at, at + length + 300)
        made.module(f"Attention_{layer}", at + 1, at + length + 10)
        made.module(f"Linear_{layer}", at + 2, at + 190)
        dims = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"]}
        made.op("aten::mm", at + 3, at + 180, **dims)  # type: ignore[arg-type]
        made.launch(GEMM, at + 4, start=at + 10, duration=40)
        for number, (operator, kernel, lasts) in enumerate(attention):
            begin = at + 200 * (number + 1)
            made.op(operator, begin, begin + 150)
            made.launch(kernel, begin + 4, start=begin + 10, duration=lasts)
        made.op("aten::add", at + length + 50, at + length + 200)
        made.launch(ADD, at + length + 60, start=at + length + 70, duration=5)
        at += length + 400
    return str(made.write(path))


def rows(ours: str, base: str) -> dict[str, tuple[float | None, float | None, str | None]]:
    run = open_run(ours, jobs=1)
    run = replace(run, others={base: open_run(base, jobs=1)})
    names = ("kernel_ns", "base_kernel_ns", "instead")
    table = (
        OpenRun(run)
        .frame(
            f"{run.name}?view=compare&by=ancestor&of=kernel_ns&base={base}&columns={','.join(names)}"
        )
        .to_pandas()
    )
    cells = table.astype(object).where(table.notna(), None)
    columns = [cells[name] if name in cells else [None] * len(cells) for name in names]
    return dict(zip(cells["name"], zip(*columns, strict=True), strict=True))


@pytest.mark.parametrize("wrapped", [True, False])
def test_other_operators_count_at_the_module_that_both_have(
    tmp_path: Path, wrapped: bool, wording: Wording
) -> None:
    eager = trace(tmp_path / "eager.json", EAGER)
    fused = trace(tmp_path / "fused.json", FUSED, wrapped=wrapped)
    found = rows(fused, eager)
    layer = "forward › Model › DecoderLayer"
    both = found[f"{layer} › Attention"]
    assert both[:2] == (50_000, 160_000)
    wording(both[2], "attn_fa", "gemm, softmax")
    assert found[f"{layer} › Attention › Linear › mm"] == (80_000, 80_000, None)
    assert sum(float(row[0] or 0) for row in found.values()) == 2 * (40 + 25 + 5) * 1000
    assert sum(float(row[1] or 0) for row in found.values()) == 2 * (40 + 80 + 5) * 1000


def test_equal_runs_have_nothing_instead(tmp_path: Path) -> None:
    one, two = (trace(tmp_path / f"{name}.json", EAGER) for name in ("a", "b"))
    assert {row[2] for row in rows(one, two).values()} == {None}


def test_kernels_split_by_the_modules_around_them(tmp_path: Path) -> None:
    run = open_run(trace(tmp_path / "eager.json", EAGER), jobs=1)
    frame = OpenRun(run).frame(f"{run.name}?view=kernels&by=module&columns=kernel_ns").to_pandas()
    layer = "Model › DecoderLayer"
    assert dict(zip(frame["name"], frame["kernel_ns"], strict=True)) == {
        f"{layer} › Attention": 160_000, f"{layer} › Attention › Linear": 80_000, layer: 10_000,
    }  # fmt: skip


def test_modules_that_begin_together_are_nested_by_their_length(tmp_path: Path) -> None:
    made = TinyTrace()
    for name, end in (("Linear_0", 200), ("Attention_0", 300), ("Model_0", 400)):
        made.module(name, 100, end)
    made.launch(GEMM, 150, start=160, duration=10)
    run = open_run(str(made.write(tmp_path / "r.json")), jobs=1)
    frame = OpenRun(run).frame(f"{run.name}?view=kernels&by=module")
    assert list(frame.labels) == ["Model › Attention › Linear"]


def test_a_row_opens_the_operations_of_the_scope(tmp_path: Path) -> None:
    base = trace(tmp_path / "eager.json", EAGER)
    run = open_run(trace(tmp_path / "fused.json", FUSED), jobs=1)
    run = replace(run, others={base: open_run(base, jobs=1)})
    frame = OpenRun(run).frame(f"{run.name}?view=compare&by=ancestor&base={base}")
    view = parse(frame.addresses(0))
    assert (view.name, view.by, view.path) == ("compare", "operation", ())
