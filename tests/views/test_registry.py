"""Each view is a module that offers what the protocol names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chopper_core.util.errors import UsageError
from chopper_core.views import (
    VIEWS,
    comms,
    compare,
    cpu,
    determinism,
    findings,
    graph,
    grid,
    heatmap,
    icicle,
    kernels,
    launch,
    memory,
    overheads,
    overlap,
    overview,
    pipeline,
    power,
    ranks,
    roofline,
    throughput,
    timeline,
    view_spec,
    view_specs,
)
from chopper_core.views.spec import ViewModule

MODULES: tuple[ViewModule, ...] = (
    overview,
    icicle,
    timeline,
    graph,
    kernels,
    roofline,
    overheads,
    launch,
    throughput,
    ranks,
    heatmap,
    grid,
    comms,
    overlap,
    pipeline,
    power,
    cpu,
    determinism,
    memory,
    compare,
    findings,
)


def test_each_module_offers_its_specification() -> None:
    assert [module.SPEC for module in MODULES] == list(view_specs())
    assert [spec.name for spec in view_specs()] == list(VIEWS)
    for spec in view_specs():
        assert spec.title and spec.question and spec.no_statistic
        assert len(set(spec.by)) == len(spec.by)


def test_an_unknown_view_lists_the_known() -> None:
    with pytest.raises(UsageError, match="unknown view 'pie'; the views are overview"):
        view_spec("pie")


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
