"""Each view is a module that offers what the protocol names."""

from __future__ import annotations

import subprocess
import sys
from typing import get_type_hints

import pytest

from chopper_core.util.errors import UsageError
from chopper_core.views import SET_VIEWS, VIEWS, view_module, view_spec, view_specs
from chopper_core.views import spec as view_specification
from chopper_core.views.spec import Previewed, ViewModule


def test_each_module_offers_what_the_protocol_names() -> None:
    assert [spec.name for spec in view_specs()] == list(VIEWS)
    for name in VIEWS:
        module, spec = view_module(name), view_spec(name)
        assert get_type_hints(module.answer) == get_type_hints(ViewModule.answer)
        assert hasattr(module, "preview") == spec.has_preview
        if spec.has_preview:
            hints = get_type_hints(Previewed.preview)
            assert get_type_hints(getattr(module, "preview")) == hints  # noqa: B009
        assert spec.title and spec.question and spec.no_statistic
        assert len(set(spec.by)) == len(spec.by)
    assert [view_spec(name).name for name in SET_VIEWS] == list(SET_VIEWS)


def test_an_unknown_view_lists_the_known() -> None:
    with pytest.raises(UsageError, match="unknown view 'pie'; the views are overview"):
        view_spec("pie")


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
