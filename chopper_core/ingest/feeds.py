"""Telemetry that no tool writes into files: this node's GPUs, and exporters for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from chopper_core.record.gpus import open_library
from chopper_core.record.sampler import GpuSampler, LineFile
from chopper_core.sources.telemetry.dcgm import scraped_lines
from chopper_core.util.errors import DataError, UsageError

Feed = Callable[[], None]
"""Appends what is new to a file; raises DataError."""
_TIMEOUT_S: Final = 2.0
_MAX_BYTES: Final = 1 << 24


def node_feed(folder: Path) -> Feed:
    """The GPUs of this node, read only; raises DataError without any, or their library."""
    library, reasons = open_library()
    if library is None:
        raise DataError(f"no GPU can be read on this node: {'; '.join(reasons)}")
    sampler = GpuSampler(library)
    file = LineFile(folder / "gpus.csv", sampler.heading)
    return lambda: file.write(sampler.lines())


def scrape_feed(folder: Path, number: int, url: str) -> Feed:
    """An exporter's metrics; raises UsageError for what is no URL of one.

    Nothing else in Chopper connects to anything, and this only to the URL that a user gives.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"--scrape {url!r} is no http URL, such as http://127.0.0.1:5000/metrics")
    from http.client import HTTPException
    from urllib.error import URLError
    from urllib.request import HTTPRedirectHandler, build_opener

    class SameHost(HTTPRedirectHandler):
        def redirect_request(self, *given: Any) -> Any:
            to = given[-1]
            if urlsplit(to).netloc != urlsplit(url).netloc:
                raise URLError(f"it leads to {to}; give that address if you trust it")
            return super().redirect_request(*given)

    opener = build_opener(SameHost)
    file = LineFile(folder / f"scrape{number}.prom", "# HELP gpu Metrics of an exporter.")

    def feed() -> None:
        try:
            with opener.open(url, timeout=_TIMEOUT_S) as answer:
                text = answer.read(_MAX_BYTES).decode("utf-8-sig", "replace")
        except (OSError, ValueError, HTTPException) as error:
            raise DataError(f"{url} can't be read: {getattr(error, 'reason', error)}") from error
        lines = scraped_lines(text, time.time_ns() // 10**6)
        if not lines:
            raise DataError(f"{url} has no metrics of GPUs that Chopper knows")
        file.write(lines)

    return feed
