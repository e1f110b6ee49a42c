"""Each view is a module that offers what the protocol names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest
from msgspec.structs import replace

from chopper_core.analyses.pipeline import pipeline_of
from chopper_core.columns import METRICS
from chopper_core.columns.metric import worded
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.table import Phase, empty_table
from chopper_core.model.view import View, baseline_view
from chopper_core.render.exports import export
from chopper_core.store import reader
from chopper_core.store.format import baselines, baselines_path
from chopper_core.store.writer import write_store
from chopper_core.util.errors import ChopperError, DataError, NoSuchNode, NothingToShow, UsageError
from chopper_core.util.workers import dask_executor
from chopper_core.views import SET_VIEWS, VIEWS, overlap, view_module, view_spec, view_specs
from chopper_core.views import spec as view_specification
from chopper_core.views.query import answer
from chopper_core.views.shared.evidence import causes_of
from chopper_core.views.spec import Previewed, ViewModule
from tests.support import Row, run_of, sample_run


def test_each_module_offers_what_the_protocol_names() -> None:
    assert [spec.name for spec in view_specs()] == list(VIEWS)
    for name in VIEWS:
        module, spec = view_module(name), view_spec(name)
        assert get_type_hints(module.answer) == get_type_hints(ViewModule.answer)
        assert hasattr(module, "preview") == spec.has_preview
        if spec.has_preview:
            hints = get_type_hints(Previewed.preview)
            assert get_type_hints(getattr(module, "preview")) == hints  # noqa: B009
        assert spec.title == VIEWS[spec.name].name and spec.question and spec.no_statistic
        assert len(set(spec.by)) == len(spec.by)
    assert [view_spec(name).name for name in SET_VIEWS] == list(SET_VIEWS)


def test_an_unknown_view_lists_the_known() -> None:
    with pytest.raises(UsageError, match="unknown view 'pie'; the views are overview"):
        view_spec("pie")


def test_the_title_of_a_view_leads_to_its_name() -> None:
    """A person types what the header shows."""
    for words, told in (
        ("summary", "overview"),
        ("Shapes", "roofline"),
        ("Kernels · shapes", "roofline"),
        ("blocks", "icicle"),
        ("GPUs", "ranks"),
        ("kernel", "kernels"),
    ):
        assert view_spec(words).name == told
    with pytest.raises(
        UsageError, match=r"^tree isn't a view of its own: an address without view="
    ):
        view_spec("tree")


def test_views_that_split_by_any_level_take_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        view_specification, "LEVELS", ("gpu", "iteration", "microstep", "phase", "kernel")
    )
    any_level = view_specification.any_level
    assert any_level("phase", "gpu") == ("phase", "gpu", "iteration", "microstep")
    assert any_level("kind", but=("gpu", "phase"))[1:] == ("iteration", "microstep", "kernel")


def test_the_tree_and_one_view_import_no_other_view() -> None:
    code = (
        "import sys; from chopper_core.views import view_spec; import chopper_core.views.query; "
        "view_spec('cpu'); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {
        name.removeprefix("chopper_core.views.").partition(".")[0]
        for name in done.stdout.split()
        if name.startswith("chopper_core.views.")
    }
    assert loaded & set(VIEWS) == {"cpu"}


def steps(*blocks: tuple[str, int, int]) -> Run:
    """A run of one step: operation, GPU and phase of each activity."""
    rows = [
        Row(10 * place, 5, operation=name, gpu=gpu, iteration=1, phase=phase)
        for place, (name, gpu, phase) in enumerate(blocks)
    ]
    return run_of(rows)


def asked(run: Run, address: str) -> Callable[[], object]:
    return lambda: answer(run, parse(f"R{address}"))


EMPTY = Run("R", empty_table(), (), ())
ONE = "gpu=0/iteration=1/phase=forward/layer=none/operation=op/kernel=kernel/activity=0"
FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
MIXED = steps(("mb 1", 0, FORWARD), ("mb 1", 0, BACKWARD), ("mb 2", 0, FORWARD))
_LEAF = steps(("op", 0, FORWARD))
_PATH = ("0", "1", "forward", "none", "op", "kernel")
CALLS: list[tuple[Callable[[], object], type[ChopperError], str]] = [
    (lambda: baseline_view(View("run")), UsageError, "the view has no baseline"),
    (lambda: export(EMPTY, "perfetto", Path("x")), DataError, "has no activities to export"),
    (lambda: EMPTY.tree().node(()), NoSuchNode, "the run has no activities"),
    (lambda: causes_of(sample_run(), View("R"), 9), NoSuchNode, "no gpu 9 here"),
    (asked(steps(("op", 0, FORWARD)), f":{ONE}?view=icicle"), NothingToShow, "has no parts"),
    (asked(sample_run(), "?view=info"), UsageError, "info isn't a table"),
    (lambda: _LEAF.tree().node((*_PATH, "0", "0")), NoSuchNode, "an activity has no children"),
]


@pytest.mark.parametrize(("call", "kind", "says"), CALLS, ids=[says for *_, says in CALLS])
def test_a_refusal_is_a_sentence(
    call: Callable[[], object], kind: type[ChopperError], says: str
) -> None:
    with pytest.raises(kind) as refused:
        call()
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("view", "says"), [("grid", "no grid"), ("heatmap", "no heat map"), ("icicle", "no colours")]
)
def test_a_figure_that_is_text_has_no_picture(
    view: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No metric is one yet; its numbers would be drawn as if they were amounts."""
    text = replace(METRICS["elapsed_ns"], compute=lambda scope: worded(["a"] * len(scope.nodes)))
    monkeypatch.setitem(METRICS, "elapsed_ns", text)
    with pytest.raises(UsageError, match=says):
        answer(sample_run(), parse(f"R?view={view}&of=elapsed_ns"))


def test_instances_are_listed_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_MAX_LISTED", 1)
    with pytest.raises(UsageError, match="more than the 1 that can be listed"):
        answer(sample_run(), parse("R?view=overlap&by=instance"))


def test_a_store_that_is_replaced_again_and_again_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_store(sample_run(), tmp_path / "store")
    states = iter(range(1000))
    monkeypatch.setattr(reader, "file_state", lambda _: next(states))
    with pytest.raises(DataError, match="is being replaced repeatedly; try again later"):
        reader.read_store(tmp_path / "store")
    monkeypatch.undo()
    (tmp_path / "store" / "cpu.arrow").unlink()
    with pytest.raises(DataError, match="can't be read: No such file"):
        reader.verify(tmp_path / "store")


def test_baselines_that_cannot_be_read_are_named() -> None:
    baselines_path().parent.mkdir(parents=True)
    baselines_path().write_text("{")
    with pytest.raises(DataError, match="can't be read"):
        baselines()


def test_dask_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="needs Dask: pip install"), dask_executor("tcp://a:1"):
        pass


def test_a_pipeline_without_forward_work_has_none() -> None:
    with pytest.raises(NothingToShow, match="no pipeline"):
        pipeline_of(run_of([Row(0, 5)]), View("R"))
    with pytest.raises(NothingToShow):
        pipeline_of(MIXED, View("R"))
