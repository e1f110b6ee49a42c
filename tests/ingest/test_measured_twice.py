"""Two files for one signal of one GPU: an error in a sentence, not the first one."""

from __future__ import annotations

from pathlib import Path

from chopper_core.ingest.open import open_run
from chopper_core.render.info import info_text
from tests.wording import Wording

START_S = 1_726_000_000


def write(folder: Path, name: str, value: float, start_s: int = START_S, seconds: int = 4) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{start_s + n}.5,{value}\n" for n in range(seconds)))


def test_two_names_of_one_signal_contradict_each_other(tmp_path: Path, wording: Wording) -> None:
    write(tmp_path, "gpu_power_3.csv", 600)
    write(tmp_path, "power_3.csv", 610)
    write(tmp_path, "power_4.csv", 620)
    report = info_text(open_run(str(tmp_path), jobs=1))
    wording.among(report, "power_w of GPU 3")
    assert "power_w: 4 samples, 620 to 620" in report


def test_metrics_parts_ranks_and_later_files_do_not(tmp_path: Path) -> None:
    for name in ("gpu_power_3.csv", "gpu_power_4.csv", "gpu_thermal_3.csv", "pcie_rx_bytes_3.csv"):
        write(tmp_path, name, 50)
    write(tmp_path, "pcie_tx_bytes_3.csv", 50)
    write(tmp_path / "later", "gpu_power_3.csv", 50, START_S + 100)
    run = open_run(str(tmp_path), jobs=1)
    assert not run.failed and len(run.telemetry) == 6


def test_each_of_many_files_that_overlap_is_named(tmp_path: Path) -> None:
    """Pair by pair, 1,500 files took as long as reading them."""
    spans = [(0, 9), (2, 1), (5, 9), (20, 1), (30, 4), (31, 1), (33, 1), (34, 1)]
    for at, (start_s, seconds) in enumerate(spans):
        name = ("power_3.csv", "gpu_power_3.csv")[at % 2]
        write(tmp_path / str(at), name, at, START_S + start_s, seconds)
    run = open_run(str(tmp_path), jobs=1)
    failed = {int(Path(path).parent.name) for path, _ in run.failed}
    assert failed == {
        at
        for at, (start, length) in enumerate(spans)
        for other, (begin, width) in enumerate(spans)
        if at != other and start < begin + width and begin < start + length
    }
