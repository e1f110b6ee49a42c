"""Raw counters as columns: sums where they can be added up, means over dispatches where not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from tests.support import Row, rows_of, run_of
from tests.wording import Wording

HEADINGS = "Dispatch_ID,GPU_ID,Kernel_Name,SQ_WAVES,MfmaUtil,FETCH_SIZE,TCC_HIT[3],TCC_REQ_max"
ROWS = ("0,2,copy,64,50,12.5,7,90", "1,2,copy,64,30,2.5,8,80", "2,2,add,16,20,1,9,70")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = tmp_path_factory.mktemp("raw")
    (made / "pmc_perf.csv").write_text("\n".join((HEADINGS, *ROWS)) + "\n")
    return open_run(str(made))


def rows(run: Run, columns: str) -> dict[str, tuple[object, ...]]:
    frame = query(run, parse(f"R?order=kernel&columns={columns}"))
    names = [column.name for column in frame.columns]
    found = rows_of(frame)
    return {label: tuple(row[name] for name in names) for label, row in found.items()}


def test_what_adds_up_is_summed(run: Run) -> None:
    assert rows(run, "SQ_WAVES,FETCH_SIZE,TCC_HIT[3]") == {
        "copy": (128, 15.0, 15),
        "add": (16, 1.0, 9),
    }


def test_percentages_and_largest_instances_are_means_weighted_with_durations(
    run: Run, wording: Wording
) -> None:
    # Without durations several dispatches have no mean.
    assert rows(run, "MfmaUtil,TCC_REQ_max")["copy"] == (None, None)
    assert rows(run, "MfmaUtil,TCC_REQ_max")["add"] == (20, 70)
    frame = query(run, parse("R?order=kernel&columns=MfmaUtil,FETCH_SIZE,TCC_REQ_max"))
    util, fetched, largest = frame.columns
    assert (util.unit, fetched.unit) == ("%", "KB")
    wording(util.definition, "profiler", "duration-weighted mean")
    assert (util.title, fetched.title) == ("mean MfmaUtil", "FETCH_SIZE")
    assert "maximum over instances" in largest.definition
    assert frame.total["FETCH_SIZE"] == 16.0


def test_a_mean_over_dispatches_by_hand() -> None:
    made = run_of([Row(0, 10, kernel="a"), Row(20, 30, kernel="a"), Row(60, 9, kernel="b")])
    values = np.array([50.0, 30.0, np.nan])
    timed = replace(made, table=made.table.with_measured({"MfmaUtil": values}))
    assert rows(timed, "MfmaUtil") == {"a": ((10 * 50 + 30 * 30) / 40,), "b": (None,)}
    waves = replace(made, table=made.table.with_measured({"Wavefronts": values}))
    assert rows(waves, "Wavefronts")["a"] == (80,)


def test_a_store_knows_what_the_counters_are(run: Run, tmp_path: Path) -> None:
    write_store(run, tmp_path / "store")
    frame = query(read_store(tmp_path / "store"), parse("R?columns=MfmaUtil,FETCH_SIZE"))
    assert [column.unit for column in frame.columns] == ["%", "KB"]


def test_a_counter_that_is_not_there_is_an_error(run: Run) -> None:
    with pytest.raises(UsageError, match="the run has no counter SQ_INSTS; collect it with"):
        query(run, parse("R?columns=SQ_INSTS"))
