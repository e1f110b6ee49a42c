"""`chopper info` lists the kernels whose names have no class, with their time."""

from __future__ import annotations

from pathlib import Path

from chopper_core.render.info import describe, info_text
from tests.support import opened_events


def test_info_lists_unknown_kernels_with_their_time(tmp_path: Path) -> None:
    names = {"mystery_one": 300.0, "another_riddle": 700.0, "Cijk_Alik_Bljk_MT64x64": 5.0}
    names |= {f"puzzle_{number}": 1.0 for number in range(10)}
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}
    events = [
        {**kernel, "name": name, "ts": 1000.0 * place, "dur": duration}
        for place, (name, duration) in enumerate(names.items())
    ]
    run = opened_events(tmp_path, events)
    unknown = describe(run)["unclassified"]
    assert list(unknown)[:2] == ["another_riddle", "mystery_one"]
    assert unknown["another_riddle"] == 0.7 and "Cijk_Alik_Bljk_MT64x64" not in unknown
    lines = info_text(run).splitlines()
    begin = lines.index("kernels without a class, by time")
    assert lines[begin + 1].split() == ["0.700", "ms", "another_riddle"]
    assert lines[begin + 11].strip() == "and 2 more"
