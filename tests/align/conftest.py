"""Generated runs, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from chopper_core.model.run import Run
from tests.align.generated import DEMO, SMALL, VARIANTS, Generated, generate
from tests.demo import demo_run


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
    return demo_run(named=str(DEMO / "fsdp2"))
