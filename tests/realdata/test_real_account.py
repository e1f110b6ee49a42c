"""The quantities of real runs agree wherever they appear, as those of generated ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from chopper_core.extensions.runs.figures import figures_of_run
from chopper_core.model.run import Run
from tests.ingest.test_run_sets import check_row
from tests.test_account import disagreements, scopes_of

FILES: Final = (
    *("mi350x_aorta_rocprofv3", "a100_rank0of16.json.gz", "mi300x_ddp4", "v100_dlrm_8rank"),
    *("mi300x_train_resnet18.json.gz", "mi300x_sglang_prefill.json.gz", "pipeline_pp8"),
    *("mi300x_qwen05b.json.gz", "traces_2of128", "h100x8_nvidia_smi_no_index.csv"),
    "mi300x_rocm_smi",
)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FILES)
def test_a_quantity_of_a_real_run_is_the_same_wherever_it_appears(
    name: str, opened: Callable[[str], Run]
) -> None:
    run = opened(name)
    assert {scope: wrong for scope in scopes_of(run) if (wrong := disagreements(run, scope))} == {}


@pytest.mark.parametrize("name", FILES)
def test_the_row_of_a_real_run_says_what_its_views_say(
    name: str, opened: Callable[[str], Run]
) -> None:
    check_row(figures_of_run(opened(name)))
