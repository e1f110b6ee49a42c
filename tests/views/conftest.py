"""The demo run, opened once for all tests of analyses."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.model.run import Run
from tests.demo import demo_run

DEMO = Path(__file__).resolve().parent.parent.parent / "demo_data" / "fsdp2"


@pytest.fixture(scope="session")
def run() -> Run:
    """The demo run."""
    return demo_run(named=str(DEMO))
