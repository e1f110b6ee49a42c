"""The Python API: what docs/python.md shows works, and its figures are those of the frames."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree.ElementTree import fromstring

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import chopper_core as chopper
from chopper_core.model.table import STATES
from chopper_core.util.errors import UsageError
from tests.demo import as_kept, demo_run

ROOT = Path(__file__).resolve().parent.parent
DEMO = "demo_data/fsdp2"
PAGE = ROOT / "docs" / "python.md"


@pytest.fixture(scope="module")
def run() -> chopper.OpenRun:
    demo_run()
    with pytest.MonkeyPatch.context() as patch:
        as_kept(patch)
        return chopper.open(DEMO)


def test_kernels_are_a_table_with_labels_and_add_up_to_the_frame(run: chopper.OpenRun) -> None:
    table = run.kernels()
    assert len(table) == len(run.run.table)
    assert table.schema.metadata[b"chopper"] == b"chopper.kernels/1"
    assert pa.types.is_dictionary(table.schema.field("operation").type)
    frame = table.to_pandas()
    assert frame["start_ns"].min() == 0
    of_gpu = frame[(frame.gpu == 5) & (frame.iteration == 11)]
    per_phase = of_gpu.groupby("phase", observed=True)[list(STATES)].sum().sum(axis=1)
    shown = run.frame("gpu=5/iteration=11")
    assert per_phase.to_dict() == dict(
        zip(shown.labels, shown.values["elapsed_ns"].numbers.tolist(), strict=True)
    )
    assert of_gpu.category.eq("kernel").sum() == shown.total["kernels"]


def test_counters_and_signals_are_columns_on_request(run: chopper.OpenRun) -> None:
    table = run.kernels(counters=["SQ_WAVES"], signals=["gfx_mhz"])
    assert table.column_names[-2:] == ["SQ_WAVES", "gfx_mhz"]
    waves = run.run.table.measured["SQ_WAVES"]
    assert table["SQ_WAVES"].null_count == np.isnan(waves).sum() > 0
    mhz = table["gfx_mhz"].drop_null().to_numpy()
    assert 500 < mhz.min() < mhz.max() < 2200
    with pytest.raises(UsageError, match="no counter 'SQ_NONE'"):
        run.kernels(counters=["SQ_NONE"])


def test_a_signal_is_intervals_whose_mean_is_the_frame_s(run: chopper.OpenRun) -> None:
    samples = run.signal("gfx_mhz", gpu=5).to_pandas()
    assert (samples.end_ns > samples.start_ns).all() and samples.start_ns.is_monotonic_increasing
    (mean,) = run.signal("busy_pct", gpu=5, bins=1)["value"].to_pylist()
    frame = run.frame("?columns=busy_pct&cut=1")
    assert mean == pytest.approx(frame.values["busy_pct"].at(5), rel=1e-6)
    exact = run.signal("busy_pct", gpu=5).to_pandas()
    length = exact.end_ns - exact.start_ns
    assert (exact.value * length).sum() / length.sum() == pytest.approx(mean, rel=1e-6)
    with pytest.raises(UsageError, match="GPU 99"):
        run.signal("gfx_mhz", gpu=99)


def test_a_frame_prints_and_shows_itself_in_a_notebook(run: chopper.OpenRun) -> None:
    frame = run.frame("gpu=5?view=kernels")
    assert str(frame).startswith(f"{DEMO} ")
    html = frame._repr_html_()
    assert html.count("<tr>") == min(len(frame), 60) + 2 and "<script" not in html
    assert json.loads(frame.to_json())["schema"] == "chopper.frame/2"
    data = frame.to_pandas()
    assert list(data["name"]) == list(frame.labels)


def test_views_have_methods_and_charts_are_pictures(run: chopper.OpenRun) -> None:
    for method, name in (
        ("ranks", "ranks"), ("steps", "throughput"), ("collectives", "comms"), ("power", "power"),
        ("top_kernels", "kernels"), ("launches", "launch"), ("overview", "overview"),
    ):  # fmt: skip
        found = getattr(run, method)("gpu=5")
        assert found.to_json() == run.frame(f"gpu=5?view={name}").to_json()
    asked = run.collectives(
        "gpu=5", by="phase", columns=["hidden_ns"], sort="-hidden_ns", filter="ward"
    )
    same = "gpu=5?view=comms&by=phase&columns=hidden_ns&sort=-hidden_ns&filter=ward"
    assert asked.to_json() == run.frame(same).to_json()
    assert "straggler GPU 5" in run.ranks().headline[0] and "overview" in run._repr_html_()
    for theme in ("light", "dark"):
        picture = run.ranks().picture(theme=theme)
        assert fromstring(picture._repr_svg_()).tag.endswith("svg")
    for wrong, sentence in (
        (lambda: run.ranks().picture(theme="pink"), "no theme 'pink'; the themes are light, dark"),
        (lambda: run.findings().picture(), "the view findings has no charts"),
        (lambda: run.ranks(colums="a"), "unknown option colums; options are by, of, columns"),
        (lambda: run.ranks(by="nothing"), "takes by="),
        (lambda: run.ranks("nothing=1"), "is neither a path"),
    ):
        with pytest.raises(UsageError, match=re.escape(sentence)):
            wrong()


@pytest.mark.usefixtures("demo_kept")
def test_two_runs_are_compared_as_the_command_line_does(run: chopper.OpenRun) -> None:
    other = chopper.open(demo_run("fsdp1").name)
    found = chopper.diff(other, run, "gpu=0")
    assert found.view.name == "compare" and found.view.baseline is not None
    same = run.frame(f"gpu=0?view=compare&base={other.name}")
    assert same.to_json() == found.to_json()


def test_tables_of_pandas_agree_on_types_and_have_units(run: chopper.OpenRun) -> None:
    kernels = run.kernels(signals=["gfx_mhz"]).to_pandas()
    frame = run.frame("gpu=5/iteration=11/phase=backward").to_pandas()
    for table in (kernels, frame):
        assert {name: str(table[name].dtype) for name in ("gpu", "iteration", "layer")} == {
            "gpu": "Int64", "iteration": "Int64", "layer": "Int64"
        }  # fmt: skip
        assert str(table["phase"].dtype) == "category"
        assert table.attrs["units"]["idle_ns"] == "ns"
    assert str(kernels["gfx_mhz"].dtype) == str(frame["busy_pct"].dtype) == "Float64"
    assert kernels["launch_ns"].isna().sum() == run.kernels()["launch_ns"].null_count
    # The same rows, grouped in pandas, are those of the frame.
    own = kernels[(kernels.gpu == 5) & (kernels.iteration == 11) & (kernels.phase == "backward")]
    sums = own.groupby("layer", dropna=False)["idle_ns"].sum()
    assert sums.to_dict() == frame.set_index("layer")["idle_ns"].to_dict()


@pytest.mark.usefixtures("demo_kept")
def test_a_difference_is_grouped_by_levels(run: chopper.OpenRun) -> None:
    found = chopper.diff(chopper.open(demo_run("fsdp1").name), run, "gpu=0", by="place")
    table = found.to_pandas()
    assert {"phase", "layer", "operation"} <= set(table.columns)
    by_phase = found.groupby("phase")["elapsed_ns_delta"].sum()
    assert by_phase.sum() == table["elapsed_ns_delta"].sum()
    coarse = run.frame(f"gpu=0?view=compare&by=phase&base={found.view.baseline.run}")  # type: ignore[union-attr]
    known = dict(zip(coarse.labels, coarse.values["elapsed_ns_delta"].numbers, strict=True))
    assert by_phase.to_dict() == pytest.approx({name: known[name] for name in by_phase.index})
    assert table.attrs["units"]["elapsed_ns_delta"] == "ns"


@pytest.mark.usefixtures("demo_kept")
def test_it_works_in_a_thread(run: chopper.OpenRun) -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(chopper.open(DEMO).frame())))
    thread.start()
    thread.join()
    assert found == [len(run.gpus)]


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, chopper_core; print([m for m in ('numpy', 'msgspec') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_package_lists_its_api() -> None:
    assert dir(chopper) == chopper.__all__


@pytest.mark.parametrize("text", ["kernels", "view=kernels", "?kernels", "/", "other:gpu=5", "a=b"])
def test_what_is_no_address_is_refused(run: chopper.OpenRun, text: str) -> None:
    for ask in (run.frame, lambda path: chopper.diff(run, run, path)):
        with pytest.raises(UsageError, match="is neither a path below a run, such as"):
            ask(text)


def test_an_address_is_of_the_run_that_is_asked(run: chopper.OpenRun) -> None:
    """Whatever its name: one that a path begins with, and that of another run."""
    named_g = chopper.OpenRun(replace(run.run, name="g"))
    for text in ("gpu=5", "g:gpu=5", ":gpu=5", run.view("gpu=5")):
        assert named_g.frame(text).address == "g:gpu=5"
    assert len(named_g.frame("g")) == len(named_g.frame("g?sort=name")) == 8


@pytest.mark.usefixtures("demo_kept")
def test_the_snippets_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for code, output in re.findall(
        r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.DOTALL
    ):
        exec(compile(code, str(PAGE), "exec"), names)
        printed = capsys.readouterr().out
        if output:
            assert printed == output


def test_every_column_of_the_kernel_table_is_documented(run: chopper.OpenRun) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in run.kernels().column_names:
        assert f"| `{name}` |" in text
