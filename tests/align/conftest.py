"""Generated runs, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from chopper_core.ingest import open_run
from chopper_core.run import Run
from tests.align.generated import DEMO, SMALL, VARIANTS, Generated, generate


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Generated]:
    """Gives a generated run by the name of its variant."""

    @cache
    def make(variant: str) -> Generated:
        folder = tmp_path_factory.mktemp(variant.replace(" ", "_"))
        return generate(folder, **(SMALL | VARIANTS[variant]))

    return make


@pytest.fixture(scope="session")
def demo() -> Run:
    """The committed demonstration run."""
    return open_run(str(DEMO / "fsdp2"), jobs=1)
