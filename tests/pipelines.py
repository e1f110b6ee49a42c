"""The generated run of 32 ranks, tp 2 x pp 4 x dp 4, opened once for all tests."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from chopper_core.ingest.open import open_run
from chopper_core.model.overrides import overrides_of
from chopper_core.model.run import Run

sys.path.append(str(Path(__file__).resolve().parents[1] / "demo_data"))
from generator.pipeline import Pipeline, schedule, write

__all__ = ["Pipeline", "pipeline_run", "schedule"]


@cache
def pipeline_run(parallel: str = "", **given: Any) -> tuple[Run, Pipeline, dict[str, Any]]:
    """The run, its settings and what is true of it."""
    config = Pipeline(**given)
    folder = Path(mkdtemp(prefix="pipeline"))
    truth = write(folder, config)
    run = open_run(str(folder), jobs=1, overrides=overrides_of(parallel=parallel))
    return run, config, truth
