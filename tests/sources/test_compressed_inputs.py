"""A compressed input says what the plain file says, however it is compressed or called."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from chopper_core.ingest.discovery import find_runs
from chopper_core.ingest.open import open_run
from chopper_core.render.info import info_text
from tests.programs.fuzz.seeds import SEEDS, small_trace
from tests.tables.test_compression import COMPRESS
from tests.wording import Wording

LEFT: Final = (
    # They describe a run, and are found by their names.
    "recorded", "manifest", "job yaml",
    # They are read in place, or packed already.
    "straggler analysis", "nsys", "rocpd", "own sampler parquet", "cpu parquet", "packed",
)  # fmt: skip
"""How the kinds of files begin that are not read when they are compressed."""
TEXTS: Final = [name for name in SEEDS if not name.startswith(LEFT)]
ENDINGS: Final = [*COMPRESS]


def said(folder: Path) -> str:
    """All that is said of the run in a folder, without the widths of columns."""
    return " ".join(info_text(open_run(str(folder), jobs=1), 10_000).split())


@pytest.mark.few(16)
@pytest.mark.parametrize(
    ("seed", "ending"), [(seed, ENDINGS[at % 4]) for at, seed in enumerate(TEXTS * 3)]
)
@pytest.mark.parametrize("is_named", [True, False])
def test_a_compressed_file_says_what_it_says_as_it_is(
    tmp_path: Path, seed: str, ending: str, is_named: bool
) -> None:
    path = SEEDS[seed](tmp_path)
    plain, data = said(tmp_path), path.read_bytes()
    path.unlink()
    compressed = path.with_name(path.name + ending) if is_named else path
    compressed.write_bytes(COMPRESS[ending](data))
    assert said(tmp_path).replace(compressed.name, path.name) == plain


def test_ranks_that_are_compressed_each_otherwise_are_one_run(tmp_path: Path) -> None:
    for rank, ending in enumerate(["", *COMPRESS]):
        data = small_trace(rank).write(tmp_path / "trace").read_bytes()
        (tmp_path / f"rank{rank}.pt.trace.json{ending}").write_bytes(
            COMPRESS[ending](data) if ending else data
        )
    (tmp_path / "trace").unlink()
    assert [run.name for run in find_runs([str(tmp_path)])] == [tmp_path.name]
    run = open_run(str(tmp_path), jobs=1)
    assert [gpu.rank for gpu in run.gpus] == [0, 1, 2, 3, 4]


def test_of_a_file_and_its_compressed_copies_one_is_read(tmp_path: Path, wording: Wording) -> None:
    data = small_trace().write(tmp_path / "rank0.json").read_bytes()
    for ending, compress in COMPRESS.items():
        (tmp_path / f"rank0.json{ending}").write_bytes(compress(data))
    for read in ("rank0.json", "rank0.json.gz", "rank0.json.zst"):
        run = open_run(str(tmp_path), jobs=1)
        assert [Path(source.path).name for source in run.sources] == [read]
        text = info_text(run, 10_000)
        wording.among(text, "rank0.json.bz2", f"lies next to {read}, which is read instead")
        (tmp_path / read).unlink()


@pytest.mark.parametrize(("first", "second"), [(".gz", ".zst"), (".zst", ".gz"), (".gz", ".gz")])
def test_what_is_compressed_twice_is_named_with_the_way(
    tmp_path: Path, first: str, second: str, wording: Wording
) -> None:
    small_trace().write(tmp_path / "rank0.json")
    data = (tmp_path / "rank0.json").read_bytes()
    (tmp_path / "rank1.json").write_bytes(COMPRESS[second](COMPRESS[first](data)))
    wording.among(info_text(open_run(str(tmp_path), jobs=1), 10_000), "rank1.json", "twice")
