"""Ranks of several hosts: their clocks are found by the ends of collectives, or said by hand."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.align.collective_sets import host_clocks
from chopper_core.ingest.open import open_run
from chopper_core.model.inputs import HostClock
from chopper_core.model.overrides import Overrides, is_meant, overrides_of, parse_clock
from chopper_core.model.run import Run
from chopper_core.model.table import ADDITIVE, NO_TIME, Kind
from chopper_core.render.info import describe, info_text
from chopper_core.util.errors import UsageError
from tests.ingest.simulated import Simulated
from tests.wording import Wording

MS = 1_000_000
TOLERANCE_NS = 1 * MS
COARSE = "telemetry/amd_smi_monitor.csv"
RANKS = 4


@pytest.fixture(scope="module")
def four(simulated: Callable[..., Simulated]) -> Simulated:
    return simulated(ranks=RANKS, layers=2)


@pytest.fixture
def opened(four: Simulated, tmp_path: Path) -> Callable[..., Run]:
    """Opens a copy in which the clocks of some ranks are ahead, and which may name its hosts."""

    def make(
        ahead_ns: dict[int, int],
        hosts: Sequence[str] = (),
        overrides: Overrides = overrides_of(),  # noqa: B008
        change: Callable[[Path], object] = lambda folder: None,
    ) -> Run:
        folder = tmp_path / "run"
        shutil.copytree(four.folder, folder)
        for rank in range(RANKS):
            path = folder / f"rank{rank}.json.gz"
            text = gzip.decompress(path.read_bytes()).decode()
            base = re.search(r'"baseTimeNanoseconds": (\d+)', text)
            assert base is not None
            moved = int(base[1]) + ahead_ns.get(rank, 0)
            text = text.replace(base[0], f'"baseTimeNanoseconds": {moved}')
            if hosts:
                text = text.replace("{", f'{{"hostname": "{hosts[rank]}",', 1)
            path.write_bytes(gzip.compress(text.encode(), 1))
        change(folder)
        return open_run(str(folder), jobs=1, overrides=overrides)

    return make


def of_rank(run: Run, rank: int) -> HostClock:
    (clock,) = (clock for clock in run.hosts if rank in clock.ranks)
    return clock


def errors_ns(run: Run, true: Run) -> list[int]:
    """How far the starts of each rank are from where they are on one clock; all alike."""
    found = []
    for gpu in range(RANKS):
        own = run.table.gpu == gpu
        off = np.unique(run.table.start_ns[own] - true.table.start_ns[own])
        assert len(off) == 1
        launched = own & (run.table.launch_ns != NO_TIME)
        moved = run.table.launch_ns[launched] - true.table.launch_ns[launched]
        assert np.unique(moved).tolist() == off.tolist()
        found.append(int(off[0]))
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("ahead_ns", [3_700_000_123, -250 * MS, 3 * MS])
def test_a_host_s_clock_is_found_within_a_millisecond(
    four: Simulated, opened: Callable[..., Run], ahead_ns: int
) -> None:
    run = opened({2: ahead_ns, 3: ahead_ns})
    assert [clock.ranks for clock in run.hosts] == [(0, 1), (2, 3)]
    found = of_rank(run, 2)
    assert abs(found.correction_ns + ahead_ns) < TOLERANCE_NS
    assert found.uncertainty_ns is not None
    assert abs(found.correction_ns + ahead_ns) <= found.uncertainty_ns < TOLERANCE_NS
    errors = errors_ns(run, four.run)
    assert errors[:2] == [0, 0] and errors[2] == errors[3]
    assert abs(errors[2]) < TOLERANCE_NS
    for name in ADDITIVE:
        np.testing.assert_array_equal(run.table.column(name), four.run.table.column(name))


@pytest.mark.sweep
def test_ends_that_scatter_give_the_clock_and_its_doubt(four: Simulated) -> None:
    """Real ends of one collective lie some µs apart; the simulated ones are equal."""
    table, ahead_ns, scatter_ns = four.run.table, 7 * MS, 20_000
    rng = np.random.default_rng(3)
    scatter = np.where(table.kind == Kind.COMM, rng.integers(0, scatter_ns, len(table)), 0)
    moved = replace(
        table,
        start_ns=table.start_ns + np.where(table.gpu >= 2, ahead_ns, 0),
        duration_ns=table.duration_ns + scatter,
    )
    first, second = host_clocks(moved, {n: n for n in range(RANKS)}, {}, {})
    assert (first.ranks, second.ranks) == ((0, 1), (2, 3))
    assert second.uncertainty_ns is not None
    assert 1_000 < second.uncertainty_ns < scatter_ns
    assert abs(second.correction_ns + ahead_ns) < second.uncertainty_ns


@pytest.mark.parametrize("ahead_ns", [12_000, -30_000, 400_000])
@pytest.mark.parametrize("scatter_ns", [0, 6_000])
def test_clocks_are_corrected_from_ten_microseconds_on(
    four: Simulated, ahead_ns: int, scatter_ns: int
) -> None:
    table, rng = four.run.table, np.random.default_rng(11)
    scatter = np.where(table.kind == Kind.COMM, rng.integers(0, scatter_ns + 1, len(table)), 0)
    moved = replace(
        table,
        start_ns=table.start_ns + np.where(table.gpu >= 2, ahead_ns, 0),
        duration_ns=table.duration_ns + scatter,
    )
    first, second = host_clocks(moved, {n: n for n in range(RANKS)}, {}, {})
    assert (first.ranks, second.ranks) == ((0, 1), (2, 3))
    assert second.uncertainty_ns is not None
    assert abs(second.correction_ns + ahead_ns) <= max(second.uncertainty_ns, 1_000)


def test_the_number_of_a_rank_is_the_whole_number() -> None:
    assert is_meant("rank1", ("rank1.json.gz", "rank1"))
    assert not is_meant("rank1", ("rank10.json.gz", "rank10"))
    assert is_meant("smi", ("amd_smi.csv", "amd-smi metric CSV"))


@pytest.mark.sweep
def test_ranks_of_one_clock_get_no_correction(opened: Callable[..., Run], four: Simulated) -> None:
    run = opened({})
    assert [clock.ranks for clock in run.hosts] == [(0, 1, 2, 3)]
    assert errors_ns(run, four.run) == [0] * RANKS
    assert "rank clocks" not in info_text(run)


@pytest.mark.sweep
def test_hosts_that_are_known_are_told_apart_however_near_their_clocks(
    opened: Callable[..., Run], four: Simulated
) -> None:
    run = opened({2: 400_000, 3: 400_000}, ["a", "a", "b", "b"])
    assert [(clock.name, clock.ranks) for clock in run.hosts] == [("a", (0, 1)), ("b", (2, 3))]
    assert abs(of_rank(run, 2).correction_ns + 400_000) < 100_000
    assert max(map(abs, errors_ns(run, four.run))) < 100_000


@pytest.mark.sweep
def test_ranks_of_one_host_share_a_clock_whatever_their_collectives_say(
    opened: Callable[..., Run], four: Simulated
) -> None:
    run = opened({3: 50 * MS}, ["a"] * RANKS)
    assert [clock.ranks for clock in run.hosts] == [(0, 1, 2, 3)]
    assert errors_ns(run, four.run) == [0, 0, 0, 50 * MS]


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["b", "rank2.json"])
def test_what_a_person_says_of_a_clock_replaces_what_is_found(
    opened: Callable[..., Run], four: Simulated, name: str
) -> None:
    overrides = overrides_of([parse_clock(f"{name}=-0.1s")])
    run = opened(
        {2: 90 * MS, 3: 90 * MS}, ["a-node", "a-node", "the-b-one", "the-b-one"], overrides
    )
    assert of_rank(run, 2) == HostClock(
        "the-b-one", (2, 3) if name == "b" else (2,), -100 * MS, 0, "by hand"
    )
    errors = errors_ns(run, four.run)
    assert errors[2] == -10 * MS
    assert errors[3] == (-10 * MS if name == "b" else errors[3])
    assert abs(errors[3]) < TOLERANCE_NS or name == "b"


def test_a_name_of_no_clock_is_an_error(opened: Callable[..., Run]) -> None:
    with pytest.raises(UsageError, match="matches no telemetry, trace or host of this run"):
        opened({}, ["a"] * RANKS, overrides_of([parse_clock("elsewhere=+1s")]))


@pytest.mark.sweep
def test_the_clocks_are_shown_with_their_doubt(
    opened: Callable[..., Run], wording: Wording
) -> None:
    run = opened({2: 3_700 * MS, 3: 3_700 * MS})
    shown = info_text(run)
    table = shown[shown.index("rank clocks (corrected)") :].splitlines()
    wording(table[1], "clock 1", "rank 0-1", "+0 s")
    assert re.match(
        r"  clock 2, rank 2-3: -3\.(7|699)\d* s to the run's, \+/- 0\.\d{3} ms: "
        r"estimated from \d+ collective ends",
        table[2],
    )
    assert [clock["ranks"] for clock in describe(run)["hosts"]] == [[0, 1], [2, 3]]


@pytest.mark.sweep
def test_telemetry_of_a_host_goes_with_its_clock(
    opened: Callable[..., Run], wording: Wording
) -> None:
    """The log of the second host is stamped by that host's clock."""

    def of_the_second_host(folder: Path) -> None:
        (folder / "telemetry" / "gpu_metrics.csv.gz").unlink()
        path = folder / COARSE
        head, *lines = path.read_text().splitlines()
        rows = [line.split(",") for line in lines]
        own = [[str(int(row[0]) + 100), *row[1:]] for row in rows if int(row[1]) >= 2]
        path.write_text("\n".join([head, *map(",".join, own)]) + "\n")

    run = opened({2: 100_000 * MS, 3: 100_000 * MS}, change=of_the_second_host)
    (source,) = run.telemetry
    assert source.offset_ns == of_rank(run, 2).correction_ns
    assert abs(source.offset_ns + 100_000 * MS) < TOLERANCE_NS
    wording(source.method, "host")
    assert list(run.measured["power_w"].curves) == [2, 3]


def test_clocks_that_no_collective_connects_stay_and_it_is_said(
    tmp_path: Path, wording: Wording
) -> None:
    for rank, host in enumerate("ab"):
        kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 2, "tid": 0, "ts": 5, "dur": 4}
        trace: dict[str, Any] = {
            "distributedInfo": {"rank": rank, "hostname": host},
            "traceEvents": [kernel | {"args": {"device": 2, "stream": 0}}],
        }
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    run = open_run(str(tmp_path), jobs=1)
    method = run.hosts[1].method
    assert run.hosts[1] == HostClock("b", (1,), 0, None, method)
    wording(method, "no collectives")
    assert run.table.start_ns.tolist() == [5000, 5000]


@pytest.mark.parametrize("hosts", ["abcd", ("",) * RANKS])
def test_ranks_whose_clock_has_no_date_begin_with_the_first(
    tmp_path: Path, hosts: Sequence[str], wording: Wording
) -> None:
    """Nothing says where they are; what is known between them stays."""
    dated, later = 1_700_000_000_000_000_000, 7_000
    for rank, host in enumerate(hosts):
        kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 2, "tid": 0, "dur": 4}
        kernel |= {"ts": 5 + rank * later / 1000, "args": {"device": 2, "stream": 0}}
        trace = {
            "distributedInfo": {"rank": rank, "hostname": host},
            "baseTimeNanoseconds": dated if rank < 2 else 0,
            "traceEvents": [kernel],
        }
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    run = open_run(str(tmp_path), jobs=1)
    assert (run.table.start_ns - dated).tolist() == [5000, 5000 + later, 5000, 5000 + later]
    last = run.hosts[-1]
    assert (last.ranks, last.correction_ns) == ((2, 3), dated - 2 * later)
    assert last.uncertainty_ns is None
    wording(last.method, "no collectives")
    by_hand = overrides_of([parse_clock("rank3=+1s")])
    moved = open_run(str(tmp_path), jobs=1, overrides=by_hand)
    assert moved.table.start_ns[-1] == 5000 + 3 * later + 10**9


@pytest.mark.parametrize(("process", "host"), [(77, "node-a"), (78, "")])
def test_the_profiler_s_file_name_says_the_host(tmp_path: Path, process: int, host: str) -> None:
    """Only where the number in it is the process of the trace."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": process, "tid": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 2, "tid": 0, "ts": 5, "dur": 4}
    events = [call | {"ts": 1, "dur": 1, "args": {"correlation": 3}},
              kernel | {"args": {"device": 2, "stream": 0, "correlation": 3}}]  # fmt: skip
    path = tmp_path / "node-a_77.1718000000000000000.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert open_run(str(path)).sources[0].host == host
