"""Text in other encodings than UTF-8, and tables wider than any profiler's."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.view import View
from chopper_core.render import info, render_frame
from chopper_core.render.info import info_text
from chopper_core.sources.settings import setting_keys
from chopper_core.tables import csv_stream
from chopper_core.tables.bytes import ByteSource
from chopper_core.util.atomic import read_small
from chopper_core.views.query import query
from chopper_tui.config import read_config
from tests.programs.fuzz.seeds import SEEDS, small_trace
from tests.wording import Wording

_BINARY: Final = ("chakra", "packed chakra", "packed trace", "rpd", "rocpd", "nsys", "cpu parquet")
# Chopper's own files are in UTF-8.
_OWN: Final = [name for name in SEEDS if name.startswith("recorded ")]
_TEXTS: Final = sorted(
    set(SEEDS).difference(_BINARY, _OWN, ("straggler analysis", "own sampler parquet"))
)


@pytest.mark.few(14)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("name", _TEXTS)
def test_text_of_any_tool_may_be_in_a_wide_encoding(
    name: str, encoding: str, tmp_path: Path
) -> None:
    path = SEEDS[name](tmp_path)
    text = path.read_text()
    plain = info_text(open_run(str(tmp_path), jobs=1))
    path.write_bytes(text.encode(encoding))
    assert info_text(open_run(str(tmp_path), jobs=1)) == plain


@pytest.mark.parametrize("mark", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_wide_text_is_read_in_pieces_of_any_size(mark: str, tmp_path: Path) -> None:
    text = "\ufeffa wide t\u00e9xt \U0001f600\n"
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(mark) + b"\x41")
    for size in (4, 5, 7, 100):
        with ByteSource(path, size) as source:
            found = b"".join(iter(source.read, b"")).decode()
        assert found == text[1:]


@pytest.mark.parametrize("name", ["manifest.json", "chopper.yaml"])
def test_settings_may_be_in_a_wide_encoding(name: str, tmp_path: Path) -> None:
    text = '{"seq_len": 4096}' if name.endswith("json") else "seq_len: 4096\n"
    (tmp_path / name).write_text(text, encoding="utf-16")
    assert [key for key, _ in setting_keys(tmp_path / name)] == ["seq_len"]


def test_telemetry_of_more_columns_than_any_monitor_writes_is_refused(
    tmp_path: Path, wording: Wording
) -> None:
    small_trace().write(tmp_path / "rank0.json")
    more = csv_stream.MAX_COLUMNS
    (tmp_path / "own.csv").write_text(f"time_ns,gpu,power_w{',c' * more}\n5,0,7{',1' * more}\n")
    ((_, why),) = open_run(str(tmp_path), jobs=1).failed
    wording(why, "10,003 columns", "10,000")


def test_a_table_of_more_columns_than_any_profiler_writes_is_refused(
    tmp_path: Path, wording: Wording
) -> None:
    small_trace().write(tmp_path / "rank0.json")
    more = csv_stream.MAX_COLUMNS
    heads = "Kernel_Name,Counter_Name,Counter_Value,Dispatch_Id,Agent_Id"
    rows = (f"{heads}{',c' * more}\n", f"k,SQ_WAVES,3,1,0{',1' * more}\n" * 3)
    (tmp_path / "1_counter_collection.csv").write_text("".join(rows))
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.table) == 16
    wording.among([why for _, why in run.failed], "10,005 columns")


def test_more_counters_than_any_profiler_writes_are_refused(
    tmp_path: Path, wording: Wording
) -> None:
    small_trace().write(tmp_path / "rank0.json")
    heads = "Kernel_Name,Counter_Name,Counter_Value,Dispatch_Id,Agent_Id\n"
    rows = (f"k,C{number},3,{number % 5},0\n" for number in range(csv_stream.MAX_COLUMNS + 5))
    (tmp_path / "1_counter_collection.csv").write_text(heads + "".join(rows))
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.table) == 16 and not run.counters
    ((_, why),) = run.failed
    wording(why, "10,005 counters")


def _rewritten(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """Write each text file of a directory anew, packed ones too."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        is_packed = data.startswith(b"\x1f\x8b")
        text = gzip.decompress(data) if is_packed else data
        # Binary formats have no such mark.
        if path.suffix == ".et" or text.startswith((b"SQLite", b"PAR1")) or b"\0" in text:
            continue
        path.write_bytes(gzip.compress(change(text)) if is_packed else change(text))


def _sorted(text: bytes) -> bytes:
    try:
        return json.dumps(json.loads(text), sort_keys=True).encode()
    except ValueError:
        return text


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "sorted keys": _sorted,
}


@pytest.mark.few(72)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seed", SEEDS)
def test_marks_and_the_order_of_keys_change_nothing(seed: str, change: str, tmp_path: Path) -> None:
    """One gate for text: what editors and scripts add or sort is the same run."""
    told = []
    for name in ("as it is", "changed"):
        folder = tmp_path / name / "run"
        folder.mkdir(parents=True)
        SEEDS[seed](folder)
        if name == "changed":
            _rewritten(folder, CHANGES[change])
        run = open_run(str(folder), jobs=1)
        lines = info.info_json(run).replace(str(folder), "").splitlines()
        size = re.compile(r'"size_bytes"|of no known tool')  # Which lists the keys.
        frame = render_frame(query(run, View("R")), "json").replace(str(folder), "")
        # Counters are listed as they come.
        told.append((sorted(line.rstrip(",") for line in lines if not size.search(line)), frame))
    assert told[0] == told[1]


def test_small_files_may_begin_with_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots, specifications, settings, keys: files that people edit."""
    small_trace().write(tmp_path / "rank0.json")
    mark = b"\xef\xbb\xbf"
    (tmp_path / "slots.csv").write_bytes(mark + b"gpu,slot\n0,front\n")
    (own := tmp_path / "gpu.toml").write_bytes(mark + b'["Own GPU"]\npower_w = 500\n')
    run = open_run(str(tmp_path), jobs=1)
    assert run.slots == {0: "front"} and not run.failed
    assert read_small(own).startswith(b"[")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "chopper").mkdir()
    (tmp_path / "chopper" / "config.toml").write_bytes(mark + b'[explorer]\ntheme = "light"\n')
    config = read_config(lambda: ())
    assert config.theme == "light" and not config.warnings
