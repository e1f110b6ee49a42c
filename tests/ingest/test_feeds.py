"""Telemetry of exporters and of this node's GPUs, without a file of any tool."""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import nan
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar
from urllib.request import urlopen

import numpy as np
import pytest

from chopper_core.columns import Values
from chopper_core.ingest import feeds
from chopper_core.ingest.feeds import FeedCall, LibraryFeed, ToolFeed, node_feed, scrape_feed
from chopper_core.ingest.follow import Follower
from chopper_core.ingest.follow_lines import follow_lines
from chopper_core.model.address import parse
from chopper_core.model.charts import Cards, GpuLanes
from chopper_core.model.recent import RecentSamples
from chopper_core.model.run import Run
from chopper_core.model.table import empty_table
from chopper_core.model.units import Unit
from chopper_core.record.gpus import GpuLibrary, GpuProcess, Sample
from chopper_core.record.hooks.step_ring import StepRing
from chopper_core.record.manifest import RecordedGpu
from chopper_core.sources.registry import Family, read_source
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.telemetry import dcgm
from chopper_core.sources.telemetry.dcgm import scraped_lines
from chopper_core.util.errors import DataError, NothingToShow, UsageError
from chopper_core.views.query import query
from tests.conftest import ROOT
from tests.wording import Wording

AMD = """\
# HELP gpu_clock Current clock
# TYPE gpu_clock gauge
gpu_clock{clock_index="0",clock_type="GPU_CLOCK_TYPE_SYSTEM",gpu_id="1",hostname="n"} 1533
gpu_clock{clock_index="1",clock_type="GPU_CLOCK_TYPE_SYSTEM",gpu_id="1",hostname="n"} 1600
gpu_clock{clock_index="8",clock_type="GPU_CLOCK_TYPE_MEMORY",gpu_id="1",hostname="n"} 1292
gpu_gfx_activity{gpu_id="1",card_model="a \\"}b"} 97.5
gpu_package_power{gpu_id="1"} 655
amd_gpu_junction_temperature{gpu_id="1"} 88
gpu_used_vram{gpu_id="1"} 2
gpu_package_power{gpu_id="x"} 1
gpu_edge_temperature{gpu_id="0"} NaN
gpu_package_power{gpu_id="0"} 600 1700000000000
broken{
"""
DCGM = """\
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="n"} 1980
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1"} 99
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1"} 690.25
DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0
"""


def test_metrics_of_exporters_become_signals(tmp_path: Path) -> None:
    path = tmp_path / "scrapes.prom"
    for text, expected in (
        (
            AMD,
            {
                "0 power_w": [600.0],
                "1 gfx_mhz": [1566.5, 1566.5],
                "1 gfx_util_pct": [97.5, 97.5],
                "1 power_w": [655.0, 655.0],
                "1 hotspot_c": [88.0, 88.0],
                "1 vram_bytes": [2097152.0, 2097152.0],
            },
        ),
        (
            DCGM,
            {
                "0 gfx_mhz": [1980.0, 1980.0],
                "0 gfx_util_pct": [99.0, 99.0],
                "0 power_w": [690.25, 690.25],
            },
        ),
    ):
        scrapes = [scraped_lines(text, 1_700_000_000_000 + ms) for ms in (0, 1_000)]
        path.write_text("\n".join([*scrapes[0], *scrapes[1], ""]))
        found = dcgm.read(path)
        assert found.format.startswith("device-metrics" if text is AMD else "dcgm")
        assert found.clock is ClockDomain.EPOCH and found.resolution_ns == 10**6
        assert expected == {
            f"{found.gpus[gpu].index} {name.value}": own.value.tolist()
            for (gpu, name), parts in found.signals.items()
            for own in parts
            if not own.part and f"{found.gpus[gpu].index} {name.value}" in expected
        }
    assert scraped_lines("<html>no metrics</html>", 9) == []


class Exporter(BaseHTTPRequestHandler):
    text: ClassVar[str] = DCGM
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        _, leads, to = self.path.partition("/to/")
        self.send_response(302 if leads else 200)
        if leads:
            self.send_header("Location", f"http://{to}")
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Exporter)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()


def test_an_exporter_is_followed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tmp_path / "run"
    run.mkdir()
    follower = Follower(str(run), every_s=0.01)
    follower.feeds = (scrape_feed(run, 0, url),)
    try:
        assert follower.open().is_sampled_only
        follower.tail()
        monkeypatch.setattr(Exporter, "text", DCGM.replace("690.25", "701"))
        first = next(line for line in follow_lines(follower) if "time_ns" in line)
        assert '"power_w":690.25' in first and '"gfx_mhz":1980.0' in first
        follower.tail()
        watts = follower.recent.series["power_w", 0].figures[1].tolist()
        assert watts[0] == 690.25 and watts[-1] == 701.0
        assert not follower.problem
        monkeypatch.setattr(Exporter, "text", "nothing")
        follower.tail()
        wording(follower.problem.removeprefix(url), "metrics of GPUs")
    finally:
        follower.close()


def test_a_redirect_leads_to_no_other_host(url: str, tmp_path: Path) -> None:
    host = url.removeprefix("http://").partition("/")[0]
    Exporter.asked.clear()
    scrape_feed(tmp_path, 0, f"http://{host}/to/{host}/metrics")()
    assert Exporter.asked == [f"/to/{host}/metrics", "/metrics"]
    other = host.replace("127.0.0.1", "localhost")
    Exporter.asked.clear()
    with pytest.raises(DataError, match=f"it leads to http://{other}/metrics; give that address"):
        scrape_feed(tmp_path, 1, f"http://{host}/to/{other}/metrics")()
    assert len(Exporter.asked) == 1


def test_what_is_no_exporter_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no http URL"):
        scrape_feed(tmp_path, 0, "file:///etc/passwd")
    with pytest.raises(DataError, match="can't be read"):
        scrape_feed(tmp_path, 1, "http://127.0.0.1:9/metrics")()


TOOL = """#!/usr/bin/env python3
import sys, time
if "--query-gpu=index,name,pci.bus_id,memory.total" in sys.argv:
    for gpu in range(4):
        print(f"{gpu}, NVIDIA H100 80GB HBM3, 00000000:{0x1B + gpu:02X}:00.0, 81559")
    sys.exit()
if "--query-compute-apps=gpu_bus_id,pid,used_memory" in sys.argv:
    import os
    print(f"00000000:1C:00.0, {os.getppid()}, 18432")
    print(f"00000000:1D:00.0, {os.getppid()}, [N/A]")
    sys.exit()
assert "-f" not in sys.argv, sys.argv
print("timestamp, index, power.draw [W], clocks.sm [MHz]", flush=True)
for second in range(100):
    time.sleep(0.01)
    stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(1790000000 + second))
    for gpu in range(4):
        mhz = 1980 if gpu != 2 else 1900
        print(f"{stamp}.000, {gpu}, {600 + gpu:.2f} W, {mhz} MHz", flush=True)
time.sleep(600)
"""


def test_a_node_without_a_library_is_read_by_a_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(feeds, "open_library", lambda: (None, ["no amdsmi", "no NVML"]))
    monkeypatch.setattr(feeds, "_MAX_OWN_BYTES", 1 << 13)
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    run = tmp_path / "run"
    run.mkdir()
    follower = Follower(str(run), every_s=0.02)
    follower.feeds = (node_feed(run),)
    try:
        follower.open()
        until = time.monotonic() + 20
        clocks = follower.recent.series
        while time.monotonic() < until and not (
            ("gfx_mhz", 3) in clocks and clocks["gfx_mhz", 3].figures[3].sum() >= 99
        ):
            follower.tail()
            time.sleep(0.02)
        assert (run / "gpus.csv").stat().st_size < 1 << 14  # All samples take 20 kB.
        run_of_none = Run("r", empty_table(), (), ())
        frame = query(follower.run or run_of_none, parse(f"{run}:?view=live"))
        lanes = frame.charts[0]
        assert isinstance(lanes, GpuLanes)
        # The others are equal: who differs stands out, on the side that it is on.
        (mhz,) = (each for each in lanes.signals if each.unit == "MHz")
        at = lanes.signals.index(mhz)
        assert mhz.outliers == (2,) and lanes.raised[at] == ()
        # Lanes are in the order of the table's rows, whatever it is sorted by.
        ordered = query(follower.run or run_of_none, parse(f"{run}:?view=live&sort=-now_power_w"))
        assert words_of(frame.values["model"]) == ["NVIDIA H100 80GB HBM3"] * 4
        assert frame.values["memory_bytes"].known().tolist() == [81559 << 20] * 4
        found = [(each.gpu, each.pid, each.memory_bytes) for each in follower.recent.processes]
        assert found == [(1, os.getpid(), 18432 << 20), (2, os.getpid(), -1)]
        assert all(each.user == getpass.getuser() for each in follower.recent.processes)
        falls = ["3", "2", "1", "0"]
        assert [*ordered.labels] == [*ordered.charts[0].labels] == falls
    finally:
        follower.close()
        tool_feed = follower.feeds[0]
        assert isinstance(tool_feed, ToolFeed)
        tool_feed.end()
    with pytest.raises(DataError, match="nvidia-smi ended with exit code -15"):
        for _ in range(200):  # Its last lines come first.
            tool_feed()
            time.sleep(0.01)


@pytest.mark.parametrize("tool", ["amd-smi", "rocm-smi", "nvidia-smi"])
def test_fan_and_processes_come_from_the_tools(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"name": "python", "pid": os.getpid()}
    used = {"gtt_mem": {"value": 0, "unit": "B"}, "vram_mem": {"value": 1.5, "unit": "GB"}}
    nothing = {"process_info": "No running processes detected"}
    gpus = [
        {"gpu": 0, "process_list": [nothing]},
        {"gpu": 1, "process_list": [{"process_info": {**own, "memory_usage": used}}]},
        {"gpu": 2, "process_list": [{"process_info": own}, 5, {"process_info": {"pid": "x"}}]},
    ]
    monkeypatch.setattr(feeds, "_answer", lambda *_: json.dumps({"gpu_data": gpus}))
    found = [(each.gpu, each.pid, each.memory_bytes) for each in feeds.listed_processes(tool, {})]
    known = [(1, os.getpid(), 1_500_000_000), (2, os.getpid(), -1)]
    assert found == (known if tool == "amd-smi" else [])
    monkeypatch.setattr(feeds, "_answer", lambda *_: "no JSON, nor lines of it")
    assert not [*feeds.listed_processes(tool, {})] and not feeds.known_gpus(tool)
    lines = {
        "amd-smi": [
            "timestamp,gpu,socket_power,speed,max,rpm,usage",
            "1790000000,0,500,51,255,900,20",
        ],
        "rocm-smi": [
            "timestamp,device,Average Graphics Package Power (W),Fan speed (level),Fan speed (%)",
            "1790000000.5,card0,500.0,51,20.00",
        ],
        "nvidia-smi": [
            "timestamp, index, power.draw [W], fan.speed [%]",
            "2026/11/29 10:00:00.000, 0, 500.00 W, 20 %",
        ],
    }
    path = tmp_path / "tool.csv"
    path.write_text("\n".join([*lines[tool], ""]))
    telemetry = read_source(path, Family.TELEMETRY)
    ((samples,),) = (own for (_, name), own in telemetry.signals.items() if name == "fan_pct")
    assert samples.value.tolist() == [20.0]


class HalfLost(GpuLibrary):
    """Two GPUs, of which the second is lost after its first sample."""

    module = "amdsmi"
    columns = ("power_w",)

    def __init__(self) -> None:
        self._handles, self._missing = [0, 1], set()
        self.failed, self.errors, self.calls = {}, {}, 0

    def devices(self) -> list[RecordedGpu]:
        return [RecordedGpu(0), RecordedGpu(1)]

    def sample(self, *, is_full: bool = True) -> Iterator[Sample]:
        self.calls += 1

        def power(gpu: int) -> float:
            if gpu and self.calls > 1:
                raise OSError("the GPU is\nlost")
            return 500.0 + self.calls + gpu

        for gpu in (0, 1):
            watts = self.number(gpu, "power", power)
            if watts != "":
                yield Sample(gpu, (watts,), time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def processes(self) -> Iterator[GpuProcess]:
        return iter(())


def test_a_gpu_that_gives_nothing_has_the_error_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = LibraryFeed(HalfLost(), tmp_path / "gpus.csv")
    follower = Follower(str(tmp_path))
    follower.feeds = (feed,)
    try:
        run = follower.open()
        time.sleep(0.001)
        assert follower.tail() and not feed.silent  # It may answer again.
        monkeypatch.setattr(feeds, "_LATE_S", 0.0)
        since = r"no sample since \d\d:\d\d:\d\d: power of GPU 1: OSError: the GPU is lost"
        assert follower.tail() and re.fullmatch(since, feed.silent[1]) and len(feed.silent) == 1
        frame = query(follower.run or run, parse(f"{tmp_path}:?view=live"))
        lanes, cards = frame.charts
        assert isinstance(lanes, GpuLanes) and isinstance(cards, Cards)
        assert [card.text for card in cards.cards] == [feed.silent[1]]
        watts = lanes.signals[0].means.tolist()
        assert lanes.whole == (sum(watts),) and watts[1] == 502.0 < watts[0]
        # A sum over all GPUs is unknown where one of them is.
        follower.recent._came_s["power_w", 1] -= 20
        (lanes, _) = query(follower.run or run, parse(f"{tmp_path}:?view=live")).charts
        assert isinstance(lanes, GpuLanes) and lanes.whole == (None,)
        assert [*np.isfinite(lanes.signals[0].means)] == [True, False]
        one = query(follower.run or run, parse(f"{tmp_path}:?view=live&of=gpu:1"))
        assert feed.silent[1] in one.notes
    finally:
        follower.close()


def test_a_driver_that_hangs_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_LATE_S", 0.0)
    hangs = Event()
    call = FeedCall(lambda: bool(hangs.wait(20)) and None)
    assert call.problem_after(0.0).startswith("no answer for ") and not call.is_done
    hangs.set()
    assert call.problem_after(5.0) == "" and call.is_done
    recent = RecentSamples()
    at = np.array([10**18], np.int64), np.array([1.0])
    recent.add("power_w", ("power", Unit.WATTS), 0, at, (1, "a"))
    now_s = time.time()
    assert not recent.stale(now_s + 5) and recent.stale(now_s + 11) == {("power_w", 0)}
    recent.has_ended = True
    assert not recent.stale(now_s + 11)


def test_metrics_go_out_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chopper_core.answers.exporter import parse_endpoint, serve_metrics

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for rank in range(3):
        ring = StepRing(str(tmp_path / "run" / "steps" / f"n-{rank}.ring"), 10**18)
        ring.name(rank, 3)
        for step in range(20):
            took = 10**8 * (2 if rank == 1 else 1)
            ring.add((step, 10**18 + step * took, took, 1000, 0, 0, 0))
    follower = Follower(str(tmp_path / "run"), jobs=1)
    try:
        follower.open()
        at = np.array([10**18], np.int64), np.array([612.5])
        follower.recent.add("power_w", ("power", Unit.WATTS), 0, at, (1, "a"))
        follower.recent.note("power_w>600", "power_w", 0, "hot", holds=True)
        endpoint = parse_endpoint("0")
        assert endpoint == ("127.0.0.1", 0)
        url = f"http://127.0.0.1:{serve_metrics(follower, endpoint)}/metrics"
        with urlopen(url, timeout=10) as page:
            lines = page.read().decode().splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if line[:1] != "#")
        assert float(found["chopper_step"]) == 19
        assert float(found["chopper_step_time_seconds"]) == pytest.approx((0.1 + 0.2 + 0.1) / 3)
        assert float(found["chopper_steps_per_second"]) == pytest.approx(7.5)
        assert float(found["chopper_tokens_per_second_per_rank"]) == pytest.approx(7500)
        assert float(found['chopper_rank_step_time_seconds{rank="1"}']) == pytest.approx(0.2)
        assert float(found['chopper_straggler_excess_ratio{rank="1"}']) == pytest.approx(1.0)
        assert float(found['chopper_gpu_power_w{gpu="0"}']) == 612.5
        assert float(found['chopper_alarm{alarm="power_w>600",gpu="0"}']) == 1
        with pytest.raises(UsageError, match="--export-metrics 127"):
            serve_metrics(follower, ("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0])))
    finally:
        follower.close()
    for text in ("x", "127.0.0.1:", "127.0.0.1:99999"):
        with pytest.raises(UsageError, match="is not an address such as"):
            parse_endpoint(text)


def test_a_node_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "open_library", lambda: (None, ["no amdsmi", "no NVML"]))
    monkeypatch.setattr(feeds, "which", lambda name: None)
    with pytest.raises(DataError, match="no GPU can be read on this node: no amdsmi; no NVML"):
        node_feed(tmp_path)
    assert not list(tmp_path.iterdir())


def words_of(values: Values) -> list[str]:
    assert values.words is not None
    return [values.words[int(code)] for code in values.numbers]


@pytest.mark.parametrize(("name", "count"), [("AmdSmi", 64), ("Nvml", 2)])
def test_live_has_what_the_library_knows_of_each_gpu(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 partitions are GPUs of their own, and variables that hide GPUs hide none here."""
    from chopper_core.record import gpus

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("ROCR", "HIP", "CUDA"):
        monkeypatch.setenv(f"{variable}_VISIBLE_DEVICES", "1")
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "record" / "stand_ins"))
    monkeypatch.setenv("STAND_IN", json.dumps({"gpus": count}))
    for module in ("load", "amdsmi", "pynvml"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    library = getattr(gpus, name)()
    monkeypatch.setattr(feeds, "open_library", lambda: (library, []))
    run = tmp_path / "run"
    run.mkdir()
    follower = Follower(str(run), every_s=0.02)
    follower.feeds = (node_feed(run),)
    try:
        opened = follower.open()
        until = time.monotonic() + 20
        while time.monotonic() < until and len(follower.recent.series["power_w", 0]) < 4:
            follower.tail()
            time.sleep(0.15)
        frame = query(follower.run or opened, parse(f"{run}:?view=live"))
        is_amd = name == "AmdSmi"
        # amdsmi counts from the other end of the bus: PCI 1c is its first of two.
        place = [count - 1 - gpu if is_amd else gpu for gpu in range(count)]
        columns = frame.values
        words = {name: words_of(columns[name]) for name in ("model", "pci")}
        assert [*frame.labels] == [str(gpu) for gpu in range(count)]
        model = "AMD Instinct MI300X" if is_amd else "NVIDIA H100 80GB HBM3"
        assert words["model"] == [model] * count
        pci = [f"{0x0C + 0x10 * each:02x}:00.0" for each in place]
        assert [
            each.lower()[-len(own) :] for each, own in zip(words["pci"], pci, strict=True)
        ] == pci
        fans = [nan if each == 1 else 20.0 if is_amd else 30.0 + each for each in place]
        if not is_amd:
            fans[1] = 31.0
            for link, rate in (("nvlink_read", 2**30), ("nvlink_write", 2**31), ("pcie", 7 << 20)):
                shown = columns[f"now_{link}_gbps"].numbers
                np.testing.assert_allclose(shown, rate / 1e9, rtol=0.4)
        np.testing.assert_allclose(columns["now_fan_pct"].known(), fans)
        total = 196592 << 20 if is_amd else 80 << 30
        sizes = columns["memory_bytes"].known()
        np.testing.assert_array_equal(sizes, [nan if e == 1 and is_amd else total for e in place])
        (cards,) = (each for each in frame.charts if isinstance(each, Cards))
        processes = [card for card in cards.cards if "process" in card.text]
        text = f"process {os.getpid()} · {getpass.getuser()}"
        assert processes and all(card.text.startswith(text) for card in processes)
        assert any("python" in card.text for card in processes)
        assert all(("19.33 GB" in card.text) == is_amd for card in processes)
        for column, values in columns.items():
            down = query(opened, parse(f"{run}:?view=live&sort=-{column}"))
            if values.words is None:
                numbers = values.known()[[int(label) for label in down.labels]]
                numbers = numbers[np.isfinite(numbers)]
                assert (np.diff(numbers) <= 0).all(), column
        history = query(opened, frame.target(1))
        assert [*history.labels] == ["1"]
        # Its unit can't be known of AMD's GPUs: missing, with the reason.
        assert ("now_pcie_gbps" in columns) is not is_amd
        assert any(note.startswith("no PCIe traffic: ") for note in history.notes) is is_amd
        power = next(each for each in history.charts if getattr(each, "unit", "") == "W")
        own, limit = power.series
        assert set(limit.numbers.tolist()) == {750.0 if is_amd else 700.0}
        assert np.nanmin(own.numbers) >= 150 and np.nanmax(own.numbers) <= 700
        with pytest.raises(NothingToShow, match="no GPU 99"):
            query(opened, parse(f"{run}:?view=live&of=gpu:99"))
    finally:
        follower.close()


def test_live_once_prints_rows_and_no_address_of_its_folder(tmp_path: Path) -> None:
    home = {"XDG_CACHE_HOME": str(tmp_path), "STAND_IN": json.dumps({"gpus": 2})}
    places = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'record' / 'stand_ins'}"}
    command = [sys.executable, "-m", "chopper_tui", "live", "--once"]
    done = subprocess.run(
        command, env={**os.environ, **home, **places}, capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0].endswith(" › live") and lines[-1] == "chopper live"
    assert not any("/chopper-live-" in line or "chopper show" in line for line in lines)
    assert [line.split()[0] for line in lines if "AMD Instinct MI300X" in line] == ["0", "1"]
