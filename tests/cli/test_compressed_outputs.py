"""An output whose name says how it is compressed is compressed so, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.store.writer import write_store
from chopper_core.tables.bytes import ByteSource
from chopper_core.util.compression import COMPRESSED_ENDINGS, compression_of
from chopper_tui.cli import main
from tests.support import sample_run

COMMANDS: Final = {
    "out.json": "export {run} --to perfetto -o {out}",
    "out.csv": "show {run} -o {out}",
    "table.json": "show {run} -o {out}",
    "table.md": "show {run}?view=kernels -o {out}",
    "page.html": "report {run} -o {out}",
    "rows.csv": "sql {run} -o {out}",
    "results.xml": "diff {run} {run} --fail-if step_time>+50% --junit {out}",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    write_store(sample_run(gpus=2, iterations=5), path)
    return path


def written(run: Path, command: str, out: Path) -> bytes:
    assert main([part.format(run=run, out=out) for part in command.split()]) == 0
    return out.read_bytes()


@pytest.mark.parametrize("ending", COMPRESSED_ENDINGS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_is_compressed_as_its_name_says(
    name: str, ending: str, run: Path, tmp_path: Path
) -> None:
    if name == "rows.csv":
        pytest.importorskip("duckdb")
    plain = written(run, COMMANDS[name], tmp_path / name)
    packed = written(run, COMMANDS[name], tmp_path / f"{name}{ending}")
    how = compression_of(packed)
    assert how is not None and how.ending == ending
    assert compression_of(plain) is None
    with ByteSource(tmp_path / f"{name}{ending}", foreign=False) as source:
        unpacked = b"".join(iter(source.read, b""))
        assert source.problem is None
    assert unpacked == plain or name == "page.html"  # which names the command that made it
    assert written(run, COMMANDS[name], fresh(tmp_path, f"{name}{ending}")) == packed


def fresh(folder: Path, name: str) -> Path:
    """Where a second one of the same name is written."""
    (folder / "again").mkdir(exist_ok=True)
    return folder / "again" / name


@pytest.mark.parametrize("ending", COMPRESSED_ENDINGS)
def test_a_compressed_trace_is_read_again(ending: str, run: Path, tmp_path: Path) -> None:
    out = tmp_path / f"rank0.json{ending}"
    written(run, COMMANDS["out.json"], out)
    again, own = open_run(str(out), jobs=1), open_run(str(run))
    assert len(again.table) == len(own.table)


@pytest.mark.parametrize(
    ("command", "name", "why"),
    [
        (
            "export {run} --to parquet -o {out}",
            "k.parquet.gz",
            "compressed already; name it k.parq",
        ),
        ("export {run} --to tables -o {out}", "tables.zst", "a folder"),
        ("export {run} --to perfetto -o {out}", "t.json.xz", ".xz can't be written; .gz, .zst"),
        ("show {run} -o {out}", "t.csv.zip", ".zip can't be written"),
        ("ingest {run} -o {out}", "store.gz", "a store is a folder"),
    ],
)
def test_what_cannot_be_compressed_is_refused(
    command: str, name: str, why: str, run: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / name
    assert main([part.format(run=run, out=out) for part in command.split()]) == 2
    assert why in capsys.readouterr().err
    assert not out.exists() and not any(tmp_path.iterdir())


def test_a_codec_that_arrow_lacks_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow

    monkeypatch.setattr(pyarrow, "Codec", SimpleNamespace(is_available=lambda name: False))
    out = tmp_path / "t.csv.zst"
    assert main(["show", str(run), "-o", str(out)]) == 2
    assert "this build of Arrow can't write zstd; .gz can" in capsys.readouterr().err
    assert not out.exists()
