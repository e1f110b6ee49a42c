"""The generated run of 32 ranks, tp 2 x pp 4 x dp 4, read once for all tests."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from chopper_core.model.run import Run
from tests.demo import DEMO, KEPT, kept_files, opened

sys.path.append(str(DEMO))
from generator.pipeline import Pipeline, fitting, schedule
from generator.pipeline import write as generate

__all__ = ["Pipeline", "fitting", "generate", "pipeline_run", "schedule"]


@cache
def pipeline_run(parallel: str = "", **given: Any) -> tuple[Run, Pipeline, dict[str, Any]]:
    """The run, its settings and what is true of it."""
    config, name = Pipeline(**given), "-".join(["pipeline", *map(str, given.items())])
    truth = KEPT / f"{name}.json"

    def make(folder: Path) -> None:
        truth.write_text(json.dumps(generate(folder, config)))

    run = opened(str(kept_files(name, given, make)), parallel)
    return run, config, json.loads(truth.read_text())
