"""Files that are no plain files of one tool's making: read rightly, or named with the way out."""

from __future__ import annotations

import errno
import gzip
import io
import json
import lzma
import os
import re
import shutil
import socket
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chopper_core.extensions.chakra import feeder_json, host_trace
from chopper_core.extensions.chakra.schedules import primus, workers
from chopper_core.ingest.cache import open_cached
from chopper_core.ingest.open import open_run
from chopper_core.ingest.rank import read_unchanged
from chopper_core.model.run import Run
from chopper_core.render.info import info_text
from chopper_core.sources import cpu
from chopper_core.sources.counters import cupti_ranges, rocpd
from chopper_core.sources.settings import read_settings
from chopper_core.sources.telemetry import charllm, dcgm, nvidia_smi, sampler, table
from chopper_core.tables.bytes import ByteSource
from chopper_core.util.errors import DataError
from chopper_tui.cli import main
from tests.align.traces import TinyTrace
from tests.limited import NEEDS_LINUX
from tests.programs.fuzz.seeds import SEEDS, small_trace
from tests.sources.telemetry.telemetry_texts import NVIDIA_CSV
from tests.wording import Wording


def text_of(trace: TinyTrace) -> str:
    """A trace as its file."""
    with TemporaryDirectory() as folder:
        return trace.write(Path(folder, "rank0.json")).read_text()


TRACE = text_of(small_trace())
CSV = NVIDIA_CSV.encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of one good trace."""
    small_trace().write(tmp_path / "rank0.json")
    return tmp_path


def told(folder: Path) -> str:
    """What the run says; the good trace opens as if it were alone."""
    run = open_run(str(folder), jobs=1)
    assert len(run.table) == 16
    return info_text(run, 10_000)


def packed(write: Callable[[Any], None]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def tar(file: io.BytesIO) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("rank0.json"), io.BytesIO())


def zipped(file: io.BytesIO) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("rank0.json", "{}")


TAR_GZ: Final = gzip.compress(packed(tar), mtime=0)
"""Without the second of its making, which each worker of the tests would name it by."""


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv.xz", lzma.compress(CSV), "compressed with xz; decompress it first (xz -d)"),
        ("a.csv.zst", b"\x28\xb5\x2f\xfd" + CSV, "can't be read: The zstd stream is damaged"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c" + CSV, "is a 7-Zip archive; unpack it first (7z x)"),
        ("a.zip", packed(zipped), "is a zip archive (rank0.json …); unpack it"),
        ("a.tar", packed(tar), "is a tar archive (rank0.json …); unpack it"),
        ("a.json.gz", TAR_GZ, "is a tar archive (rank0.json …); unpack it"),
        ("a.csv", CSV.replace(b", ", b";"), "separated by semicolons (timestamp, index"),
        ("a.csv", CSV.replace(b", ", b"\t"), "separated by tabs (timestamp, index"),
        ("a.csv", b"# clock: epoch\ntime_ns;gpu;power_w\n5;0;700,5\n", "numbers with points"),
        ("a.csv", b"", "a.csv: is empty"),
    ],
)
def test_what_is_not_read_is_named_with_the_way(
    name: str, content: bytes, said: str, folder: Path
) -> None:
    (folder / name).write_bytes(content)
    assert said in told(folder)


@pytest.mark.few(3)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_tables_of_any_encoding_and_line_end_are_read(
    encoding: str, end: str, folder: Path
) -> None:
    (folder / "nvidia.csv").write_bytes(NVIDIA_CSV.replace("\n", end).encode(encoding))
    run = open_run(str(folder), jobs=1)
    (source,) = run.telemetry
    (folder / "nvidia.csv").write_bytes(CSV)
    (plain,) = open_run(str(folder), jobs=1).telemetry
    assert source.samples == plain.samples > 0


@NEEDS_LINUX
@pytest.mark.parametrize("name", ["rank1.json", "nvidia.csv"])
def test_what_is_no_file_is_not_waited_for(name: str, folder: Path) -> None:
    os.mkfifo(folder / name)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "rank2.json"))
        (folder / "rank3.json").symlink_to("/dev/zero")
        text = told(folder)
    assert text.count("not a file; Chopper reads files more than once") == 3
    for alone in (folder / name, Path("/dev/null"), folder / "rank2.json"):
        with pytest.raises(DataError, match=r"is a (pipe|device|socket), not a file"):
            open_run(str(alone), jobs=1)


def test_links_that_lead_back_cost_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("again", "back", "round"):
        (folder / name).symlink_to(folder, target_is_directory=True)
    (folder / "a.json").symlink_to("b.json")
    (folder / "b.json").symlink_to("a.json")
    (folder / "rank7.json").symlink_to("gone")
    text = told(folder)
    assert text.count("is a link to a directory, which is not followed") == 3
    assert text.count("Too many levels of symbolic links") == 2
    assert "rank7.json" in text
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
    assert len(open_cached(str(folder), jobs=1).table) == 16
    (folder / "self").symlink_to("self")
    with pytest.raises(DataError, match="does not exist"):
        open_run(str(folder / "self"))


def test_settings_and_runs_beside_a_link_to_itself_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "run").mkdir()
    small_trace().write(folder / "rank0.json")
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "job.yaml").write_text("seq_len: 4096\n")
    assert 4096 in read_settings(folder).values()
    assert main(["runs", str(folder)]) == 0
    assert main(["runs", str(tmp_path)]) == 0
    assert "symbolic" not in capsys.readouterr().err


def test_recordings_next_to_each_other_are_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("before", "after"):
        (run := tmp_path / name).mkdir()
        small_trace().write(run / "rank0.json")
        (run / "run.json").write_text(
            '{"schema":"chopper.record/1","command":["train.py"],"returncode":0}'
        )
        (run / "processes").mkdir()
        (run / "processes" / "n1-7.json").write_text(
            '{"schema":"chopper.process/1","host":"n1","pid":7,"rank":0,"world":1}'
        )
    assert main(["runs", str(tmp_path)]) == 0
    assert "2 runs: 2 ok" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", [["info"], ["report", "-o", "page.html"], ["export", "--to", "perfetto", "-o", "x"]]
)
def test_several_runs_are_not_described_as_one(
    command: list[str],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    wording: Wording,
) -> None:
    shutil.copy(folder / "rank0.json", folder / "other.json")
    monkeypatch.chdir(folder.parent)
    assert main([*command, str(folder)]) == 1
    wording(capsys.readouterr().err, "2 runs: other, rank0")


def test_a_monitor_s_log_that_links_to_itself_is_named(tmp_path: Path) -> None:
    folder = SEEDS["charllm alone"](tmp_path).parent
    looped = folder / "gpu_power_0.csv"
    looped.unlink(missing_ok=True)
    looped.symlink_to(looped.name)
    assert "Too many levels of symbolic links" in info_text(open_run(str(folder), jobs=1))


@NEEDS_LINUX
@pytest.mark.parametrize("name", ["chakra", "packed chakra"])
def test_a_pipe_is_checked_in_no_time(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    path = SEEDS[name](tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert main(["check", str(tmp_path)]) == 1
    wording(capsys.readouterr().out, f"{path.name}: ", "pipe")


@NEEDS_LINUX
def test_a_part_of_a_recording_that_is_a_pipe_is_named(tmp_path: Path, wording: Wording) -> None:
    path = SEEDS["recorded nodes/n1.json"](tmp_path)
    path.unlink()
    os.mkfifo(path)
    wording.among(told(tmp_path), "n1.json", "pipe")


@pytest.mark.parametrize("part", ["run.json", "nodes/n1.json", "processes/n1-100.json"])
@pytest.mark.parametrize("number", [2**62, -(2**63), 10**30])
def test_a_recording_s_number_beyond_any_time_is_named(
    part: str, number: int, tmp_path: Path, wording: Wording
) -> None:
    path = SEEDS[f"recorded {part}"](tmp_path)
    text, found = re.subn(r"(?<=[:,])\d{2,}(?=[,}])", str(number), path.read_text())
    path.write_text(text)
    assert found
    wording.among(told(tmp_path), path.name, "Expected `int`")


def test_an_unreadable_folder_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    closed, plain = folder / "closed", os.scandir
    closed.mkdir()

    def refuse(path: Any = ".") -> Any:
        if str(path) == str(closed):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", refuse)
    wording.among(told(folder), "closed: ", "Permission denied")


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 300 + "/rank0.json", "~nobody-of-this-name/x"])
def test_a_path_that_cannot_be_looked_up_is_an_error(name: str) -> None:
    with pytest.raises(DataError, match=r"can't be read|does not exist") as error:
        open_run(name)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("name", [b"rank0\n.json", b"rank0\xff.json", b"rank0\x1b[31m.json"])
def test_names_of_any_bytes_open(name: bytes, folder: Path) -> None:
    shutil.move(folder / "rank0.json", os.fsencode(folder) + b"/" + name)
    assert told(folder)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_names_of_any_bytes_are_read_kept_and_written(
    seed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON, Arrow and SQLite take names in UTF-8 alone: each ended a command."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tmp_path / "runs\udcfe" / "a\udcff"
    run.parent.mkdir()
    (tmp_path / "plain").mkdir()
    SEEDS[seed](tmp_path / "plain")
    (tmp_path / "plain").rename(run)
    for path in [path for path in run.rglob("*") if path.is_file()]:
        path.rename(path.with_name(path.name.replace(".", "\udcff.", 1)))
    store = run.with_name("s\udcff")
    outs = [["export", str(run), "--to", to, "-o", f"{run}.{to}"] for to in ("perfetto", "parquet")]
    for arguments in (
        *(["ingest", str(run), "-o", str(store)], ["show", str(store)], ["info", str(store)]),
        *(["show", str(run), "--format", "json", "-o", f"{run}.json"], ["info", str(run)], *outs),
        *(["ingest", str(run), "--into", f"{store}2"], ["runs", str(run.parent)]),
        *(["ingest", str(run), "--finish", f"{store}2"], ["diff", str(run), str(store)]),
    ):
        main(arguments)
        said = capsys.readouterr().err
        assert "utf-8" not in said and "internal error" not in said, (arguments, said)


def parquet(**columns: list[Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


WORKER: dict[str, list[Any]] = {
    name: [0.0] for name in ("dp_rank", "stage", "rank", "step", "start_ts", "mb_id")
}
WORKER |= {"optype": ["forward"], "duration": [-1.0]}


UNUSABLE: list[tuple[Callable[[Path], Any], str, bytes, str]] = [
    (feeder_json.read, "a.json", b"{", "can't be read as Chakra JSON"),
    (feeder_json.read, "a.json", b'{"workload_graph": 1}', "has no list 'workload_graph' of nodes"),
    (feeder_json.read, "a.json", b'{"workload_graph": [1]}', "a node, the 1th, that is no object"),
    (feeder_json.read, "a.json", b'{"workload_graph": [{"id": "x"}]}', "invalid node, the 1th"),
    (feeder_json.read, "a.json", b'{"workload_graph": [{"id": 99999999999999999999}]}', "64 bits"),
    (feeder_json.read, "a.json", b'{"workload_graph": []}', "is a Chakra trace without nodes"),
    (feeder_json.read, "a.json", b'{"workload_graph": [{"id": 1, "name": "a", "nodetype": 4, '
        b'"runtime": 9007199254740993}]}', "not a number of microseconds"),
    (primus.read, "pp_0.json", b'{"1": {"fwd_start": [', "isn't valid JSON"),
    (primus.read, "pp_0.json", b'{"1": {"fwd_start": 3}}', "but holds no usable step"),
    (workers.read, "a.parquet", b"PAR1garbage", "can't be read"),
    (workers.read, "a.parquet", parquet(**WORKER), "no usable row"),
    (cupti_ranges.read, "a.json", b'{"traceEvents": []}', "has no ranges with CUPTI counters"),
    (cpu.read, "cpu.csv", b"a,b\n1,2\n", "has no columns time_ns, cpu and percent"),
    (cpu.read, "cpu.parquet", b"PAR1garbage", "can't be read"),
    (sampler.read, "a.parquet", b"PAR1garbage", "can't be read"),
    (sampler.read, "a.parquet", parquet(a=[1]), "is a Parquet file without time_ns and signals"),
    (sampler.read, "a.csv", b"a,b\n1,2\n", "has no headings of a known telemetry format"),
    (nvidia_smi.read, "dmon.txt", b"# magic\n0 1 2\n", "has no headings of a known telemetry"),
    (dcgm.read, "dmon.txt", b"#Entity\nGPU 0 1\n", "has no headings of a known telemetry"),
    (charllm.read, "unnamed.csv", b"1,2\n", "unnamed.csv "),
    (rocpd.read, "a.db", b"no database", "file is not a database"),
]  # fmt: skip


@pytest.mark.few(7)
@pytest.mark.parametrize(("read", "name", "content", "says"), UNUSABLE)
def test_what_a_reader_cannot_use_is_a_sentence(
    read: Callable[[Path], Any], name: str, content: bytes, says: str, tmp_path: Path
) -> None:
    """Recognising a file keeps most of them from its reader; a caller of the library may not."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(says)) as refused:
        read(path)
    assert str(path) in str(refused.value) and len(str(refused.value)) < 400


def test_limits_of_readers_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"workload_graph": []}')
    monkeypatch.setattr(feeder_json, "_MAX_BYTES", 3)
    with pytest.raises(DataError, match="has more than 3 bytes of JSON; give"):
        feeder_json.read(path)
    monkeypatch.setattr(host_trace, "_MAX_BYTES", 3)
    with pytest.raises(DataError, match="has more than 3 bytes of JSON"):
        host_trace.read(path)
    path = tmp_path / "cpu.csv"
    path.write_text("time_ns,cpu,percent\n" + "".join(f"{n},{n},1\n" for n in range(9)))
    monkeypatch.setattr(cpu, "_MAX_SPARSE_CELLS", 1)
    monkeypatch.setattr(cpu, "_MAX_CELLS_PER_ROW", 1)
    with pytest.raises(DataError, match="no sampler leaves out that many"):
        cpu.read(path)
    path = tmp_path / "nvidia.csv"
    path.write_text(NVIDIA_CSV + NVIDIA_CSV.replace(", index", ",index"))
    monkeypatch.setattr(table, "_MAX_HEADINGS", 0)
    with pytest.raises(DataError, match="changes its headings more than 0 times"):
        nvidia_smi.read(path)


def test_a_rank_that_changes_whenever_it_is_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = count()
    monkeypatch.setattr("chopper_core.ingest.rank.file_state", lambda _: (next(states), 0, 0))
    with pytest.raises(DataError, match="changed while it was read; read it again once it is"):
        read_unchanged(folder / "rank0.json", lambda: cast(Run, None))
    monkeypatch.setattr("chopper_core.ingest.open.file_state", lambda _: (next(states), 0, 0))
    with pytest.raises(DataError, match="changed while it was read; open it again once it is"):
        open_run(str(folder), jobs=1)


class Stale(io.BytesIO):
    """A file of a server that went away."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 3000:
            raise OSError(errno.ESTALE, "Stale file handle")
        return super().read(size)


def test_a_server_that_goes_away_costs_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ByteSource.__init__

    def opened(self: ByteSource, path: Path, *args: Any, **options: Any) -> None:
        start(self, path, *args, **options)
        if path.name == "rank0.json":
            self._file.close()
            self._file = Stale(path.read_bytes())
            self.piece_bytes = min(self.piece_bytes, 4096)

    monkeypatch.setattr(ByteSource, "__init__", opened)
    try:
        run: Run | str = open_run(str(folder), jobs=1)
    except DataError as error:
        said = str(error)
    else:
        assert isinstance(run, Run)
        said = info_text(run)
    assert "Stale file handle" in said


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "value",
    ["NaN", "Infinity", "-Infinity", "9" * 400, "1e400", "-1e400", str(2**63), str(-(2**63) - 1)],
)
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_a_time_that_is_none_costs_its_event(key: str, value: str, folder: Path) -> None:
    trace = small_trace()
    kernels = [event for event in trace.events if event.get("cat") == "kernel"]
    kernels[3][key] = "here"
    text = text_of(trace).replace('"here"', value)
    (folder / "rank0.json").write_text(text)
    run = open_run(str(folder), jobs=1)
    assert len(run.table) == 15
    assert any("1 event without a valid" in loss for loss in run.sources[0].losses)


def test_of_a_key_that_comes_twice_the_last_counts(folder: Path) -> None:
    trace = small_trace()
    plain = open_run(str(folder), jobs=1).table.duration_ns.tolist()
    (folder / "rank0.json").write_text(text_of(trace).replace('"dur":', '"dur": 1e9, "dur":'))
    assert open_run(str(folder), jobs=1).table.duration_ns.tolist() == plain
    assert json.loads(text_of(trace))


def test_folders_without_an_end_are_left_out(tmp_path: Path) -> None:
    small_trace().write(tmp_path / "rank0.json")
    places = [os.open(tmp_path, os.O_RDONLY)]
    for _ in range(1200):
        os.mkdir("d", dir_fd=places[-1])
        places.append(os.open("d", os.O_RDONLY, dir_fd=places[-1]))
        os.close(places.pop(-2))
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.table) == 16
    assert any("deeper than 100" in why for _, why in (*run.skipped, *run.failed))
    os.close(places[0])
    subprocess.run(["rm", "-r", str(tmp_path / "d")], check=True)


@NEEDS_LINUX
@pytest.mark.parametrize("name", ["/proc/kmsg", "/proc/self/environ", "/proc/self/mem"])
def test_files_of_the_kernel_are_not_waited_for(name: str, tmp_path: Path) -> None:
    small_trace().write(tmp_path / "rank0.json")
    for own in ("cpu.csv", "rank1.json"):
        (tmp_path / own).symlink_to(name)
    assert len(open_run(str(tmp_path), jobs=1).table) == 16
