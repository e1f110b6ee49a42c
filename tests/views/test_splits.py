"""Any column of the activities splits the tree and the views, and scopes what a row opens."""

from __future__ import annotations

import numpy as np
import pytest

from chopper_core.model.address import parse, render
from chopper_core.model.run import Run
from chopper_core.model.table import STATES
from chopper_core.util.errors import NoSuchNode, NothingToShow, UsageError
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.query import query
from chopper_core.views.spec import splits_of
from chopper_core.work.kernel_classes import kernel_class
from tests.support import sample_run
from tests.tui.explorer import measured_run

SPLITS = ("class", "stream", "kind", "iteration%2", "iteration%12")


def label_of(run: Run, row: int, split: str) -> str:
    """The label of an activity along a split, worked out alone."""
    table = run.table
    if split == "class":
        return kernel_class(table.names[table.kernel[row]])
    if split == "stream":
        return str(table.stream[row])
    if split == "kind":
        return ("compute", "communication", "copy")[table.kind[row]]
    return str(table.iteration[row] % int(split.partition("%")[2]))


def charged(run: Run, rows: object) -> int:
    return sum(int(run.table.column(state)[rows].sum()) for state in STATES)  # type: ignore[index]


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_a_level_of_the_tree(split: str) -> None:
    run = sample_run()
    labels = np.array([label_of(run, row, split) for row in range(len(run.table))])
    frame = query(run, parse(f"R?by={split}&base=total"))
    assert frame.level == split and set(frame.labels) == set(labels.tolist())
    for row, label in enumerate(frame.labels):
        assert frame.elapsed_ns[row] == charged(run, labels == label)
        # A row opens its own activities, below any other level too.
        opened = query(run, frame.target(row))
        assert opened.parent_ns == charged(run, labels == label)
        assert parse(render(opened.view)) == opened.view
        deeper = query(run, parse(f"R:gpu=2/{split}={label}?order=gpu,{split}&base=total"))
        assert deeper.parent_ns == charged(run, (labels == label) & (run.table.gpu == 2))


def test_every_view_of_activities_takes_every_split() -> None:
    run, seen = measured_run(), 0
    for name in VIEWS:
        spec = view_spec(name)
        for split in SPLITS if spec.any_split else ():
            try:
                frame = query(run, parse(f"R?view={name}&by={split}"))
            except NothingToShow:
                assert name == "lost"  # The run's GPU has no roof.
                continue
            assert split.startswith("iteration") or split in splits_of(run, spec)
            if len(frame):
                query(run, frame.target(len(frame) - 1))
                seen += 1
    assert seen > 40


def test_rows_of_a_split_add_up_in_a_view() -> None:
    run = sample_run()
    for split in SPLITS:
        frame = query(
            run, parse(f"R?view=overheads&by={split}&base=total&columns=elapsed_ns,idle_ns")
        )
        for name in ("elapsed_ns", "idle_ns"):
            assert frame.values[name].numbers.sum() == frame.total[name]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("view=kernels&by=Kernel", "view=kernels&by=kernel"),
        ("view=kernels&by=step", "view=kernels&by=iteration"),
        ("view=overheads&by=OP", "view=overheads&by=operation"),
        ("view=comms&by=Nodes", "view=comms&by=nodes"),
        ("by=Operation", "by=operation"),
        ("by=step", "by=iteration"),
    ],
)
def test_a_split_is_understood_as_people_type_it(typed: str, meant: str) -> None:
    run = sample_run(2, 2, 2)
    frame, exact = query(run, parse(f"R?{typed}")), query(run, parse(f"R?{meant}"))
    assert frame.view == exact.view and frame.labels == exact.labels
    assert query(run, frame.view).labels == exact.labels, "its address has the exact name"


def test_a_split_that_may_be_several_is_none_of_them() -> None:
    with pytest.raises(UsageError, match="not 's'"):
        query(sample_run(), parse("R?view=kernels&by=s"))


def test_an_unknown_split_says_what_there_is() -> None:
    run = sample_run()
    with pytest.raises(UsageError, match=r"can't be split by 'colour'"):
        query(run, parse("R?by=colour"))
    with pytest.raises(UsageError, match=r"takes by=.*class.*not 'colour'"):
        query(run, parse("R?view=overheads&by=colour"))
    with pytest.raises(NoSuchNode, match=r"no class nothing here; available: .*gemm"):
        query(run, parse("R:class=nothing?order=class"))
