"""Defects planted in clean runs: whether they are doubted, and what else they change.

`python -m tests.programs.bench.doubts` plants each defect in generated runs and in real files, in
those that have a place for it, and prints a table. `--seed` chooses the runs, the files and the
places; the clean runs have to be without a doubt. What a defect doesn't touch has to stay equal.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.doubts import Doubt, DoubtKind
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, STATES, Category
from chopper_core.util.errors import DataError
from chopper_core.views.query import query
from tests.programs.bench.processes import ROOT
from tests.realdata.conftest import FOLDER as REALDATA

if str(ROOT / "demo_data") not in sys.path:
    sys.path.insert(0, str(ROOT / "demo_data"))

from generator import planted

REAL: Final = (
    "mi300x_ddp4",
    "mi300x_resnet_act_ckpt_rank0of8.json.gz",
    "mi300x_qwen05b.json.gz",
    "mi300x_train_resnet18.json.gz",
    "mi300x_sglang_prefill.json.gz",
    "v100_dlrm_8rank",
    "a100_rank0of16.json.gz",
    "vllm_decode_graph.json.gz",
)
"""Traces of real runs."""
SAMPLED: Final = "mi300x_rocm_smi"
"""Telemetry of a real run, a file for each signal."""
CLEAN: Final = (
    *REAL[:4],
    "v100_dlrm_8rank",
    "pipeline_pp8",
    "mi350x_aorta_rocprofv3",
    "mi300x_vcopy_long",
    "mi300x_vcopy_wide",
    "rocprof_compute_vcopy_mi300x",
)
"""Real runs that have to be without a doubt."""
_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST: Final = ("cuda_runtime", "cuda_driver")
_WAITS: Final = ("DeviceSynchronize", "MemcpyWithStream")
_TRIES: Final = 8
"""Runs that are tried for a place for a defect."""
_SEEDS: Final = 100
Event = dict[str, Any]
Cell = tuple[int, int]
"""A rank and an iteration."""


class Rank:
    """A trace of one rank: its events, linked by their correlation."""

    def __init__(self, name: str, document: dict[str, Any]) -> None:
        self.name = name
        self.document = document
        self.events: list[Event] = document["traceEvents"]
        self.activities = sorted(
            (e for e in self.events if e.get("cat") in _GPU), key=lambda e: float(e["ts"])
        )
        self.calls = {
            e["args"]["correlation"]: e
            for e in self.events
            if e.get("cat") in _HOST and "correlation" in e.get("args", ())
        }
        self.linked = [e for e in self.activities if self.call(e) is not None]
        self.kernels = [e for e in self.linked if e["cat"] == "kernel"]

    @property
    def number(self) -> int:
        return int(self.document.get("distributedInfo", {}).get("rank", 0))

    def call(self, activity: Event) -> Event | None:
        return self.calls.get(activity["args"].get("correlation"))

    def drop(self, chosen: Iterable[Event]) -> list[Event]:
        gone = {id(event): event for event in chosen}
        self.events[:] = [event for event in self.events if id(event) not in gone]
        return [*gone.values()]

    def in_middle(self, share: float, random: Random) -> list[Event]:
        """Linked kernels in a row: a share of all, not at the edges."""
        count = max(int(share * len(self.kernels)), 4)
        if len(self.kernels) < 4 * count:
            return []
        at = random.randrange(len(self.kernels) // 4, 3 * len(self.kernels) // 4 - count)
        return self.kernels[at : at + count]

    def launched_alone(self, kernels: Iterable[Event]) -> list[Event]:
        """Those whose call launched no other: a graph with a kernel less shows nothing."""
        launched = Counter(each["args"]["correlation"] for each in self.linked)
        return [each for each in kernels if launched[each["args"]["correlation"]] == 1]

    def lane(self, activity: Event) -> tuple[object, object]:
        return activity["args"].get("device"), activity["args"].get("stream")


class Defect(Struct, frozen=True):
    """What is planted."""

    name: str
    kinds: tuple[DoubtKind, ...]
    """One of these has to be doubted."""
    plant: Callable[[list[Rank], Random], Sequence[Event] | None]
    """Changes one rank; returns the activities that it changes, None where it has no place."""
    is_of_rank: bool = False
    """Whether it touches all of the rank that it changes."""


DEFECTS: dict[str, Defect] = {}
LOST, IMPOSSIBLE, CLOCK = DoubtKind.LOST, DoubtKind.IMPOSSIBLE, DoubtKind.CLOCK
Plant = Callable[[Rank, Random], Sequence[Event] | None]


def _plants(name: str, *kinds: DoubtKind, is_of_rank: bool = False) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        def on_one(ranks: list[Rank], random: Random) -> Sequence[Event] | None:
            return plant(random.choice(ranks), random)

        DEFECTS[name] = Defect(name, kinds, on_one, is_of_rank)
        return plant

    return register


@_plants("a buffer of kernels lost", LOST)
def _lost_window(rank: Rank, random: Random) -> Sequence[Event] | None:
    own = rank.in_middle(random.choice((0.01, 0.03, 0.1)), random)
    return rank.drop(own) if own and rank.launched_alone(own) else None


@_plants("scattered kernels lost", LOST)
def _lost_scattered(rank: Rank, random: Random) -> Sequence[Event] | None:
    inner = rank.launched_alone(rank.kernels[len(rank.kernels) // 10 : -len(rank.kernels) // 10])
    count = int(random.choice((0.01, 0.02, 0.05)) * len(rank.kernels))
    return rank.drop(random.sample(inner, count)) if 0 < count <= len(inner) else None


@_plants("a stream of kernels lost", LOST)
def _lost_stream(rank: Rank, random: Random) -> Sequence[Event] | None:
    sizes = Counter(map(rank.lane, rank.linked))
    # Launches at an edge whose activities are missing are those of a step that is cut.
    inner = {rank.lane(e) for e in rank.kernels[len(rank.kernels) // 4 : -len(rank.kernels) // 4]}
    lanes = sorted({*inner} - {lane for lane, _ in sizes.most_common(1)}, key=str)
    if not lanes:
        return None
    lane = random.choice(lanes)
    return rank.drop(each for each in rank.activities if rank.lane(each) == lane)


@_plants("kernels of graph launches lost", LOST)
def _lost_graphs(rank: Rank, random: Random) -> Sequence[Event] | None:
    graphs = sorted(k for k, call in rank.calls.items() if "GraphLaunch" in call["name"])
    if not graphs:
        return None
    some = set(random.sample(graphs, random.randrange(1, len(graphs) + 1)))
    return rank.drop(e for e in rank.activities if e["args"].get("correlation") in some)


@_plants("launch records lost", LOST)
def _lost_calls(rank: Rank, random: Random) -> Sequence[Event] | None:
    own = rank.in_middle(random.choice((0.03, 0.1)), random)
    rank.drop(call for each in own if (call := rank.call(each)) is not None)
    return own or None


@_plants("the profiler says that it lost something", LOST, is_of_rank=True)
def _said(rank: Rank, random: Random) -> Sequence[Event] | None:
    text, key = random.choice(
        (
            ("CuptiActivityProfiler.cpp:243] Dropped 1204 activity records", "WARNING"),
            ("CuptiActivityApi.cpp:310] Exceeded max GPU buffer count (128 > 128) - terminating "
             "tracing", "WARNING"),
            ("RoctracerLogger.cpp:398] Exceeded max GPU buffer count - terminating tracing",
             "ERROR"),
        )
    )  # fmt: skip
    rank.document[key] = [f"{key}:2026-03-02 10:11:12 77:77 {text}"]
    return []


@_plants("an impossibly long kernel", IMPOSSIBLE)
def _long(rank: Rank, random: Random) -> Sequence[Event] | None:
    own = rank.in_middle(0.0, random)
    if not own:
        return None
    chosen = own[0]
    later = [e for e in rank.kernels if rank.lane(e) == rank.lane(chosen)]
    at = next(n for n, each in enumerate(later) if each is chosen)
    reach = random.choice((4, 20, 200))
    if at + reach >= len(later):
        return None
    end = float(later[at + reach]["ts"]) + float(later[at + reach]["dur"])
    chosen["dur"] = random.choice((end - float(chosen["ts"]) + 1.0, 2e6))
    return [chosen]


@_plants("kernels at time 0", IMPOSSIBLE, LOST)
def _at_zero(rank: Rank, random: Random) -> Sequence[Event] | None:
    own = rank.in_middle(0.0, random)[: random.randrange(1, 4)]
    for each in own:
        each["ts"], each["dur"] = 0, 0
    return own or None


@_plants("a negative duration", IMPOSSIBLE)
def _negative(rank: Rank, random: Random) -> Sequence[Event] | None:
    own = rank.in_middle(0.0, random)[:1]
    for each in own:
        each["dur"] = -float(each["dur"]) - 1.0
    return own or None


@_plants("a kernel before its launch", IMPOSSIBLE)
def _early(rank: Rank, random: Random) -> Sequence[Event] | None:
    own = rank.in_middle(0.0, random)[:1]
    for each in own:
        call = rank.call(each)
        assert call is not None
        each["ts"] = float(call["ts"]) - random.uniform(100.0, 5000.0)
    return own or None


@_plants("a kernel past a call that waited for it", IMPOSSIBLE)
def _unfinished(rank: Rank, random: Random) -> Sequence[Event] | None:
    calls = sorted(
        (e for e in rank.events if e.get("cat") in _HOST and "DeviceSynchronize" in e["name"]),
        key=lambda e: float(e["ts"]),
    )
    for call in random.sample(calls, len(calls)):
        before = [e for e in rank.linked if float((rank.call(e) or e)["ts"]) < float(call["ts"])]
        if not before or float(call["dur"]) < 20.0:
            continue
        last = max(before, key=lambda e: float(e["ts"]) + float(e["dur"]))
        returned = float(call["ts"]) + float(call["dur"])
        if float(last["ts"]) + float(last["dur"]) > float(call["ts"]):
            last["dur"] = returned + random.uniform(200.0, 2000.0) - float(last["ts"])
            return [last]
    return None


@_plants("a kernel of another age", IMPOSSIBLE, LOST)
def _far(rank: Rank, random: Random) -> Sequence[Event] | None:
    own = rank.in_middle(0.0, random)[:1]
    for each in own:
        each["ts"] = float(each["ts"]) + random.choice((-1.0, 1.0)) * 3.2e13
    return own or None


def _shift(rank: Rank, by: Callable[[float], float]) -> Sequence[Event] | None:
    """Move the stamps; None where early ones contradict nothing: they start after their calls."""
    first = float(rank.activities[0]["ts"])
    for each in rank.activities:
        each["ts"] = float(each["ts"]) + by(float(each["ts"]) - first)
    last = float(rank.activities[-1]["ts"]) - first
    early = [e for e in rank.linked if float(e["ts"]) < float((rank.call(e) or e)["ts"]) - 1.0]
    return None if by(last) < 0 and len(early) < 3 else rank.activities


@_plants("GPU stamps early", CLOCK, IMPOSSIBLE, is_of_rank=True)
def _early_clock(rank: Rank, random: Random) -> Sequence[Event] | None:
    by = random.choice((-40.0, -80.0, -400.0))
    return _shift(rank, lambda _: by) if len(rank.linked) > 10 else None


@_plants("GPU stamps late", CLOCK, IMPOSSIBLE, is_of_rank=True)
def _late_clock(rank: Rank, random: Random) -> Sequence[Event] | None:
    waits = [e for e in rank.calls.values() if e["name"].endswith(_WAITS) and e["dur"] > 30.0]
    by = random.choice((40.0, 80.0, 400.0))
    return _shift(rank, lambda _: by) if len(waits) > 4 else None


@_plants("a GPU clock that drifts", CLOCK, IMPOSSIBLE, is_of_rank=True)
def _drift(rank: Rank, random: Random) -> Sequence[Event] | None:
    span = float(rank.activities[-1]["ts"]) - float(rank.activities[0]["ts"])
    by = random.uniform(200.0, 600.0)
    return _shift(rank, lambda at: -by * at / span) if len(rank.linked) > 10 else None


@_plants("all activities of a rank lost", LOST, DoubtKind.COVERAGE, is_of_rank=True)
def _lost_rank(rank: Rank, random: Random) -> Sequence[Event] | None:
    return rank.drop(rank.activities) if rank.document.get("of_several") else None


@_plants("a newer schema", DoubtKind.SCHEMA, is_of_rank=True)
def _newer(rank: Rank, random: Random) -> Sequence[Event] | None:
    if "schemaVersion" not in rank.document:
        return None
    rank.document["schemaVersion"] = random.randrange(2, 9)
    return []


_OUR_NAMES: Final = {
    "device": "gpu",
    "power_watts": "power_w",
    "gpu_use_percent": "gfx_util_pct",
    "temp_junction_celsius": "hotspot_c",
}
"""Headings of real logs → the names that the defects go by."""
_FEW_ROWS: Final = 20
"""Of junk in a real log."""


class Samples:
    """A log of telemetry: its rows as dictionaries, in order of the file."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        lines = text.splitlines(keepends=True)
        self.head = [line for line in lines if line.startswith("#")]
        reader = csv.reader(lines[len(self.head) :])
        self.headings = next(reader)
        self.columns = [_OUR_NAMES.get(each, each) for each in self.headings]
        self.rows = [dict(zip(self.columns, row, strict=False)) for row in reader]
        self.rows = [row for row in self.rows if "gpu" in row]

    def text(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.headings)
        for row in self.rows:
            writer.writerow([row[each] for each in self.columns if each in row])
        return "".join(self.head) + out.getvalue()

    def of(self, gpu: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["gpu"] == gpu]

    @property
    def gpus(self) -> list[str]:
        rows = Counter(row["gpu"] for row in self.rows)
        return [gpu for gpu, count in rows.items() if gpu and count > _FEW_ROWS]


class Sensor(Struct, frozen=True):
    """A defect of telemetry."""

    plant: Callable[[Samples, Random], tuple[str, str] | None]
    """Returns the GPUs and the column that it touches; '' for all; None where it has no place."""
    kinds: tuple[DoubtKind, ...] = (DoubtKind.SENSOR,)


SENSORS: dict[str, Sensor] = {}
PlantSensor = Callable[[Samples, Random], tuple[str, str] | None]


def _sensor(name: str, *kinds: DoubtKind) -> Callable[[PlantSensor], PlantSensor]:
    def register(plant: PlantSensor) -> PlantSensor:
        SENSORS[name] = Sensor(plant, kinds or (DoubtKind.SENSOR,))
        return plant

    return register


def _set(samples: Samples, gpu: str, column: str, value: object, share: float = 1.0) -> bool:
    """Set a column of a GPU's last rows; whether the file has it."""
    if column not in samples.columns:
        return False
    own = samples.of(gpu)
    for row in own[int((1 - share) * len(own)) :]:
        row[column] = value
    return True


def _loaded(samples: Samples) -> list[str]:
    """The GPUs that work for most of a file."""
    if "power_w" not in samples.columns:
        return []
    drawn = {
        gpu: [float(row["power_w"]) for row in samples.of(gpu) if "power_w" in row]
        for gpu in samples.gpus
    }
    return [gpu for gpu, each in drawn.items() if each and median(each) > 300.0]


@_sensor("0 W under load")
def _no_power(samples: Samples, random: Random) -> tuple[str, str] | None:
    loaded = _loaded(samples)
    gpu = random.choice(loaded) if loaded else ""
    return (gpu, "power_w") if gpu and _set(samples, gpu, "power_w", 0) else None


@_sensor("0 % at full power")
def _no_use(samples: Samples, random: Random) -> tuple[str, str] | None:
    loaded = _loaded(samples)
    gpu = random.choice(loaded) if loaded else ""
    return (gpu, "gfx_util_pct") if gpu and _set(samples, gpu, "gfx_util_pct", 0) else None


@_sensor("power beyond the hardware")
def _much_power(samples: Samples, random: Random) -> tuple[str, str] | None:
    gpu, value = random.choice(samples.gpus), random.choice((9_999, 60_000, 650_000))
    return (
        (gpu, "power_w")
        if _set(samples, gpu, "power_w", value, random.choice((0.1, 1.0)))
        else None
    )


@_sensor("a clock beyond the hardware")
def _fast(samples: Samples, random: Random) -> tuple[str, str] | None:
    gpu, value = random.choice(samples.gpus), random.choice((21_000, 21_000_000))
    return (
        (gpu, "gfx_mhz")
        if _set(samples, gpu, "gfx_mhz", value, random.choice((0.1, 1.0)))
        else None
    )


@_sensor("a temperature beyond the hardware")
def _hot(samples: Samples, random: Random) -> tuple[str, str] | None:
    gpu, value = random.choice(samples.gpus), random.choice((255, 870, 87_000))
    return (gpu, "hotspot_c") if _set(samples, gpu, "hotspot_c", value) else None


@_sensor("use beyond 100 %")
def _much_use(samples: Samples, random: Random) -> tuple[str, str] | None:
    gpu = random.choice(samples.gpus)
    return (gpu, "gfx_util_pct") if _set(samples, gpu, "gfx_util_pct", 240) else None


@_sensor("a die that repeats another's power")
def _repeats(samples: Samples, random: Random) -> tuple[str, str] | None:
    first, second = random.sample(samples.gpus, 2)
    if "power_w" not in samples.columns:
        return None
    for one, other in zip(samples.of(first), samples.of(second), strict=False):
        other["power_w"] = one["power_w"]
    return f"{first} {second}", "power_w"


@_sensor("energy that contradicts power")
def _energy(samples: Samples, random: Random) -> tuple[str, str] | None:
    if "energy_j" not in samples.columns:
        return None
    gpu, factor = random.choice(samples.gpus), random.choice((0.5, 3.0, 1000.0))
    own = samples.of(gpu)
    first = float(own[0]["energy_j"])
    for row in own:
        row["energy_j"] = f"{first + factor * (float(row['energy_j']) - first):.3f}"
    return gpu, "energy_j"


@_sensor("local time that jumps", DoubtKind.SENSOR, DoubtKind.CLOCK, DoubtKind.COVERAGE)
def _jump(samples: Samples, random: Random) -> tuple[str, str] | None:
    at = random.randrange(len(samples.rows) // 3, 2 * len(samples.rows) // 3)
    column, per_s = ("time_ns", 10**9) if "time_ns" in samples.columns else ("timestamp", 1)
    # A log since 1970 that leaves out an hour may have paused.
    by = random.choice((-1, 1) if column == "time_ns" else (-1,)) * 3600 * per_s
    for row in samples.rows[at:]:
        row[column] = int(row[column]) + by
    return "", ""


@_sensor("samples of part of the run", DoubtKind.COVERAGE)
def _part(samples: Samples, random: Random) -> tuple[str, str] | None:
    if "time_ns" not in samples.columns:
        return None
    half = len(samples.rows) // 2
    samples.rows = samples.rows[half:] if random.random() < 0.5 else samples.rows[:half]
    return "", ""


@_sensor("samples of some GPUs", DoubtKind.COVERAGE)
def _some(samples: Samples, random: Random) -> tuple[str, str] | None:
    if "time_ns" not in samples.columns or len(samples.gpus) < 2:
        return None
    gpu = random.choice(samples.gpus)
    samples.rows = [row for row in samples.rows if row["gpu"] != gpu]
    return gpu, ""


class Outcome(Struct, frozen=True):
    """What was planted, and what came of it."""

    defect: str
    base: str
    found: tuple[str, ...]
    """The sentences of the doubts, or why the run doesn't open."""
    is_found: bool
    changed: tuple[str, ...] = ()
    """Figures that the defect doesn't touch, and that changed all the same."""


class Base(Struct, frozen=True, eq=False):
    """A clean run on disk, its documents and its figures."""

    name: str
    traces: Mapping[str, bytes]
    samples: Mapping[str, str]
    run: Run = field(default=None)  # type: ignore[assignment]

    def ranks(self) -> list[Rank]:
        ranks = [Rank(name, json.loads(text, strict=False)) for name, text in self.traces.items()]
        for rank in ranks:
            if len(ranks) > 1:
                rank.document["of_several"] = True
        return ranks


def written(base: Base, ranks: Sequence[Rank] | None, samples: Samples | None) -> Run:
    """Open a base with some of its files replaced."""
    with tempfile.TemporaryDirectory() as folder:
        texts: dict[str, str | bytes] = {**base.traces, **base.samples}
        for rank in ranks or ():
            rank.document.pop("of_several", None)
            texts[rank.name] = json.dumps(rank.document)
        if samples is not None:
            texts[samples.name] = samples.text()
        for name, text in texts.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return open_run(folder, jobs=1)


@cache
def real(name: str) -> Base | None:
    """A base of real files; None where they are not."""
    path = REALDATA / name
    if not path.exists():
        return None
    files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
    traces = {}
    for each in files:
        data = each.read_bytes()
        data = gzip.decompress(data) if each.suffix == ".gz" else data
        traces[each.name.removesuffix(".gz")] = data
    base = Base(name, traces, {})
    return Base(name, traces, {}, written(base, None, None))


@cache
def real_samples() -> Base | None:
    """The base of a real log; None where it isn't."""
    path = REALDATA / SAMPLED
    if not path.is_dir():
        return None
    samples = {each.name: each.read_text() for each in sorted(path.glob("*.csv"))}
    base = Base(SAMPLED, {}, samples)
    return Base(SAMPLED, {}, samples, written(base, None, None))


@lru_cache(maxsize=12)
def generated(style: str, seed: int) -> Base:
    with tempfile.TemporaryDirectory() as folder:
        planted.clean(style, seed).write(Path(folder))
        traces, samples = {}, {}
        for each in sorted(Path(folder).rglob("*")):
            name = each.relative_to(folder).as_posix()
            if each.suffix == ".json":
                traces[name] = each.read_bytes()
            elif each.suffix == ".csv":
                samples[name] = each.read_text()
        return Base(f"{style}, seed {seed}", traces, samples, open_run(folder, jobs=1))


def cells_of(run: Run) -> dict[Cell, tuple[int, ...]]:
    """The states of each rank and iteration, in ns."""
    table = run.table
    rank_of = {gpu.index: gpu.rank for gpu in run.gpus}
    found: dict[Cell, list[int]] = {}
    rows = np.flatnonzero(table.category != Category.OUTSIDE)
    pairs = zip(table.gpu[rows].tolist(), table.iteration[rows].tolist(), strict=True)
    for gpu, iteration in sorted({*pairs}):
        own = rows[(table.gpu[rows] == gpu) & (table.iteration[rows] == iteration)]
        sums = [int(table.column(state)[own].sum()) for state in STATES]
        found[rank_of[gpu], iteration] = sums
    return {cell: tuple(sums) for cell, sums in found.items()}


def touched_by(rank: Rank, events: Iterable[Event]) -> set[int]:
    """The iterations of what was changed, by the annotations around its launches, and the next."""
    steps = [
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]), int(e["name"].rpartition("#")[2]))
        for e in rank.events
        if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep#")
    ]
    found: set[int] = set()
    for event in events:
        call = rank.call(event)
        if call is None:
            found.add(NO_LABEL)
            continue
        own = [number for begin, end, number in steps if begin <= float(call["ts"]) <= end]
        found |= {number + by for number in own for by in (-1, 0, 1)}
    return found


def is_found(clean: Sequence[Doubt], run: Run, kinds: Sequence[DoubtKind]) -> bool:
    known = {each.sentence for each in clean}
    return any(each.kind in kinds and each.sentence not in known for each in run.doubts)


def of_trace(defect: Defect, base: Base, random: Random) -> Outcome | None:
    """Plant a defect of a trace; None where the base has no place for it."""
    ranks = base.ranks()
    documents = [json.dumps(rank.document, sort_keys=True) for rank in ranks]
    events = defect.plant(ranks, random)
    if events is None:
        return None
    changed = [
        rank
        for rank, text in zip(ranks, documents, strict=True)
        if json.dumps(rank.document, sort_keys=True) != text
    ]
    [own] = changed
    try:
        run = written(base, changed, None)
    except DataError as error:
        said = DoubtKind.SCHEMA in defect.kinds or "no GPU activity" in str(error)
        return Outcome(defect.name, base.name, (str(error),), said)
    touched = touched_by(own, events)
    clean, now = cells_of(base.run), cells_of(run)
    differing = [
        f"rank {rank} iteration {number}: {then} → {now.get((rank, number))}"
        for (rank, number), then in clean.items()
        if now.get((rank, number)) != then
        and not (rank == own.number and (defect.is_of_rank or number in touched or not touched))
    ]
    if defect.is_of_rank and not events:
        differing += [f"{cell}" for cell in clean if now.get(cell) != clean[cell]]
    found = tuple(each.sentence for each in run.doubts)
    found += tuple(reason for _, reason in run.failed)
    is_named = is_found(base.run.doubts, run, defect.kinds)
    return Outcome(defect.name, base.name, found, is_named, tuple(differing[:3]))


_FIGURES: Final = ("power_w", "energy_j", "gfx_util_pct", "gfx_mhz", "hotspot_c", "mem_mhz")
_TOUCHES: Final = {"energy_j": ("energy_j", "power_w"), "power_w": ("power_w", "energy_j")}


def _same(one: object, other: object) -> bool:
    """Whether two figures of samples agree: where a file is placed may change by a little."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-3 * max(abs(one), abs(other))
    return one == other


def signals_of(run: Run) -> dict[tuple[str, str], object]:
    found: dict[tuple[str, str], object] = {}
    for column in _FIGURES:
        try:
            frame = query(run, parse(f"R?columns={column}&cut=1"))
        except DataError:
            continue
        for row, label in enumerate(frame.labels):
            found[label, column] = frame.values[column].cell(row)
    return found


def of_sensor(name: str, sensor: Sensor, base: Base, random: Random) -> Outcome | None:
    """Plant a defect of telemetry; None where the base has no place for it."""
    if not base.samples:
        return None
    files = sorted(base.samples)
    for file in random.sample(files, len(files)):
        samples = Samples(file, base.samples[file])
        if (touched := sensor.plant(samples, random)) is not None:
            break
    else:
        return None
    run = written(base, None, samples)
    gpu, column = touched
    clean, now = signals_of(base.run), signals_of(run)
    whose = gpu.replace("card", "").split()
    differing = [
        f"{label} {name}: {then} → {now.get((label, name))}"
        for (label, name), then in clean.items()
        if not _same(now.get((label, name)), then)
        and gpu
        and not (label in whose and (not column or name in _TOUCHES.get(column, (column,))))
    ]
    clean_cells, cells = cells_of(base.run), cells_of(run)
    differing += [f"{cell}" for cell in clean_cells if cells.get(cell) != clean_cells[cell]]
    found = tuple(each.sentence for each in run.doubts)
    is_named = is_found(base.run.doubts, run, sensor.kinds)
    return Outcome(name, base.name, found, is_named, tuple(differing[:3]))


def drawn(random: Random, *, is_real: bool) -> Base | None:
    """A run of real files, or a generated one."""
    if is_real:
        return real(random.choice(REAL))
    return generated(random.choice([*planted.STYLES]), random.randrange(1000, 1000 + _SEEDS))


def outcomes(seed: int, count: int, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """Each defect in `count` real and `count` generated runs that have a place for it."""
    for name, defect in DEFECTS.items():
        if names and not any(part in name for part in names):
            continue
        random = Random(f"{seed} {name}")
        for is_real in (True, False):
            done = 0
            for _ in range(_TRIES * count):
                base = drawn(random, is_real=is_real)
                if base and (found := of_trace(defect, base, random)) is not None:
                    done += 1
                    yield found
                if done == count:
                    break
    with_samples = [name for name, style in planted.STYLES.items() if style.telemetry]
    for name, sensor in SENSORS.items():
        if names and not any(part in name for part in names):
            continue
        random, done_samples = Random(f"{seed} {name}"), 0
        if (log := real_samples()) is not None:
            for _ in range(count):
                if (found := of_sensor(name, sensor, log, random)) is not None:
                    yield found
        for _ in range(3 * count):
            base = generated(random.choice(with_samples), random.randrange(1000, 2000))
            if (found := of_sensor(name, sensor, base, random)) is not None:
                done_samples += 1
                yield found
            if done_samples == count:
                break


def doubts_of_clean(seed: int) -> Iterator[tuple[str, str]]:
    """The doubts about runs without a defect, with their runs."""
    for name in CLEAN:
        if (REALDATA / name).exists():
            for doubt in open_run(str(REALDATA / name), jobs=1).doubts:
                yield name, doubt.sentence
    random = Random(seed)
    for number in range(40):
        style = [*planted.STYLES][number % len(planted.STYLES)]
        base = generated(style, random.randrange(1000, 2000))
        for doubt in base.run.doubts:
            yield base.name, doubt.sentence


def report(found: Sequence[Outcome], of_clean: Sequence[tuple[str, str]]) -> list[str]:
    """The tables, as markdown."""
    right = sum(each.is_found for each in found)
    equal = sum(not each.changed for each in found)
    lines = [
        f"{right} of {len(found)} defects are doubted ({100 * right / max(len(found), 1):.0f} %); "
        f"in {equal} all else stays equal. {len(of_clean)} doubts about clean runs.",
        "",
        "| defect | doubted | all else equal |",
        "| :-- | --: | --: |",
    ]
    for name in dict.fromkeys(each.defect for each in found):
        own = [each for each in found if each.defect == name]
        lines.append(
            f"| {name} | {sum(each.is_found for each in own)} of {len(own)} "
            f"| {sum(not each.changed for each in own)} of {len(own)} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2, help="of real and generated runs each")
    parser.add_argument("--defect", action="append", default=[], help="part of a name; repeatable")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    found = []
    for each in outcomes(options.seed, options.count, options.defect):
        found.append(each)
        if options.verbose or not each.is_found or each.changed:
            mark = "found " if each.is_found else "MISSED"
            print(f"{mark} {each.defect} | {each.base} | {each.found} {each.changed}", flush=True)
    of_clean = [] if options.defect else [*doubts_of_clean(options.seed)]
    for name, sentence in of_clean:
        print(f"CLEAN {name}: {sentence}")
    print("\n".join(report(found, of_clean)))


if __name__ == "__main__":
    main()
