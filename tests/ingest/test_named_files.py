"""What lies beside a trace may be named itself; what can't be used is said; held values too."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.render.exchange import as_json
from chopper_core.render.info import describe, info_text
from chopper_core.views.query import query
from tests.ingest.simulated import Simulated
from tests.wording import Wording


def test_telemetry_and_counters_that_are_named_are_used(small: Simulated) -> None:
    telemetry = small.folder / "telemetry" / "gpu_metrics.csv.gz"
    traces = [str(small.folder / f"rank{rank}.json.gz") for rank in (0, 1)]
    counters = sorted(map(str, (small.folder / "counters").rglob("*.csv*")))
    whole = query(small.run, parse("R?columns=gfx_mhz,GRBM_GUI_ACTIVE"))
    named = open_run(",".join([*traces, str(telemetry), *counters]), jobs=1)
    found = query(named, parse("R?columns=gfx_mhz,GRBM_GUI_ACTIVE"))
    assert found.total["gfx_mhz"] == whole.total["gfx_mhz"] is not None
    assert found.total["GRBM_GUI_ACTIVE"] == whole.total["GRBM_GUI_ACTIVE"] is not None
    alone = open_run(",".join(traces), jobs=1)
    assert not alone.telemetry and not alone.counters


def test_a_database_of_another_tool_is_named_with_what_it_is(
    small: Simulated, tmp_path: Path, wording: Wording
) -> None:
    shutil.copy(small.folder / "rank0.json.gz", tmp_path)
    with sqlite3.connect(tmp_path / "trace.rpd") as database:
        database.execute("create table rocpd_api(id integer)")
        database.execute("create table rocpd_op(id integer)")
    database.close()
    shown = info_text(open_run(str(tmp_path), jobs=1))
    wording.among(shown, "trace.rpd: ", "(RPD)")


def test_info_lists_the_counters_that_are_columns(small: Simulated, wording: Wording) -> None:
    described = {each["name"]: each for each in describe(small.run)["counter_columns"]}
    assert described["GRBM_GUI_ACTIVE"]["aggregation"] == "sum over instances"
    text = info_text(small.run)
    wording.among(text, f"{len(described)} counters", "columns")
    assert all(name in text for name in described)


def test_json_names_the_values_that_are_held(small: Simulated) -> None:
    frame = query(small.run, parse("R:gpu=0/iteration=11/phase=forward/layer=2?columns=gfx_mhz"))
    rows = json.loads(as_json(frame))["rows"]
    held = [frame.values["gfx_mhz"].is_extrapolated(row) for row in range(len(frame))]
    assert any(held) and not all(held)
    assert [row.get("held", []) for row in rows] == [["gfx_mhz"] if each else [] for each in held]
