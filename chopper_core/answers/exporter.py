"""`--export-metrics HOST:PORT`: what a followed run does now, for Prometheus and its dashboards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import isfinite
from typing import Any, Final

from chopper_core.answers.extras import extra
from chopper_core.findings import checked
from chopper_core.ingest.follow import Follower
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import ChopperError, UsageError

_OPTION: Final = "--export-metrics"
_MOST_PORT: Final = 65_535
Sample = tuple[dict[str, str], float]


def parse_endpoint(text: str) -> tuple[str, int]:
    """An address to listen at; a port alone is of this host only. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > _MOST_PORT:
        raise UsageError(f"{text!r} is not an address such as 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


def serve_metrics(follower: Follower, endpoint: tuple[str, int]) -> int:
    """Answer scrapes from now on, in threads that end with the process; returns the port.

    Raises UsageError without the package, or where the address can't be listened at.
    """
    client = extra("prometheus_client", _OPTION, "prometheus")
    registry = client.CollectorRegistry()
    core = extra("prometheus_client.core", _OPTION, "prometheus")
    registry.register(_Collector(follower, core.GaugeMetricFamily))
    host, port = endpoint
    try:
        server, _ = client.start_http_server(port, host, registry)
    except OSError as error:
        raise UsageError(f"{_OPTION} {host}:{port}: {error.strerror}") from error
    return int(server.server_port)


class _Collector:
    """Reads the follower at each scrape; nothing is computed between them."""

    def __init__(self, follower: Follower, family: Any) -> None:
        self._follower, self._family = follower, family

    def collect(self) -> Iterator[Any]:
        for name, about, samples in families(self._follower):
            labels = [*samples[0][0]] if samples else []
            family = self._family(f"chopper_{name}", about, labels=labels)
            for own, value in samples:
                family.add_metric([*own.values()], value)
            yield family

    def describe(self) -> list[Any]:
        """Nothing: what there is depends on the run."""
        return []


def families(follower: Follower) -> Iterator[tuple[str, str, list[Sample]]]:
    """Name, description, and samples (labels, value) of each metric that is known now."""
    recent, run = follower.recent, follower.run
    job = recent.steps.job()
    if len(job):
        rate, tokens = job.per_second()
        for name, about, value in (
            ("step", "Number of the newest step that all ranks have ended.", job.number[-1]),
            ("step_time_seconds", "Time of that step, mean over ranks.", job.time_ns[-1] / 1e9),
            ("step_time_median_seconds", "Median of recent steps.", job.usual_ns() / 1e9),
            ("step_time_p95_seconds", "95th percentile of them.", job.usual_ns(0.95) / 1e9),
            ("steps_per_second", "Steps per second in the last minute.", rate),
            ("tokens_per_second_per_rank", "Tokens that a rank is given, per second.", tokens),
        ):
            if isfinite(value):
                yield name, about, [({}, float(value))]
        ranks: list[Sample] = [
            ({"rank": str(each.now.rank)}, each.rows[-1, 2] / 1e9)
            for each in recent.steps.current
            if len(each.rows)
        ]
        yield "rank_step_time_seconds", "Time of the newest step of each rank.", ranks
        rank, slower = recent.steps.slowest()
        if rank >= 0:
            about = "How much longer the median step of the slowest rank is than the usual rank's."
            yield "straggler_excess_ratio", about, [({"rank": str(rank)}, slower)]
    signals: dict[str, list[Sample]] = {}
    for (name, gpu), series in sorted(recent.series.items()):
        if len(series) and (name, gpu) not in recent.stale(recent.newest_s):
            signals.setdefault(name, []).append(({"gpu": str(gpu)}, float(series.figures[1, -1])))
    for name, samples in signals.items():
        yield f"gpu_{name}", f"The latest {name} of each GPU.", samples
    alarms: list[Sample] = [
        ({"alarm": each.alarm, "gpu": "" if each.gpu is None else str(each.gpu)}, 1.0)
        for each in recent.open_alarms
    ]
    yield "alarm", "1 while an alarm holds.", alarms
    if run is not None and not run.is_sampled_only:
        about = "By how much a step would be shorter without what a finding is about, by replay."
        yield "finding_saving_seconds", about, _savings(run)


def _savings(run: Run) -> list[Sample]:
    """The findings of the traced steps; those of one rule are numbered."""
    found: list[Sample] = []
    with suppress(ChopperError):
        for number, ((rule, finding), _) in enumerate(checked(run, View(run.name)).placed):
            if finding.saving_ns is not None:
                labels = {"finding": str(number), "rule": rule.name, "title": finding.title}
                found.append((labels, finding.saving_ns / 1e9))
    return found
