"""A file next to a good trace that can't be used costs that file, never the run."""

from __future__ import annotations

import struct
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pytest

from chopper_core.ingest import attach
from chopper_core.ingest.open import open_run
from chopper_core.sources.registry import Family, discover, family_of
from chopper_core.util.errors import DataError
from tests.programs.fuzz.seeds import SEEDS, small_trace
from tests.wording import Wording

_ERRORS = cycle(
    (
        TypeError("unhashable type: 'list'"),
        KeyError("ts"),
        OverflowError("Python int too large to convert to C long"),
        RecursionError("maximum recursion depth exceeded"),
        AssertionError(),
        struct.error("argument out of range"),
        pa.ArrowNotImplementedError("Unsupported cast"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    )
)
_COMPANIONS = {
    "rocpd": ("counters.rocpd", "read"),
    "rocprofv3 json": ("counters.rocprofv3_json", "read"),
    "rocprofv3 csv": ("counters.rocprofv3_csv", "read_processes"),
    "amd-smi csv": ("telemetry.amd_smi", "read"),
    "dcgm csv": ("telemetry.dcgm", "read"),
    "own sampler parquet": ("telemetry.sampler", "read"),
    "cpu parquet": ("cpu", "read"),
    "host trace 1.0.1": ("chopper_core.extensions.chakra.host_trace", "read"),
}


@pytest.mark.parametrize("seed", _COMPANIONS)
def test_an_error_that_no_reader_expects_costs_the_file(
    seed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, error = SEEDS[seed](tmp_path), next(_ERRORS)

    def fail(*_: object, **__: object) -> None:
        raise error

    module, function = _COMPANIONS[seed]
    place = module if module.startswith("chopper_core") else f"chopper_core.sources.{module}"
    monkeypatch.setattr(f"{place}.{function}", fail)
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.table)
    notes = [
        *(why for _, why in run.failed),
        *(note for each in run.sources for note in each.notes),
    ]
    (sentence,) = [note for note in notes if "internal error" in note]
    assert str(path) in sentence
    assert type(error).__name__ in sentence


def test_an_error_in_recognition_costs_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    path = SEEDS["zeus"](tmp_path)

    def fail(_: object) -> None:
        raise TypeError("odd")

    monkeypatch.setattr("chopper_core.sources.telemetry.zeus.recognise", fail)
    assert len(open_run(str(tmp_path), jobs=1).table)
    (skipped,) = (
        each for each in discover([tmp_path], Family.TELEMETRY).skipped if each.path == path
    )
    wording(skipped.reason, "TypeError: odd")
    assert family_of(path) is None


def test_an_error_in_joining_costs_the_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    SEEDS["zeus"](tmp_path)

    def fail(*_: object) -> None:
        raise IndexError("out of bounds")

    monkeypatch.setattr(attach, "place", fail)
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.table)
    ((_, reason),) = run.failed
    wording(reason, "telemetry with kernels")
    wording(reason, "IndexError: out of bounds")


@pytest.mark.parametrize(
    ("name", "text"),
    [("slots.csv", f"gpu,slot\n{'9' * 5000},a\n"), ("manifest.json", f'{{"tp": "{"9" * 5000}"}}')],
)
def test_settings_beyond_any_number_cost_the_file(name: str, text: str, tmp_path: Path) -> None:
    small_trace().write(tmp_path / "rank0.json")
    (tmp_path / name).write_text(text)
    assert len(open_run(str(tmp_path), jobs=1).table)


def test_a_trace_alone_still_shows_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of Chopper's own in reading a trace isn't hidden: the crash log needs it."""
    small_trace().write(tmp_path / "rank0.json")

    def fail(*_: object) -> None:
        raise TypeError("odd")

    monkeypatch.setattr("chopper_core.sources.kineto.reader.read", fail)
    with pytest.raises(TypeError):
        open_run(str(tmp_path), jobs=1)
    with pytest.raises(DataError, match="internal error"):
        discover([tmp_path], Family.TRACE).files[0].read()
