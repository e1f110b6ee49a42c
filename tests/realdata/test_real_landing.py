"""The first screen of public runs that aren't FSDP training: what takes the time, and how near its
roof it is."""

from __future__ import annotations

import pytest

from chopper_core.ingest.cache import open_cached
from chopper_core.model.address import parse
from chopper_core.model.charts import Cards
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.realdata.conftest import FOLDER


@pytest.mark.parametrize(
    ("name", "first", "columns"),
    [
        ("vllm_decode_graph.json.gz", "gemm", ()),
        (
            "mi300x_sglang_prefill.json.gz",
            "MergedColumnParallelLinear",
            ("model_roof_pct", "bound", "model_intensity", "grid", "waves_per_cu"),
        ),
        ("mi300x_qwen05b.json.gz", "Qwen2Attention", ("model_roof_pct", "bound", "grid")),
        ("one_kernel.json.gz", "triton_poi_fused_add_cos_sin_0", ("grid",)),
        ("rocprofv3_csv", "gemm", ("grid", "block")),
        ("rocprof_compute_vcopy_mi350", "copy", ("grid", "waves_per_cu")),
        ("rocpd", "elementwise", ("grid",)),
    ],
)
def test_it_starts_with_operations(name: str, first: str, columns: tuple[str, ...]) -> None:
    path = FOLDER / name
    if not path.exists():
        pytest.skip("no real files")
    run = open_cached(str(path))
    frame = query(run, View(run.name, name="overview"))
    assert frame.level == "operation" and frame.labels[0] == first
    shown = [column.name for column in frame.columns]
    assert {"kernel_ns", "kernel_pct", "activities", "mean_ns", "idle_ns", *columns} <= set(shown)
    for column in columns:
        assert frame.values[column].at(0) is not None, column
    kernels = query(run, View(run.name, name="kernels"))
    assert frame.total["kernel_ns"] == kernels.total["kernel_ns"]
    (cards,) = (chart.cards for chart in frame.charts if isinstance(chart, Cards))
    assert sum(not card.text for card in cards) >= 1
    for card in cards:
        evidence = query(run, parse(card.address))
        assert len(evidence), card.address
        if " of the roof: " in card.text:
            assert int(card.text.split()[0]) == len(evidence)
        if card.note.startswith("B "):
            lines = [evidence.values[name].present() for name in ("torch", "hipblaslt")]
            assert (lines[0] | lines[1]).all()
