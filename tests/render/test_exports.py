"""`chopper export`: the registry of formats, their options, and where they write."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.render.exports import EXPORTS, ExportOptions, export, export_format, new_folder
from chopper_core.util.errors import DataError, UsageError
from chopper_tui.cli import main
from tests.support import Row, run_of


@pytest.mark.parametrize("name", EXPORTS)
def test_every_format_has_a_line_of_help_and_known_options(name: str) -> None:
    module = export_format(name)
    assert 0 < len(module.DESCRIPTION) <= 68
    assert set(module.TAKES) <= set(ExportOptions.__struct_fields__)


@pytest.mark.parametrize("name", EXPORTS)
@pytest.mark.parametrize("option", ExportOptions.__struct_fields__)
def test_an_option_that_a_format_does_not_take_is_refused(
    name: str, option: str, tmp_path: Path
) -> None:
    if option in export_format(name).TAKES:
        pytest.skip("it takes it")
    with pytest.raises(UsageError, match=f"takes no --{option}"):
        export(run_of([Row(0, 5)]), name, tmp_path / "out", ExportOptions(**{option: 1}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", EXPORTS)
def test_nothing_that_exists_is_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(UsageError, match="exists already; nothing was written"):
        export(run_of([Row(0, 5)]), name, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", EXPORTS)
def test_a_path_that_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="can't be written"):
        export(run_of([Row(0, 5)]), name, tmp_path / "file" / "out")


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="chakra"):
        export_format("nosuch")


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="half"), new_folder(tmp_path / "out") as folder:
        (folder / "part").write_text("half")
        raise ValueError("half written")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_and_names_the_path(
    demo_kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "chakra"
    assert (
        main(["export", str(demo_kept), "--to", "chakra", "--iteration", "11", "-o", str(out)]) == 0
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == f"chopper: wrote {out}"
    assert sorted(path.suffix for path in out.iterdir()) == [*[".et"] * 8, ".json"]
