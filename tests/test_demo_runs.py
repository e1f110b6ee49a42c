"""The runs that tests share are the same for each, whatever another one did with them."""

from __future__ import annotations

import numpy as np
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.table import COLUMNS
from tests.demo import DEMO, demo_run


def test_a_shared_run_can_t_be_changed() -> None:
    run = demo_run()
    with pytest.raises(ValueError, match="read-only"):
        run.table.start_ns[0] = 0
    with pytest.raises(TypeError, match="item assignment"):
        run.others["fsdp1"] = run  # type: ignore[index]


@pytest.mark.sweep
def test_a_shared_run_is_what_its_files_give() -> None:
    ours, read = demo_run("fsdp1"), open_run(str(DEMO / "fsdp1"), jobs=1)
    assert len(ours.sources) == len(read.sources) and ours.gpus == read.gpus
    for name in COLUMNS:
        assert np.array_equal(ours.table.column(name), read.table.column(name))
    for name, values in read.table.measured.items():
        assert np.array_equal(ours.table.measured[name], values, equal_nan=True)
