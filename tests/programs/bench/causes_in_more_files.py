"""Slow kernels, collectives, layers, steps and hosts planted in real traces of other shapes.

Time is stretched where the cause is: what runs then takes longer, and all that comes after comes
later, on the hosts and the GPU. What that costs is exact: without it the run is the file.
`python -m tests.programs.bench.causes_in_more_files` looks for the files in $CHOPPER_REALDATA;
`--rough` makes GPUs' clocks late by up to 40 µs and loses 2 % of the launch records.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.findings.rule import context_of
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.model.view import View
from tests.programs.bench.causes import Finding, findings_of

SIZE: Final = 0.05
_ACTIVITIES: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_LATE_US: Final = 40.0
_LOST: Final = 0.02
_SIZED: Final = 0.25
_BLOCKS: Final = re.compile("Synchronize|MemcpyWithStream")
Event = dict[str, Any]
Cuts = list[tuple[float, float]]
"""When, and by how much time is stretched there; in the unit of the file."""


class Trace(Struct, frozen=True):
    """A file's events and its run, whose rows are in the order of the activities."""

    run: Run
    activities: list[tuple[float, float]]
    """The begin and the end of each, in the unit of the file, in the order of `rows`."""
    rows: np.ndarray
    unit_ns: float

    @property
    def steps(self) -> tuple[int, ...]:
        return context_of(self.run, View(self.run.name)).iterations

    @property
    def step_ns(self) -> float:
        return context_of(self.run, View(self.run.name)).step_ns

    def chosen(self, **labels: str | int) -> np.ndarray:
        """The places of the activities with some labels."""
        table, inside = self.run.table, np.ones(len(self.rows), np.bool_)
        for level, label in labels.items():
            codes = table.column(level)[self.rows]
            if level == "iteration" or level == "layer":
                inside &= codes == label
            else:
                texts = {int(c): table.text_of(level, int(c)) for c in np.unique(codes)}
                inside &= np.array([texts[int(c)] == label for c in codes])
        return inside

    def stretched(self, inside: np.ndarray, total_ns: float) -> Cuts:
        """Cuts in the middle of some activities, by their length: `total_ns` in all."""
        own = [self.activities[at] for at in np.flatnonzero(inside)]
        whole = sum(end - begin for begin, end in own)
        more = total_ns / self.unit_ns / whole
        return [((begin + end) / 2, (end - begin) * more) for begin, end in own]


Plant = Callable[[Trace], tuple[Cuts, float]]
"""From a trace to where its time is stretched, and what that costs per step, in ns."""


def _kind(trace: Trace, kind: Kind) -> np.ndarray:
    return np.asarray(trace.run.table.kind[trace.rows] == kind)


def _in_steps(trace: Trace, steps: Sequence[int], inside: np.ndarray) -> tuple[Cuts, float]:
    """The same in each of some steps, which costs `SIZE` of a step over all of them."""
    cuts: Cuts = []
    each = SIZE * trace.step_ns * len(trace.steps) / len(steps)
    for step in steps:
        cuts += trace.stretched(inside & trace.chosen(iteration=step), each)
    return cuts, SIZE * trace.step_ns


def _layer(number: int) -> Plant:
    def make(trace: Trace) -> tuple[Cuts, float]:
        inside = trace.chosen(layer=number) & _kind(trace, Kind.COMPUTE)
        return _in_steps(trace, trace.steps, inside)

    return make


def _operation_in_layer(name: str, number: int) -> Plant:
    def make(trace: Trace) -> tuple[Cuts, float]:
        return _in_steps(trace, trace.steps, trace.chosen(layer=number, operation=name))

    return make


def _operation(name: str, steps: Callable[[tuple[int, ...]], Sequence[int]]) -> Plant:
    def make(trace: Trace) -> tuple[Cuts, float]:
        return _in_steps(trace, steps(trace.steps), trace.chosen(operation=name))

    return make


def _all_of(kind: Kind, steps: Callable[[tuple[int, ...]], Sequence[int]]) -> Plant:
    def make(trace: Trace) -> tuple[Cuts, float]:
        return _in_steps(trace, steps(trace.steps), _kind(trace, kind))

    return make


def _one(place: int) -> Callable[[tuple[int, ...]], Sequence[int]]:
    return lambda steps: steps[place : place + 1]


def _since(place: int) -> Callable[[tuple[int, ...]], Sequence[int]]:
    return lambda steps: steps[place:]


def _every(number: int) -> Callable[[tuple[int, ...]], Sequence[int]]:
    return lambda steps: steps[number - 1 :: number]


class PlantedInFile(Struct, frozen=True):
    """A cause in a file, and what a finding about it says."""

    file: str
    plant: Plant
    words: str
    """Regular expressions that its title and detail together match, parted by ` && `."""


SGLANG, QWEN = "mi300x_sglang_prefill.json.gz", "mi300x_qwen05b.json.gz"
A100, AORTA = "a100_rank0of16.json.gz", "mi350x_aorta_rocprofv3/908_results.json.gz"
RESNET = "mi300x_resnet_act_ckpt_rank0of8.json.gz"
_LONG: Final = "longer|slower|times as long"
PLANTS: Final[Mapping[str, PlantedInFile]] = {
    "a slow layer of sglang": PlantedInFile(SGLANG, _layer(11), rf"layer 11\b && {_LONG}"),
    "a slow layer of qwen": PlantedInFile(QWEN, _layer(7), rf"layer 7\b && {_LONG}"),
    "a slow operation in a layer of qwen": PlantedInFile(
        QWEN, _operation_in_layer("mlp_gp", 16), rf"layer 16\b && mlp_gp && {_LONG}"
    ),
    "a slow operation in a layer of sglang": PlantedInFile(
        SGLANG, _operation_in_layer("MergedColumnParallelLinear", 30),
        rf"layer 30\b && MergedColumnParallelLinear && {_LONG}",
    ),
    "slow products in one step of a100": PlantedInFile(
        A100, _operation("gemm", _one(2)), rf"\b552\b && {_LONG} && compute|gemm"
    ),
    "slow compute in one step of a100": PlantedInFile(
        A100, _all_of(Kind.COMPUTE, _one(3)), rf"\b553\b && {_LONG} && compute"
    ),
    "slow collectives in one step of a100": PlantedInFile(
        A100, _all_of(Kind.COMM, _one(2)), rf"\b552\b && {_LONG} && communication|transfer"
    ),
    "a slow optimizer since a step of a100": PlantedInFile(
        A100, _operation("opt_step", _since(3)), rf"\b553\b && {_LONG} && compute|opt_step"
    ),
    "slow products in one step of aorta": PlantedInFile(
        AORTA, _operation("gemm", _one(20)), rf"{_LONG} && compute|gemm"
    ),
    "slow products since a step of aorta": PlantedInFile(
        AORTA, _operation("gemm", _since(30)), rf"since|from && {_LONG} && compute|gemm"
    ),
    "slow compute every fifth step of aorta": PlantedInFile(
        AORTA, _all_of(Kind.COMPUTE, _every(5)), rf"{_LONG} && compute"
    ),
    "slow collectives since a step of aorta": PlantedInFile(
        AORTA, _all_of(Kind.COMM, _since(30)), rf"since|from && {_LONG} && communication"
    ),
}  # fmt: skip


class LateRank(Struct, frozen=True):
    """A rank that waits for data at the beginning of steps, before its first collective there.

    The others wait for it in theirs, as it is the last one anyway.
    """

    folder: str
    files: str
    """A pattern with one file per rank."""
    rank: str
    """A part of the name of its file."""
    step: str
    """A regular expression of the annotation of a step."""
    words: str


LATE_RANKS: Final[Mapping[str, LateRank]] = {
    "data late on the last rank of ddp4": LateRank(
        "mi300x_ddp4", "rank*.json.gz", "rank3", r"ProfilerStep#(9|10|11)",
        r"GPU 3\b && ^[Dd]ata loading",
    ),
}  # fmt: skip


class FoundInMore(Struct, frozen=True):
    """The findings of a real run with a cause, against its truth."""

    what: str
    cost_ns: float
    words: str
    found: tuple[Finding, ...]

    @property
    def named(self) -> Finding | None:
        """The first finding that names it."""
        for each in self.found:
            text = f"{each.title} {each.detail}"
            if all(re.search(words, text, re.I) for words in self.words.split(" && ")):
                return each
        return None

    @property
    def ratio(self) -> float | None:
        """What it saves, or costs where nothing replays it, over what it costs."""
        if (named := self.named) is None:
            return None
        told = named.cost_ns if named.saving_ns is None else named.saving_ns
        return None if told is None else told / self.cost_ns


class _Stretch:
    """When something happens once time is stretched at some places."""

    def __init__(self, cuts: Cuts) -> None:
        cuts = sorted(cuts)
        self.at = np.array([at for at, _ in cuts])
        self.sums = np.append(0.0, np.cumsum([us for _, us in cuts]))

    def __call__(self, when: float) -> float:
        return when + float(self.sums[np.searchsorted(self.at, when, side="left")])


def _read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def _dispatches(data: Any) -> list[Event]:
    return list(data["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"])


def traced(path: Path, data: Any) -> Trace:
    """A file's run, and its activities in the order of the run's."""
    run = open_run(str(path), jobs=1)
    rows = np.lexsort((run.table.duration_ns, run.table.start_ns))
    if isinstance(data, dict) and "traceEvents" in data:
        found = [
            (float(each["ts"]), float(each["ts"]) + float(each["dur"]))
            for each in data["traceEvents"]
            if each.get("cat") in _ACTIVITIES
        ]
        unit_ns = 1e3
    else:
        found = [
            (float(each["start_timestamp"]), float(each["end_timestamp"]))
            for each in _dispatches(data)
        ]
        unit_ns = 1.0
    # Some of a file's activities aren't the analysed GPU's, or are left out.
    found.sort(key=lambda each: (each[0], each[1] - each[0]))
    if len(found) != len(rows):
        first = found[0][0], int(run.table.start_ns.min())
        starts = np.array([round((begin - first[0]) * unit_ns) for begin, _ in found])
        own = run.table.start_ns[rows] - first[1]
        place = np.searchsorted(starts, own - 500)
        found = [found[min(int(at), len(found) - 1)] for at in place]
    return Trace(run, found, rows, unit_ns)


def with_cuts(
    data: Any, cuts: Cuts, *, host_cuts: Cuts | None = None, is_rough: bool, seed: int = 1
) -> Any:
    """A file's data with its time stretched, that of its hosts elsewhere if that is given."""
    move_host = _Stretch(cuts if host_cuts is None else host_cuts)
    move, random = _Stretch(cuts), Random(f"{seed}:rough")
    late = random.uniform(0, _LATE_US) if is_rough else 0.0
    if "traceEvents" not in data:
        for each in _dispatches(data):
            for name in ("start_timestamp", "end_timestamp"):
                each[name] = round(move(float(each[name])))
        return data
    found = []
    for each in data["traceEvents"]:
        category = each.get("cat")
        if is_rough and category == "cuda_runtime" and random.random() < _LOST:
            continue
        if "ts" in each and each.get("ph") != "M":
            is_gpu = str(category).lower() in (*_ACTIVITIES, "gpu_user_annotation")
            begin, moved = float(each["ts"]), move if is_gpu else move_host
            new = moved(begin)
            each = {**each, "ts": new + late * is_gpu}
            if "dur" in each:
                each["dur"] = moved(begin + float(each["dur"])) - new
        found.append(each)
    return {**data, "traceEvents": found}


def measure_in_more(folder: Path, what: str, *, is_rough: bool = False) -> FoundInMore:
    """Plant a cause in a file and read its findings."""
    planted = PLANTS[what]
    path = folder / planted.file
    data = _read(path)
    cuts, cost = planted.plant(traced(path, data))
    with tempfile.TemporaryDirectory() as made:
        written = Path(made) / path.name.removesuffix(".gz")
        written.write_text(json.dumps(with_cuts(data, cuts, is_rough=is_rough)))
        found = findings_of(open_run(str(written), jobs=1))
    return FoundInMore(what, cost, planted.words, found)


def measure_late_rank(folder: Path, what: str, *, is_rough: bool = False) -> FoundInMore:
    """Have a rank wait for data in its traces, and read the findings."""
    late = LATE_RANKS[what]
    run = open_run(str(folder / late.folder), jobs=1)
    cost_us = 2 * SIZE * context_of(run, View(run.name)).step_ns / 1e3
    with tempfile.TemporaryDirectory() as made:
        for path in sorted((folder / late.folder).glob(late.files)):
            packed = path.read_bytes()
            data = json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)
            events = [each for each in data["traceEvents"] if "dur" in each]
            steps = [each for each in events if re.fullmatch(late.step, str(each["name"]))]
            steps = [each for each in steps if each.get("cat") != "gpu_user_annotation"]
            cuts: Cuts = []
            host_cuts: Cuts = []
            for step in steps:
                # Just after its annotation begins.
                begin = float(step["ts"]) + 1e-3
                if late.rank not in path.name:
                    begin, blocked = _waiting(events, begin)
                    host_cuts += [(blocked, cost_us)] if blocked else []
                cuts.append((begin, cost_us))
            is_late = late.rank in path.name
            seed = sum(map(ord, path.name))
            data = with_cuts(
                data, cuts, host_cuts=None if is_late else host_cuts, is_rough=is_rough, seed=seed
            )
            if is_late:
                move = _Stretch(cuts)
                data["traceEvents"] += [_loads(steps[0], move(at), us) for at, us in cuts]
            written = json.dumps(data)
            (Path(made) / path.name.removesuffix(".gz")).write_text(written)
        found = findings_of(open_run(made, jobs=1))
    return FoundInMore(what, cost_us * 1e3, late.words, found)


def _is_collective(event: Event) -> bool:
    return event.get("cat", "").lower() == "kernel" and event["name"].startswith("nccl")


def _waiting(events: list[Event], since: float) -> tuple[float, float]:
    """When a rank is in its first collective since a time, and when its host then first blocks
    until that has ended: 0 if it doesn't."""
    later = [each for each in events if _is_collective(each) and float(each["ts"]) > since]
    first = min(later, key=lambda each: float(each["ts"]))
    end = float(first["ts"]) + float(first["dur"])
    ends = (
        float(each["ts"]) + float(each["dur"])
        for each in events
        if each.get("cat", "").lower() in ("cuda_runtime", "runtime")
        and _BLOCKS.search(str(each["name"]))
    )
    blocked = min((each for each in ends if each >= end), default=0.0)
    return (float(first["ts"]) + end) / 2, max(blocked - 1e-3, 0.0)


def _loads(step: Event, at: float, us: float) -> Event:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    return {"ph": "X", "cat": step["cat"], "name": name, "pid": step["pid"], "tid": step["tid"],
            "ts": at + 0.5, "dur": us - 1.0, "args": {}}  # fmt: skip


def measured(folder: Path, *, is_rough: bool, part: str = "") -> Iterator[FoundInMore]:
    """All of them, or those with a part of a name."""
    for what in PLANTS:
        if part in what:
            yield measure_in_more(folder, what, is_rough=is_rough)
    for what in LATE_RANKS:
        if part in what:
            yield measure_late_rank(folder, what, is_rough=is_rough)


def main() -> None:
    """Print a row per cause, and how many are right."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rough", action="store_true")
    parser.add_argument("--cause", default="", help="part of a name")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    folder, found = Path(os.environ["CHOPPER_REALDATA"]), list[FoundInMore]()
    print("| cause | place among the findings | told ÷ true |\n| :-- | --: | --: |")
    for each in measured(folder, is_rough=options.rough, part=options.cause):
        found.append(each)
        place = "–" if each.named is None else str(each.found.index(each.named) + 1)
        ratio = "–" if each.ratio is None else f"{each.ratio:.2f}"
        print(f"| {each.what} | {place} | {ratio} |", flush=True)
        for one in each.found[:5] if options.verbose else ():
            saving = one.saving_ns if one.saving_ns is not None else one.cost_ns
            print(
                "    ", one.rule, saving and saving / 1e6, each.cost_ns / 1e6, one.title, one.detail
            )
    named = [each for each in found if each.named is not None]
    first = sum(each.found[0] is each.named for each in named)
    sized = sum(each.ratio is not None and abs(each.ratio - 1) <= _SIZED for each in named)
    print(
        f"\n{len(named)} of {len(found)} are named, {first} as the first finding; "
        f"{sized} are sized within a quarter."
    )


if __name__ == "__main__":
    main()
