"""Stores and the cache: the same run, whole or not at all, never a wrong one."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import Struct
from msgspec.structs import fields, replace

from chopper_core.ingest import cache
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.hardware import specifications
from chopper_core.model.inputs import Gpu, SampledFile, Source
from chopper_core.model.overrides import overrides_of
from chopper_core.model.run import Run
from chopper_core.model.shapes import Fused
from chopper_core.model.side_table import HostStack, HostTime, MemoryEvents
from chopper_core.model.signals import CpuSamples, IntegralCurve
from chopper_core.model.table import COLUMNS
from chopper_core.model.view import View
from chopper_core.render import info, render_frame
from chopper_core.store import format as store_format
from chopper_core.store import reader as store
from chopper_core.store import writer as store_writer
from chopper_core.store.writer import write_store
from chopper_core.tables.mmap_columns import ColumnPlace, content_of, let_go
from chopper_core.util import atomic as folders
from chopper_core.util.errors import DataError, UsageError
from chopper_core.views.query import query
from chopper_core.views.shared.signal_charts import signal_chart
from tests.align.traces import GEMM, TinyTrace
from tests.conftest import ROOT
from tests.demo import generated_files, small_files
from tests.programs.bench.runs import source_of
from tests.programs.fuzz.seeds import SEEDS
from tests.support import sample_run


def fields_without_default(kind: type[Struct]) -> list[str]:
    return [each.name for each in fields(kind) if each.required]


ADDRESSES = (
    "R",
    "R:gpu=5/iteration=11?sort=-idle_ns",
    "R?order=operation,gpu&filter=gemm|mlp",
    "R:gpu=0/iteration=11/phase=backward/layer=2?columns=SQ_WAVES,gfx_mhz,theoretical_ns,energy_j",
    "R:gpu=1/iteration=11?metric=power_w",
)


@pytest.fixture(scope="module")
def run() -> Run:
    made = generated_files("stored", ranks=8, iterations=2, layers=3)
    return open_run(str(made), jobs=1)


@pytest.fixture(scope="module")
def kept(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "demo.chopper"
    write_store(run, folder)
    return folder


@pytest.fixture
def copy(kept: Path, tmp_path: Path) -> Path:
    return shutil.copytree(kept, tmp_path / "copy")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(small_files() / "rank0.json.gz", folder)
    return folder


@pytest.mark.sweep
def test_every_array_comes_back(run: Run, kept: Path) -> None:
    again = store.read_store(kept)
    for name in COLUMNS:
        ours, theirs = again.table.column(name), run.table.column(name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert list(again.table.measured) == list(run.table.measured)
    for name in run.table.measured:
        np.testing.assert_array_equal(again.table.measured[name], run.table.measured[name])
    assert (again.table.names, again.table.operations) == (run.table.names, run.table.operations)
    for name, signal in run.measured.items():
        assert list(again.measured[name].curves) == list(signal.curves)
        for gpu, curve in signal.curves.items():
            for field in fields(curve):
                ours = getattr(again.measured[name].curves[gpu], field.name)
                np.testing.assert_array_equal(ours, getattr(curve, field.name))


def test_other_programs_read_the_columns(run: Run, kept: Path) -> None:
    tables = {path.stem: pa.ipc.open_file(path).read_all() for path in kept.glob("*.arrow")}
    assert tables["kernels"].column_names == list(COLUMNS)
    for name in COLUMNS:
        np.testing.assert_array_equal(tables["kernels"][name], run.table.column(name))
    assert tables["measured"].column_names == list(run.table.measured)
    curves = [curve for signal in run.measured.values() for curve in signal.curves.values()]
    for field in fields(IntegralCurve):
        for row, curve in zip(tables["series"][field.name], curves, strict=True):
            np.testing.assert_array_equal(row.values, getattr(curve, field.name))


def test_a_run_of_nothing_comes_back(tmp_path: Path) -> None:
    sample = sample_run(gpus=1)
    table = sample.table.take(np.empty(0, np.intp))
    write_store(replace(sample, table=table, measured={}, cpu=()), tmp_path / "store")
    again = store.read_store(tmp_path / "store")
    assert len(again.table) == 0 and not again.measured and not again.cpu
    for name in COLUMNS:
        assert again.table.column(name).dtype == table.column(name).dtype, name


def test_a_gpu_of_any_specification_comes_back(tmp_path: Path) -> None:
    """Of some the clock of the memory isn't known."""
    unknown = {each.memory_mhz is None for each in specifications().values()}
    assert unknown == {True, False}
    for name, each in specifications().items():
        write_store(replace(sample_run(gpus=1), described_hardware=each), tmp_path / name)
        assert store.read_store(tmp_path / name).described_hardware == each


def test_measured_columns_without_a_gap_come_back(tmp_path: Path) -> None:
    """Every activity has a grid: there is no copy."""
    made = TinyTrace()
    for at in range(3):
        sizes = {"grid": [2, 3, 1], "block": [64, 1, 1]}
        made.launch(GEMM, 100 * at, start=100 * at + 20, duration=50, **sizes)
    run = open_run(str(made.write(tmp_path / "rank0.json")), jobs=1)
    write_store(run, tmp_path / "store")
    store.verify(tmp_path / "store")
    measured = store.read_store(tmp_path / "store").table.measured
    assert measured["grid"].tolist() == [6, 6, 6] and measured["block"].tolist() == [64, 64, 64]


_IN_OTHER_FILES = (
    *("name", "table", "measured", "cpu"),
    *("side_tables", "others", "cubes"),
)


def test_everything_else_comes_back(run: Run, kept: Path) -> None:
    again = store.read_store(kept)
    assert again.name == str(kept)
    for field in fields(Run):
        if field.name not in _IN_OTHER_FILES:
            assert getattr(again, field.name) == getattr(run, field.name), field.name
    assert (
        again.side(HostTime).stacks == run.side(HostTime).stacks and len(again.side(HostTime)) > 300
    )
    for name, values in run.side(HostTime).columns().items():
        np.testing.assert_array_equal(again.side(HostTime).columns()[name], values)
    assert len(again.cpu) == len(run.cpu) == 1
    for field in fields(CpuSamples):
        one, two = (np.asarray(getattr(each.cpu[0], field.name)) for each in (again, run))
        assert np.array_equal(one, two), field.name
    ours, theirs = (json.loads(info.info_json(each)) for each in (again, run))
    assert ours | {"run": ""} == theirs | {"run": ""}


def test_what_a_file_and_its_gpu_lack_takes_no_text(tmp_path: Path) -> None:
    """Of ten thousand ranks it would be a third of what opening the store reads."""
    run = replace(sample_run(gpus=2), sources=(source_of(0, 7), source_of(1, 7)))
    write_store(run, tmp_path / "store")
    stored = json.loads((tmp_path / "store" / store_format.RUN).read_bytes())["run"]
    assert {*stored["gpus"][0]} == {*fields_without_default(Gpu)}
    assert {*stored["sources"][0]} == {*fields_without_default(Source), "host"}
    again = store.read_store(tmp_path / "store")
    assert (again.gpus, again.sources) == (run.gpus, run.sources)


@pytest.mark.parametrize("address", ADDRESSES)
def test_views_are_the_same(run: Run, kept: Path, address: str) -> None:
    again, view = store.read_store(kept), parse(address)
    for format_name in ("text", "json"):
        assert render_frame(query(again, view), format_name) == render_frame(
            query(run, view), format_name
        )
    np.testing.assert_array_equal(
        signal_chart(again, view, 40).values, signal_chart(run, view, 40).values
    )


def test_a_store_is_opened_by_its_name_and_may_move(kept: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(kept, tmp_path / "elsewhere")
    assert len(open_run(str(moved)).gpus) == 8
    with pytest.raises(UsageError, match="is a store"):
        open_run(str(moved), overrides=overrides_of([("amd_smi", 1)]))


@pytest.mark.parametrize(
    "name", ["kernels.arrow", "series.arrow", "cpu.arrow", "run.json", "store.json"]
)
@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_a_corrupt_store_is_refused(copy: Path, name: str, harm: str) -> None:
    _harm(copy / name, harm)
    with pytest.raises(DataError, match=r"store|version") as caught:
        store.read_store(copy)
    assert str(copy) in str(caught.value)


@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_corrupt_measured_columns_are_refused_when_they_are_read(copy: Path, harm: str) -> None:
    _harm(copy / "measured.arrow", harm)
    with pytest.raises(DataError, match=r"measured\.arrow|corrupt"):
        query(store.read_store(copy), parse("R?columns=gfx_mhz"))


def _harm(path: Path, harm: str) -> None:
    content = path.read_bytes()
    if harm == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif harm == "flip":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :])
    else:
        path.unlink()


def test_another_version_is_refused_with_the_command(copy: Path) -> None:
    index = json.loads((copy / "store.json").read_text())
    (copy / "store.json").write_text(json.dumps(index | {"fingerprint": "older"}))
    with pytest.raises(DataError, match=f"chopper ingest .+ -o {copy}"):
        open_run(str(copy))


@pytest.mark.parametrize("flips", [150, pytest.param(1500, marks=pytest.mark.sweep)])
def test_every_flipped_bit_is_refused(tmp_path: Path, flips: int) -> None:
    """In the index and the metadata most of all, whose names and counts nothing else would tell."""
    folder, random, sample = tmp_path / "part", Random(flips), sample_run()
    power_w = np.arange(float(len(sample.table)))
    sample = replace(sample, table=sample.table.with_measured({"power_w": power_w}))
    write_store(sample, folder, origin='{"size_bytes":1}')
    contents = {path: bytearray(path.read_bytes()) for path in sorted(folder.iterdir())}
    names = [folder / "store.json", folder / "run.json", *contents]
    for _ in range(flips):
        path = random.choice(names)
        at, bit = random.randrange(len(contents[path])), 1 << random.randrange(8)
        contents[path][at] ^= bit
        path.write_bytes(contents[path])
        with pytest.raises(DataError, match=r"corrupt|another version|names other files"):
            dict(store.read_store(folder).table.measured)
        contents[path][at] ^= bit
        path.write_bytes(contents[path])
    store.read_store(folder)


def test_what_is_no_store_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("text")
    with pytest.raises(UsageError, match="is not a Chopper store"):
        write_store(run, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "text"


def test_a_failing_writer_leaves_the_older_store(
    run: Run, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_writer, "_series", full)
    with pytest.raises(DataError, match="No space left"):
        write_store(run, copy)
    assert len(store.read_store(copy).table) == len(run.table)
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


def test_a_killed_writer_leaves_the_older_store(copy: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from chopper_core.store import reader as store, writer as store_writer\n"
        "store_writer._series = lambda run: os._exit(9)\n"
        "store_writer.write_store(store.read_store(Path(sys.argv[1])), Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(copy)], cwd=ROOT)
    assert done.returncode == 9
    assert len(store.read_store(copy).gpus) == 8


@pytest.mark.sweep
def test_writers_at_once_leave_one_whole_store(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "shared"
    code = (
        "import sys; from pathlib import Path\n"
        "from chopper_core.store import reader as store, writer as store_writer\n"
        "run = store.read_store(Path(sys.argv[1]))\n"
        "for _ in range(5): store_writer.write_store(run, Path(sys.argv[2]))"
    )
    write_store(run, tmp_path / "source")
    commands = [[sys.executable, "-c", code, str(tmp_path / "source"), str(target)]] * 3
    with ThreadPoolExecutor() as pool:
        codes = list(pool.map(lambda each: subprocess.run(each, cwd=ROOT).returncode, commands))
    assert codes == [0, 0, 0]
    assert len(store.read_store(target).table) == len(run.table)


@pytest.mark.sweep
def test_a_replaced_store_is_always_there_and_whole(
    run: Run, copy: Path, trace: Path, tmp_path: Path
) -> None:
    """One process replaces it by one of two runs in turn, this one reads."""
    _can_exchange(tmp_path)
    other = tmp_path / "other"
    write_store(open_run(str(trace), jobs=1), other)
    sizes = {len(store.read_store(other).table), len(run.table)}
    code = (
        "import sys; from pathlib import Path\n"
        "from chopper_core.store import reader as store, writer as store_writer\n"
        "runs = [store.read_store(Path(path)) for path in sys.argv[1:3]]\n"
        "for n in range(30): store_writer.write_store(runs[n % 2], Path(sys.argv[3]))"
    )
    source = shutil.copytree(copy, tmp_path / "source")
    target = tmp_path / "target"
    write_store(run, target)
    found = set()
    command = [sys.executable, "-c", code, *map(str, (other, source, target))]
    with subprocess.Popen(command, cwd=ROOT) as writer:
        while writer.poll() is None:
            for _ in range(200):
                assert (target / "store.json").exists()
            try:
                found.add(len(store.read_store(target).table))
            except DataError as error:
                assert "replaced repeatedly" in str(error)
    assert writer.returncode == 0 and found <= sizes and found
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_store_that_two_runs_replace_in_turn_while_it_is_read_is_read_again(
    run: Run, copy: Path, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index that is read first is there at the end again, the files in between were others."""
    other = open_run(str(trace), jobs=1)
    read, turns = store._read_files, []

    def in_between(folder: Path, *rest: Any) -> Run:
        if not turns:
            turns.append(write_store(other, copy))
            with pytest.raises(DataError):
                read(folder, *rest)
            write_store(run, copy)
            raise DataError("the checksums are of another store")
        return read(folder, *rest)

    monkeypatch.setattr(store, "_read_files", in_between)
    assert len(store.read_store(copy).table) == len(run.table)


def _can_exchange(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
    if not folders._exchange(folder / "one", folder / "two"):
        pytest.skip("this file system can't exchange two names")


def test_without_an_exchange_it_is_replaced_all_the_same(
    run: Run, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    write_store(run, copy)
    assert len(store.read_store(copy).table) == len(run.table)
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


def test_a_name_that_is_not_given_leaves_the_older_store(
    run: Run, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.rename

    def failing(source: Path, target: Path) -> None:
        if str(source).endswith(".new"):
            raise OSError(5, "Input/output error")
        plain(source, target)

    monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    monkeypatch.setattr(folders.os, "rename", failing)
    with pytest.raises(DataError, match="Input/output error"):
        write_store(run, copy)
    assert len(store.read_store(copy).table) == len(run.table)


@pytest.mark.parametrize("is_synced", [True, False])
def test_each_file_of_a_store_is_flushed_unless_it_can_be_read_again(
    is_synced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[int] = set()
    monkeypatch.setattr(folders.os, "fsync", lambda file: flushed.add(os.fstat(file).st_ino))
    for _ in range(2):
        flushed.clear()
        write_store(sample_run(), tmp_path / "a.chopper", is_synced=is_synced)
        files = {path.stat().st_ino for path in (tmp_path / "a.chopper").iterdir()}
        assert flushed >= files if is_synced else not flushed


def test_a_kept_run_is_read_once(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache.open_cached(str(trace), jobs=1)
    monkeypatch.setattr(cache, "_read", None)
    again = cache.open_cached(str(trace))
    assert again.name == first.name == str(trace)
    assert info.info_json(again) == info.info_json(first)
    (entry,) = cache.entries()
    assert entry.name == str(trace) and entry.size_bytes > 10_000
    assert cache.clear() == (1, entry.size_bytes) and cache.entries() == []


def test_a_large_run_that_was_just_kept_takes_no_memory_of_its_own(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = cache.open_cached(str(trace), jobs=1)
    cache.clear()
    monkeypatch.setattr(cache, "_MAPPED_FROM_ROWS", 1)
    kept = cache.open_cached(str(trace), jobs=1)
    held: object = kept.table.start_ns
    while isinstance(held, np.ndarray):
        held = held.base
    assert isinstance(held.obj if isinstance(held, memoryview) else held, mmap.mmap)
    assert kept.name == read.name and info.info_json(kept) == info.info_json(read)
    assert render_frame(query(kept, View(kept.name)), "json") == render_frame(
        query(read, View(read.name)), "json"
    )


def test_a_run_is_kept_once_however_its_path_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened from the cache, it names its files as if it had been read by that spelling."""
    above = tmp_path / "is" / "a"
    (above / "run").mkdir(parents=True)
    SEEDS["amd-smi csv"](above / "run")
    (above / "run" / "rank9.json").write_text("{")
    (above / "run" / "x.csv").write_text("timestamp,gpu,power\n")
    (tmp_path / "link").symlink_to(above)
    monkeypatch.setenv("HOME", str(tmp_path))
    places = {
        above: ("run", "run/", "./run", "../a/run", str(above / "run"), "~/is/a/run"),
        above / "run": (".", "../run", "./"),
        tmp_path: ("is/a/run", "link/run", "is//a/run"),
    }
    for place, names in places.items():
        monkeypatch.chdir(place)
        for name in names:
            read = open_run(name, jobs=1)
            for _ in range(2):
                kept = cache.open_cached(name, jobs=1)
                assert kept.name == read.name == name
                assert info.info_json(kept) == info.info_json(read), name
                assert str(info.info_text(kept)) == str(info.info_text(read))
            (entry,) = cache.entries()
            assert entry.name == str(above / "run")
            monkeypatch.setattr(cache, "_read", None)


@pytest.mark.parametrize("name", ["rank0.json.gz", "./rank0.json.gz"])
def test_a_run_of_one_file_is_kept_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(small_files() / "rank0.json.gz", tmp_path)
    monkeypatch.chdir(tmp_path)
    cache.open_cached(str(tmp_path / "rank0.json.gz"), jobs=1)
    monkeypatch.setattr(cache, "_read", None)
    kept, read = cache.open_cached(name), open_run(name, jobs=1)
    assert str(info.info_text(kept)) == str(info.info_text(read)) and len(cache.entries()) == 1


@pytest.mark.sweep
def test_what_another_version_kept_is_listed_replaced_and_cleared(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.open_cached(str(trace), jobs=1)
    with monkeypatch.context() as later:
        later.setattr(store_format, "fingerprint", lambda: "of the next version")
        later.setattr(cache, "_STARTED_WITH", "of the next version")
        (old,) = cache.entries()
        assert old.is_old and old.name == str(trace)
        cache.open_cached(str(trace), jobs=1)
        (new,) = cache.entries()
        assert not new.is_old and new.path != old.path
    assert cache.clear(old_only=True) == (1, new.size_bytes)
    cache.open_cached(str(trace), jobs=1)
    assert cache.clear(old_only=True) == (0, 0) and len(cache.entries()) == 1


def test_changed_files_are_read_anew(trace: Path) -> None:
    cache.open_cached(str(trace), jobs=1)
    (kept,) = cache.entries()
    shutil.copy(small_files() / "rank1.json.gz", trace)
    assert len(cache.open_cached(str(trace), jobs=1).gpus) == 2
    (newer,) = cache.entries()
    assert newer.path != kept.path
    os.utime(trace / "rank1.json.gz", (1, 1))
    assert len(cache.open_cached(str(trace), jobs=1).gpus) == 2
    assert [entry.path for entry in cache.entries()] != [newer.path]


@pytest.mark.sweep
def test_what_a_person_says_of_gpus_counts_and_not_where(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = "[MI300X]\ntdp_w = 700\n"
    kept = []
    for name, text in (("a", ""), ("b", ""), ("c", says), ("d", says), ("e", f"{says}# anew")):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / name))
        if text:
            (tmp_path / name / "chopper").mkdir(parents=True)
            (tmp_path / name / "chopper" / "hardware.toml").write_text(text, encoding="utf-8")
        cache.open_cached(str(trace), jobs=1)
        (entry,) = cache.entries()
        kept.append(entry.path)
    assert kept[0] == kept[1] != kept[2] == kept[3] != kept[4] != kept[0]


def test_what_python_compiles_is_no_change(trace: Path) -> None:
    names = {Path(path).name for path in cache.code_files()}
    assert {"reader.py", "hardware.toml", "rank.py"} <= names
    assert all(name.endswith((".py", ".toml")) for name in names)


@pytest.mark.sweep
def test_a_corrupt_entry_is_read_anew(trace: Path) -> None:
    cache.open_cached(str(trace), jobs=1)
    (kept,) = cache.entries()
    _harm(kept.path / "kernels.arrow", "flip")
    assert len(cache.open_cached(str(trace), jobs=1).gpus) == 1
    assert len(store.read_store(kept.path).gpus) == 1


def test_an_open_run_survives_its_store(copy: Path, run: Run) -> None:
    again = store.read_store(copy)
    shutil.rmtree(copy)
    view = parse("R?columns=gfx_mhz,SQ_WAVES")
    assert render_frame(query(again, view), "json") == render_frame(query(run, view), "json")


def test_without_a_cache_directory_it_goes_on(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(cache.open_cached(str(trace), jobs=1).gpus) == 1
    assert cache.entries() == []


def test_errors_are_those_of_reading(tmp_path: Path) -> None:
    for name in (str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(DataError) as ours:
            cache.open_cached(name)
        with pytest.raises(DataError) as theirs:
            open_run(name)
        assert str(ours.value) == str(theirs.value)
    assert not cache.entries()


@pytest.mark.parametrize("kind", [Gpu, Fused, HostStack, ColumnPlace, SampledFile, MemoryEvents])
def test_the_fingerprint_covers_every_stored_type(
    kind: type[Struct], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store_format.fingerprint.__wrapped__()
    monkeypatch.setitem(kind.__annotations__, "added", "int")
    assert store_format.fingerprint.__wrapped__() != before


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux counts it")
def test_what_was_read_of_a_mapped_file_is_left_to_the_system(tmp_path: Path) -> None:
    path = tmp_path / "column"
    path.write_bytes(bytes(range(256)) * (1 << 16))
    values = np.frombuffer(content_of(path), np.uint8)
    total, held = values.sum(), _mapped_kb()
    let_go()
    assert _mapped_kb() < held - path.stat().st_size // 2048
    assert values.sum() == total


def _mapped_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))
