"""Doubts: what of a run's data is missing or contradicts itself, and which figures that touches.

Each check of the data yields doubts with counts; those of several ranks become one. A doubt is
never a reason to refuse a file: what it touches is marked or missing, and findings that rest on it
have a lower confidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace


class DoubtKind(StrEnum):
    """What is in doubt, the worst first."""

    HANG = "hang"
    LOST = "lost activities"
    IMPOSSIBLE = "impossible times"
    CLOCK = "clocks"
    SENSOR = "sensors"
    COVERAGE = "coverage"
    SCHEMA = "schema"


NOTE: Final = "doubt: "
"""Begins the note on a doubt."""


_IDLE: Final = (
    *("idle_ns", "idle_host_ns", "idle_launch_ns", "idle_latency_ns", "idle_queued_ns"),
    *("idle_unknown_ns", "idle_after_ns", "idle_pct"),
)
_STEP: Final = ("elapsed_ns", "busy_pct", "iteration_ns", "tokens_per_s", *_IDLE)


_OF_ONE: Final = {
    "are": "is", "have": "has", "s": "s", "they": "it", "them": "it", "their": "its",
    "these": "this one",
}  # fmt: skip
"""Words of sentences about several things → those about one."""
_OF_SEVERAL: Final = {name: name for name in _OF_ONE} | {"s": "", "these": "one of these"}


class _Check(Struct, frozen=True):
    kind: DoubtKind
    sentence: str
    """With `{count}`, `{of}`, `{detail}`, and words of `_OF_ONE` that follow the count."""
    columns: tuple[str, ...] = ()
    """The columns whose figures it touches."""
    rules: tuple[str, ...] = ()
    """The rules whose findings rest on them."""


MARGIN_NS: Final = 11_000
"""What launches and returns leave open of the clock of GPUs that nothing contradicts."""
HOST_RULES: Final = (
    *("host-bound", "launch-bound", "queue-bound", "late-host", "iteration", "straggler"),
)
_LEADER_RULES: Final = ("straggler", "slow-stage", "long-stage", "late-host")
CHECKS: Final[Mapping[str, _Check]] = {
    "begin": _Check(
        DoubtKind.LOST,
        "the log begins at tick {detail}: what was simulated before is missing",
        _STEP,
        HOST_RULES,
    ),
    "types": _Check(
        DoubtKind.LOST,
        "{count} of {of} nodes {are} left out: {detail}",
        _IDLE,
    ),
    "graphs": _Check(
        DoubtKind.LOST,
        "{count} of {of} graph launches {have} no kernels in the trace: idle time and throughput "
        "aren't known",
        _STEP,
        HOST_RULES,
    ),
    "launches": _Check(
        DoubtKind.LOST,
        "{count} of {of} launches {have} no activity in the trace: why GPUs are idle after "
        "{them} is unknown",
        _IDLE,
        HOST_RULES,
    ),
    "calls": _Check(
        DoubtKind.LOST,
        "{count} of {of} activities {have} no launch call, though those before {them} have: why "
        "GPUs are idle before {them} is unknown",
        _IDLE,
        HOST_RULES,
    ),
    "diagnostics": _Check(
        DoubtKind.LOST,
        "the profiler says that it lost data: {detail}",
        _IDLE,
        HOST_RULES,
    ),
    "untimed": _Check(
        DoubtKind.IMPOSSIBLE,
        "{count} of {of} activities {have} no valid time and {are} left out",
        _IDLE,
        HOST_RULES,
    ),
    "repeated": _Check(
        DoubtKind.IMPOSSIBLE,
        "{count} of {of} activities {are} in the file twice, and count once",
        (),
        (),
    ),
    "impossible": _Check(
        DoubtKind.IMPOSSIBLE,
        "{count} of {of} kernels contain{s} whole later kernels of {their} stream, which is "
        "impossible, and {are} left out: {detail}",
        _IDLE,
        HOST_RULES,
    ),
    "far": _Check(
        DoubtKind.IMPOSSIBLE,
        "{count} of {of} activities start{s} over 1 ms before {their} launch call and {are} left "
        "out",
        _IDLE,
        HOST_RULES,
    ),
    "early": _Check(
        DoubtKind.IMPOSSIBLE,
        "{count} of {of} activities start{s} before {their} launch call",
        _IDLE,
        HOST_RULES,
    ),
    "unfinished": _Check(
        DoubtKind.IMPOSSIBLE,
        "{count} of {of} calls return{s} before what {they} waited for has ended",
        _IDLE,
        HOST_RULES,
    ),
    "clock": _Check(
        DoubtKind.CLOCK,
        "GPU times contradict their host's by {detail}",
        ("idle_host_ns", "idle_launch_ns", "prep_overhead_ns", "call_overhead_ns"),
        HOST_RULES,
    ),
    "ranks": _Check(
        DoubtKind.COVERAGE,
        "{count} of {of} ranks {are} missing ({detail}): who holds the others back may be {these}",
        (),
        _LEADER_RULES,
    ),
    "schema": _Check(
        DoubtKind.SCHEMA,
        "the file has schema {detail}, which is newer than Chopper knows: what it adds isn't read",
    ),
}
"""By the code of a check, in rising order of what a doubt leaves certain."""


class Doubt(Struct, frozen=True):
    """What a check found."""

    code: str
    """Of `CHECKS`, or a kind of doubt that has no more of them."""
    count: int
    of: int
    """0 where it isn't known of how many."""
    detail: str = ""
    ranks: tuple[int, ...] = ()
    iterations: tuple[int, ...] = ()
    """The steps that it touches; () where that isn't known, and for all of them."""
    signals: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    """The GPUs whose signals it touches; () where that isn't known, and for all of them."""
    text: str = ""
    """The sentence of a check that isn't among `CHECKS`, such as of a sensor."""

    @property
    def kind(self) -> DoubtKind:
        return CHECKS[self.code].kind if self.code in CHECKS else DoubtKind(self.code)

    @property
    def share(self) -> float:
        """How much of what was checked it is about; 0 where that isn't known."""
        return self.count / self.of if self.of else 0.0

    @property
    def sentence(self) -> str:
        if self.text:
            return self.text
        sentence = CHECKS[self.code].sentence
        words = _OF_ONE if self.count == 1 else _OF_SEVERAL
        return sentence.format(
            count=f"{self.count:,}", of=f"{self.of:,}", detail=self.detail, **words
        )

    @property
    def as_json(self) -> dict[str, object]:
        """The doubt for other programs, the same in every document."""
        return {
            "kind": self.kind.value,
            "check": self.code,
            "text": self.sentence,
            "share_pct": 100.0 * self.share if self.of else None,
            "ranks": self.ranks,
            "iterations": self.iterations,
            "signals": self.signals,
            "gpus": self.gpus,
            "columns": self.columns,
        }

    @property
    def note(self) -> str:
        return NOTE + self.sentence

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose figures it touches; of a sensor those of its signals."""
        return CHECKS[self.code].columns if self.code in CHECKS else self.signals

    @property
    def rules(self) -> tuple[str, ...]:
        return CHECKS[self.code].rules if self.code in CHECKS else ()


def merged_doubts(doubts: Iterable[Doubt]) -> tuple[Doubt, ...]:
    """Those of the same check as one, the worst first."""
    found: dict[tuple[str, str], Doubt] = {}
    for each in doubts:
        key = (each.code, each.text)
        if (known := found.get(key)) is None:
            found[key] = each
            continue
        found[key] = replace(
            known,
            count=known.count + each.count,
            of=known.of + each.of,
            detail=max(known.detail, each.detail, key=len) if known.detail else each.detail,
            ranks=tuple(sorted({*known.ranks, *each.ranks})),
            iterations=tuple(sorted({*known.iterations, *each.iterations})),
            signals=tuple(dict.fromkeys((*known.signals, *each.signals))),
            gpus=tuple(sorted({*known.gpus, *each.gpus})) if known.gpus and each.gpus else (),
        )
    kinds = list(DoubtKind)
    return tuple(sorted(found.values(), key=lambda each: (kinds.index(each.kind), -each.share)))
