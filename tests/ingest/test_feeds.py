"""Telemetry of exporters and of this node's GPUs, without a file of any tool."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from chopper_core.ingest import feeds
from chopper_core.ingest.feeds import node_feed, scrape_feed
from chopper_core.ingest.follow import Follower, follow_lines
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.telemetry import dcgm
from chopper_core.sources.telemetry.dcgm import scraped_lines
from chopper_core.util.errors import DataError, UsageError

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


def test_an_exporter_is_followed(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert "has no metrics of GPUs" in follower.problem
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


def test_a_node_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "open_library", lambda: (None, ["no amdsmi", "no NVML"]))
    with pytest.raises(DataError, match="no GPU can be read on this node: no amdsmi; no NVML"):
        node_feed(tmp_path)
    assert not list(tmp_path.iterdir())
