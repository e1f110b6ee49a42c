"""The demonstration run and small generated ones, opened once."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from chopper_core.model.run import Run
from tests.demo import demo_run
from tests.ingest.simulated import DEMO, Simulated, simulate

FSDP2 = DEMO / "fsdp2"


@pytest.fixture(scope="session")
def demo() -> Run:
    """The committed demonstration run."""
    return demo_run(named=str(FSDP2))


@pytest.fixture(scope="session")
def truth() -> dict[str, Any]:
    """What is planted in the demonstration run."""
    found: dict[str, Any] = json.loads((FSDP2 / "truth.json").read_text())
    return found


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Simulated]:
    """Gives a generated run by the generator's options."""

    @cache
    def make(**options: Any) -> Simulated:
        return simulate(tmp_path_factory.mktemp("simulated"), **options)

    return make


@pytest.fixture(scope="session")
def small(simulated: Callable[..., Simulated]) -> Simulated:
    """Two ranks, the cut iteration and two full ones, four layers."""
    return simulated()
