"""JSON for programs: its size, its cuts, and what it leaves out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import Row, run_of

from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.render import as_json
from chopper_core.views.query import query
from tests.demo import demo_run
from tests.wording import Wording


@pytest.fixture(scope="module")
def run() -> Run:
    return demo_run()


def answer(run: Run, address: str, **options: Any) -> tuple[dict[str, Any], int]:
    text = as_json(query(run, parse(address)), **options)
    return json.loads(text), len(text.encode())


def test_pictures_are_there_only_where_they_are_asked_for(run: Run) -> None:
    found, size = answer(run, "R?view=power")
    drawn, drawn_size = answer(run, "R?view=power", has_pictures=True)
    assert "pictures" not in found and size < 15_000 < 100_000 < drawn_size
    assert {name: each for name, each in drawn.items() if name != "pictures"} == found


def test_rows_are_cut_at_200_and_at_100_kb_and_counted(run: Run, wording: Wording) -> None:
    gemms = "R?view=kernels&by=kernel&columns=" + ",".join(["elapsed_ns", "idle_ns"])
    total = len(query(run, parse(gemms)))
    for address, most in (("R?view=graph&by=node", 200), (gemms, 200)):
        found, size = answer(run, address)
        assert found["rows_shown"] == len(found["rows"]) <= most and size <= 100_000
        assert found["rows_total"] == len(query(run, parse(address)))
        if found["rows_shown"] < found["rows_total"]:
            wording(found["notes"][-1], "rows left out")
    asked, size = answer(run, "R?view=graph&by=node", limit=600)
    assert asked["rows_shown"] == 600 and size > 100_000
    assert answer(run, gemms, limit=10**6)[0]["rows_shown"] == total


def test_a_name_of_many_bytes_is_cut_to_the_size_too(wording: Wording) -> None:
    names = [f"{number:03}" + "\u3042" * 3_000 for number in range(60)]
    rows = [Row(100 * place, 50, kernel=name) for place, name in enumerate(names)]
    found, size = answer(run_of(rows), "R?order=kernel")
    assert 1 < found["rows_shown"] < found["rows_total"] == 60 and size <= 100_000
    wording(found["notes"][-1], "rows left out", "100 kB")
    longest = run_of([Row(0, 50, kernel="x" * 200_000)])
    found, size = answer(longest, "R?order=kernel")
    assert (found["rows_shown"], found["rows_total"]) == (0, 1) and size <= 100_000


def test_brief_has_four_digits_the_known_columns_and_says_what_it_lacks(run: Run) -> None:
    whole, size = answer(run, "R?view=ranks")
    brief, brief_size = answer(run, "R?view=ranks", is_brief=True)
    assert brief_size < 0.6 * size
    names = [each["name"] for each in brief["columns"]]
    every = [each["name"] for each in whole["columns"]]
    assert len(names) == 8 and sorted(names + brief["more_columns"]) == sorted(every)
    for short, full in zip(brief["rows"], whole["rows"], strict=True):
        assert short["address"] == full["address"]
        for name in names:
            if isinstance(full[name], float):
                assert short[name] == pytest.approx(full[name], rel=5e-4, abs=1e-12)
            else:
                assert short[name] == full[name]
    asked, _ = answer(run, "R?view=ranks&columns=lead_ns,apart_by", is_brief=True)
    assert [each["name"] for each in asked["columns"]] == ["lead_ns", "apart_by"]


def test_a_missing_figure_has_its_reason(run: Run) -> None:
    found, _ = answer(run, "R?columns=mfma_util_pct,stream")
    lacking = {name for row in found["rows"] for name, each in row.items() if each is None}
    assert lacking and lacking >= set(found["unknown"]) and all(found["unknown"].values())
