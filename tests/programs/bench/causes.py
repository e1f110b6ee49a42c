"""Recall and false findings of the rules, on generated runs with one planted cause or none.

`python -m tests.programs.bench.causes` prints the tables of docs/internals/findings.md; `--quick`
takes one seed and size of each cause. `-v` prints the first findings of every run beside its truth.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from msgspec import Struct

from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.programs.bench.processes import ROOT
from tests.removals import REMOVALS, remove_from

if str(ROOT / "demo_data") not in sys.path:
    sys.path.insert(0, str(ROOT / "demo_data"))

from generator import planted

SEEDS: Final = range(1, 6)
HOLDOUT: Final = range(101, 106)
"""Seeds that were not looked at while rules were written."""
_SIZED: Final = 0.25
COUNTS: Final = 0.02
"""Causes that cost at least this share of the iteration must be the first finding."""
WITHOUT_SAVING: Final = "missing"
"""The rule whose findings say what a run lacks; it accuses nobody."""


class Expected(Struct, frozen=True):
    """The first finding that is right for a cause."""

    words: str
    """A regular expression that names the cause."""
    place: Callable[[planted.Planted, Run], Sequence[str]] = lambda _p, _r: ()
    """Regular expressions that name where and when."""
    unseen: str = ""
    """The same as `words`, in styles that don't show what the host does."""


def _layer(found: planted.Planted, run: Run) -> tuple[str, ...]:
    """The layer, if the style of the run shows any."""
    config, layer = found.run.config, found.cause.layer or 0
    if (run.table.layer == NO_LABEL).all():
        return ()
    if config.stages == 1:
        return (rf"\blayers? {layer}\b",)
    # Each stage of a pipeline counts its layers from 0.
    stage = next(n for n in range(config.stages) if layer in config.layers_of(n))
    return (rf"\blayer {layer - config.layers_of(stage)[0]}\b",)


def _operation(found: planted.Planted, run: Run) -> tuple[str, ...]:
    """The operation, if the style of the run names it."""
    name = found.cause.operation or ""
    return (rf"\b{name}\b",) if name in run.table.operations else ()


def _operation_in_layer(found: planted.Planted, run: Run) -> tuple[str, ...]:
    return (*_layer(found, run), *_operation(found, run))


def _iterations(found: planted.Planted, _: Run) -> tuple[str, ...]:
    """One of the iterations; or every how many."""
    numbers = "|".join(map(str, found.cause.iterations))
    return (rf"\b(?:step|iteration)s?\b.*\b(?<!\.)(?:{numbers})\b(?!\.\d)|\bevery \w+",)


def _every_iteration(found: planted.Planted, _: Run) -> tuple[str, ...]:
    """All of the iterations, in any order; or every how many."""
    each = "".join(rf"(?=.*\b(?<!\.){number}\b(?!\.\d))" for number in found.cause.iterations)
    return (rf"{each}.*\b(?:step|iteration)s?\b|\bevery \w+",)


def _two_layers(found: planted.Planted, _: Run) -> tuple[str, ...]:
    layer = found.cause.layer or 0
    return (rf"\blayers {layer} and {layer + 1}\b",)


def _last_stage(found: planted.Planted) -> str:
    config = found.run.config
    return rf"stage {config.stages - 1}\b"


def _capped(found: planted.Planted, _: Run) -> tuple[str, ...]:
    first, last = found.cause.gpus[0], found.cause.gpus[-1]
    return (rf"GPUs {first} to {last}|{first}, .*{last}",)


def _since(found: planted.Planted, _: Run) -> tuple[str, ...]:
    return (rf"(from|since) (?:step|iteration) {found.cause.iterations[0]}\b",)


_HOST: Final = r"\bhosts?\b|\bidle\b|launch"
EXPECTED: Final[Mapping[str, Expected]] = {
    "one GPU at a lower clock": Expected("clock|slower kernels|longer"),
    "two GPUs at a lower clock": Expected("clock|slower kernels|longer"),
    "all GPUs at a lower clock": Expected("clock"),
    "a clock that drops": Expected("clock", _iterations),
    "a throttled GPU": Expected("throttled|lower clock"),
    "hipFree on one GPU": Expected("hipFree"),
    "values read back in every layer": Expected("item|hipMemcpy|read"),
    "data of one GPU late, always": Expected(r"\bdata\b"),
    "data of one GPU late, once": Expected(r"\bdata\b", _iterations),
    "data of one GPU late, every third": Expected(r"\bdata\b", _iterations),
    "data late on all GPUs": Expected(r"\bdata\b"),
    "slow optimizer kernels on one GPU": Expected("optimizer|opt_step"),
    "slow optimizer host on one GPU": Expected("optimizer|opt_step"),
    "garbage collection on one GPU": Expected(r"\bgc\b|garbage|collect\b", _iterations, _HOST),
    "logging on one GPU": Expected("logging", unseen="item|hipMemcpy|read|" + _HOST),
    "a checkpoint on one GPU": Expected(
        "checkpoint|save", _iterations, unseen="hipMemcpy|cop(y|ies)|" + _HOST
    ),
    "one operation slow on one GPU": Expected("slower|longer", _operation),
    "one operation slow in one layer": Expected("longer", _operation_in_layer),
    "one layer slow": Expected("longer", _layer),
    "slow memory of one GPU": Expected("memory"),
    "slow memory of all GPUs": Expected("memory"),
    "an extra operation in one layer": Expected("more kernels|extra|only there|longer", _layer),
    "a slow link of one group": Expected(
        "link|transfer",
        lambda found, _: (rf"\b{found.cause.gpus[0]}\b\D+\b{found.cause.gpus[1]}\b",),
    ),
    "parameters not gathered ahead": Expected("exposed communication"),
    "one slow iteration": Expected("longer", _iterations),
    "hosts that can't keep up": Expected("host-bound|launch-bound|the host is late:"),
    "more tokens on one GPU": Expected("more (FLOPs|work|tokens|kernels)|× the tokens"),
    "an operation slowed by communication": Expected("communication", _operation),
    "a host late in one layer, once": Expected(_HOST, _iterations),
    "copies from pageable memory": Expected(r"\bcop(y|ies)\b"),
    "backward slow on one GPU": Expected("longer|slower", lambda _f, _r: ("backward",)),
    "a clock that dips in one iteration": Expected("clock", _iterations),
    "all GPUs of a node throttled from then on": Expected("throttled|clock", _since),
    "a slow network in one iteration": Expected("communication|link|transfer", _iterations),
    "one collective slow from then on": Expected(
        "transfer", lambda found, run: (*_since(found, run), str(found.cause.operation))
    ),
    "a slow link between replicas": Expected(
        "link|transfer",
        lambda found, _: (rf"\b{found.cause.gpus[0]}\b\D+\b{found.cause.gpus[1]}\b",),
    ),
    "one GPU of a tensor group at a lower clock": Expected("clock|slower kernels|longer"),
    "more tokens in one iteration": Expected("more (FLOPs|work|tokens)|× the tokens", _iterations),
    "more tokens on another GPU each time": Expected(
        "more (FLOPs|work|tokens)|× the tokens", lambda _f, _r: ("in turn|another GPU",)
    ),
    "garbage collection on all GPUs": Expected(r"\bgc\b|garbage|collect\b", _iterations, _HOST),
    "data late on all GPUs, every third": Expected(r"\bdata\b", _iterations),
    "a checkpoint on all GPUs": Expected(
        "checkpoint|save", _iterations, unseen="hipMemcpy|cop(y|ies)|" + _HOST
    ),
    "an allocator that retries": Expected("hipFree|hipMalloc|allocat"),
    "untraced time of one host, always": Expected("untraced|" + _HOST),
    "experts of one GPU with more tokens": Expected("more (FLOPs|work|tokens)|longer", _two_layers),
    "a heavy last stage": Expected("stage", lambda found, _: (_last_stage(found),)),
    "evaluation between steps": Expected("evaluat"),
    "values read back every third step": Expected("item|hipMemcpy|read", _every_iteration),
    "a stall after the optimizer": Expected(_HOST, lambda _f, _r: ("after the last|at the end",)),
    "a stall of all hosts after the optimizer": Expected(
        _HOST, lambda _f, _r: ("after the last|at the end|optimizer",)
    ),
    "a rail that flaps": Expected(
        "link|transfer",
        lambda found, run: (
            rf"\b{found.cause.gpus[0]}\b\D+\b{found.cause.gpus[1]}\b",
            *_every_iteration(found, run),
        ),
    ),
    "hipMalloc in one layer": Expected("hipMalloc", _layer),
    "a clock that sinks slowly": Expected("clock", lambda _f, _r: ("gradually|drift|sink",)),
    "slow memory of all GPUs from then on": Expected("memory", _since),
    "debug kernels on one GPU": Expected("more (work|kernels)|kernels only"),
    "a slow host of one GPU": Expected(_HOST),
    "half of the GPUs capped": Expected("clock|slower kernels|longer", _capped),
    "a step that compiles": Expected("compile", _iterations, _HOST),
    "slow copies of one GPU": Expected(r"\bcop(y|ies)\b"),
    "a device synchronised in every layer": Expected("[Ss]ynchroni"),
    "pauses of one host anywhere": Expected(_HOST),
    "more tokens on all GPUs every third step": Expected(
        "more (FLOPs|work|tokens)|× the tokens", _every_iteration
    ),
    "a clock that dips every third step": Expected("clock", _every_iteration),
    "data that take ever longer": Expected(r"\bdata\b", lambda _f, _r: ("gradually|grow",)),
    "logging on all GPUs every third step": Expected(
        "logging", _every_iteration, "item|hipMemcpy|read|" + _HOST
    ),
    "one operation slow from then on": Expected(
        "longer|slower", lambda found, run: (*_since(found, run), *_operation(found, run))
    ),
}
"""Words and place of the first finding by cause; its GPU is asked of all that have some."""
_BLOCK: Final = ("<!-- recall -->", "<!-- /recall -->")
_SHOW_HOST: Final = ("module", "annotated")


class Finding(Struct, frozen=True):
    """A row of the view of findings."""

    title: str
    detail: str
    rule: str
    cost_ns: float | None
    saving_ns: float | None
    low_ns: float | None
    high_ns: float | None
    remedy: str
    part_of: int | None
    """The place of the one that it is a part of, among all that the view lists."""
    place: int
    """Its own."""


class Outcome(Struct, frozen=True):
    """The findings of one run with a cause, against its truth."""

    cause: str
    style: str
    seed: int
    size: float
    share: float
    cost_ns: float
    gpus: tuple[int, ...]
    found: tuple[Finding, ...]
    ranks: tuple[int, ...]
    """How right each finding is: 0 wrong GPU, 1 GPU, 2 GPU and place, 3 the cause too."""

    @property
    def level(self) -> int:
        """How right the first finding is."""
        return self.ranks[0] if self.ranks else 0

    @property
    def first(self) -> Finding | None:
        """The first finding."""
        return self.found[0] if self.found else None

    @property
    def is_sized(self) -> bool | None:
        """Whether what it saves, or without a replay costs, is within a quarter of the truth; None
        where the finding isn't right."""
        if self.first is None or self.level < 3:
            return None
        told = self.first.cost_ns if self.first.saving_ns is None else self.first.saving_ns
        return told is not None and abs(told - self.cost_ns) <= _SIZED * self.cost_ns

    @property
    def is_in_range(self) -> bool | None:
        """Whether the told range holds the true cost; None where the finding isn't right."""
        first = self.first
        if first is None or self.level < 3 or first.low_ns is None or first.high_ns is None:
            return None
        return first.low_ns <= self.cost_ns <= first.high_ns


def findings_of(run: Run) -> tuple[Finding, ...]:
    """The findings of a run that cost time, the first one first."""
    frame = query(run, View(run.name, name="findings"))
    values = frame.values

    def number(name: str, row: int) -> float | None:
        each = values.get(name)
        return None if each is None or not each.present()[row] else float(each.numbers[row])

    return tuple(
        Finding(
            label,
            str(values["detail"].cell(row)),
            str(values["rule"].cell(row)),
            number("cost_ns", row),
            number("saving_ns", row),
            number("saving_low_ns", row),
            number("saving_high_ns", row),
            str(values["remedy"].cell(row) or "") if "remedy" in values else "",
            None if (whole := number("part_of", row)) is None else round(whole) - 1,
            row,
        )
        for row, label in enumerate(frame.labels)
        if values["rule"].cell(row) != WITHOUT_SAVING
    )


def opened(simulated: planted.Simulated, removed: str = "") -> Run:
    """A simulated run, written, read and aligned; without a part (`REMOVALS`), if one is named."""
    with tempfile.TemporaryDirectory() as folder:
        simulated.write(Path(folder))
        if removed:
            remove_from(Path(folder), removed)
        return open_run(folder, jobs=1)


def measure(
    cause: str,
    seed: int,
    size: float,
    style: str = "",
    *,
    is_rough: bool = False,
    removed: str = "",
) -> Outcome:
    """Plant a cause, open the run, and judge its findings."""
    truth = planted.plant(cause, seed, size, style, is_rough=is_rough)
    run = opened(truth.run, removed)
    found = findings_of(run)
    return Outcome(
        cause, truth.style, seed, size, truth.share, truth.cost_ns, truth.cause.gpus,
        found, tuple(rightness(each.detail, truth, run) for each in found),
    )  # fmt: skip


def _gpus_in(sentence: str) -> set[int]:
    """The GPUs that a sentence names: `GPU 2`, `GPUs 1, 4 and 7 to 9`."""
    return {
        number
        for part in re.findall(r"GPUs? ([\d, andto]+)", sentence)
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", part)
        for number in range(int(first), int(last or first) + 1)
    }


def rightness(sentence: str, truth: planted.Planted, run: Run) -> int:
    """How right a sentence is about what was planted: see `Outcome.ranks`."""
    expected, gpus = EXPECTED[truth.name], truth.cause.gpus
    named = _gpus_in(sentence.partition(";")[0])
    # The place of these is a link, or a stage.
    is_placed = truth.cause.kind in ("link", "head")
    if gpus and not is_placed and not named & set(gpus):
        return 0
    if not gpus and truth.run.config.ranks > 1 and len(named) == 1:
        return 0
    if not all(re.search(each, sentence, re.I) for each in expected.place(truth, run)):
        return 1
    words = expected.words
    if expected.unseen and not truth.style.startswith(_SHOW_HOST):
        words = expected.unseen
    return 3 if re.search(words, sentence, re.I) else 2


class Clean(Struct, frozen=True):
    """The findings of a run without a cause; all that cost time are false."""

    style: str
    seed: int
    found: tuple[Finding, ...]

    @property
    def false(self) -> tuple[Finding, ...]:
        """Those that accuse: pipelines truly wait for their stages."""
        waits = self.style.startswith("stages")
        return tuple(f for f in self.found if not (waits and f.rule == "exposed"))


def clean(style: str, seed: int, *, is_rough: bool = False, removed: str = "") -> Clean:
    """Open a run without a cause."""
    run = opened(planted.clean(style, seed, is_rough=is_rough), removed)
    return Clean(style, seed, findings_of(run))


def outcomes(
    causes: Iterable[str],
    seeds: Sequence[int],
    sizes: Sequence[float],
    style: str = "",
    *,
    is_rough: bool = False,
    removed: str = "",
) -> Iterator[Outcome]:
    """All runs with a cause; those of one seed come together, since they share a clean run."""
    names = list(causes)
    for seed in seeds:
        for cause in names:
            for size in sizes:
                yield measure(cause, seed, size, style, is_rough=is_rough, removed=removed)


def report(found: Sequence[Outcome], without: Sequence[Clean]) -> list[str]:
    """The tables, as markdown."""
    lines = [*_summary(found, without), ""]
    lines.append(
        "| cause | ≥ 2 %: first | GPU | GPU, place | and cause | within 25 % | saving holds "
        "| told ÷ true |"
    )
    lines.append("| :-- | --: | --: | --: | --: | --: | --: | --: |")
    for cause in dict.fromkeys(each.cause for each in found):
        own = [each for each in found if each.cause == cause and each.share >= COUNTS]
        levels = [sum(each.level >= level for each in own) for level in (1, 2, 3)]
        held = [each.is_in_range for each in own if each.is_in_range is not None]
        ratios = [
            each.first.saving_ns / each.cost_ns
            for each in own
            if each.level == 3 and each.first and each.first.saving_ns
        ]
        lines.append(
            f"| {cause.replace('iteration', 'step')} | {len(own)} | {' | '.join(map(str, levels))} "
            f"| {_of([each.is_sized for each in own])} | {sum(held)} of {len(held)} "
            f"| {f'{median(ratios):.2f}' if ratios else '–'} |"
        )
    lines += ["", "| rule | right first findings | smallest cost found | smallest always found |"]
    lines.append("| :-- | --: | --: | --: |")
    for rule, own in sorted(_by_rule(found).items()):
        shares = sorted(each.share for each in own)
        lines.append(f"| `{rule}` | {len(own)} | {100 * shares[0]:.1f} % | {_limit(found, own)} |")
    return lines


def _summary(found: Sequence[Outcome], without: Sequence[Clean]) -> Iterator[str]:
    own = [each for each in found if each.share >= COUNTS]
    right = sum(each.level == 3 for each in own)
    accused = sum(bool(each.found) and each.level == 0 for each in own)
    held = [each.is_in_range for each in own if each.is_in_range is not None]
    if own:
        yield (
            f"{right} of {len(own)} causes that cost at least 2 % of the step are the first "
            f"finding, with GPU, place and cause ({100 * right / len(own):.0f} %); in {accused} "
            f"the first finding accuses something else. The stated range of the saving holds the "
            f"true cost in {sum(held)} of {len(held)}; what it saves is within a quarter of that "
            f"in {_of([each.is_sized for each in own])}."
        )
    if without:
        wrong = sum(bool(each.false) for each in without)
        yield f"{wrong} of {len(without)} clean runs have a false finding."


def _of(known: Sequence[bool | None]) -> str:
    """`9 of 10`: how many of those that are known are true."""
    return f"{sum(each is True for each in known)} of {sum(each is not None for each in known)}"


def _by_rule(found: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    rules: dict[str, list[Outcome]] = {}
    for each in found:
        if each.level == 3 and each.first:
            rules.setdefault(each.first.rule, []).append(each)
    return rules


def _limit(found: Sequence[Outcome], own: Sequence[Outcome]) -> str:
    """The cost from which on the causes that a rule finds are found in at least 90 %."""
    causes = {each.cause for each in own}
    alike = sorted((each for each in found if each.cause in causes), key=lambda each: each.share)
    for place, each in enumerate(alike):
        rest = alike[place:]
        if sum(one.level == 3 for one in rest) >= 0.9 * len(rest):
            return f"{100 * each.share:.1f} %"
    return "–"


def _explained(each: Outcome) -> Iterator[str]:
    mark = ("wrong", "gpu", "place", "RIGHT")[each.level]
    yield (
        f"{mark:5} {each.cause} | {each.style} seed {each.seed} size {each.size:g} "
        f"true {100 * each.share:.2f} % {each.cost_ns / 1e6:.2f} ms GPUs {each.gpus}"
    )
    for level, one in list(zip(each.ranks, each.found, strict=True))[:3]:
        saving = "?" if one.saving_ns is None else f"{one.saving_ns / 1e6:.2f} ms"
        if one.low_ns is not None and one.high_ns is not None:
            saving += f" ({one.low_ns / 1e6:.2f}–{one.high_ns / 1e6:.2f})"
        yield f"      {level} [{one.rule}, {saving}] {one.detail}"


def main() -> None:
    """Measure and print, or renew the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one seed and size of each cause")
    parser.add_argument("--cause", action="append", help="part of a cause's name; repeatable")
    parser.add_argument("--style", default="", help="of the runs; usually by the seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--holdout", action="store_true", help="take the seeds kept for the end")
    parser.add_argument("--sizes", type=float, nargs="+", default=list(planted.SIZES))
    parser.add_argument(
        "--rough", action="store_true", help="with clocks late by up to 40 µs, and lost records"
    )
    parser.add_argument("--without", choices=REMOVALS, default="", help="traces that lack a part")
    parser.add_argument("--runs", type=int, default=3, help="clean ones of each style, at most")
    parser.add_argument("--clean", choices=("only", "no", "too"), default="too")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("-o", "--output", type=Path, help="the page whose block is renewed")
    options = parser.parse_args()
    seeds = list(HOLDOUT) if options.holdout else options.seeds
    sizes = options.sizes
    if options.quick:
        seeds, sizes = seeds[:1], [0.04]
    names = [
        name
        for name in planted.CAUSES
        if not options.cause or any(part in name for part in options.cause)
    ]
    found: list[Outcome] = []
    chosen = names if options.clean != "only" else ()
    is_rough, removed = options.rough, options.without
    for each in outcomes(chosen, seeds, sizes, options.style, is_rough=is_rough, removed=removed):
        found.append(each)
        if options.verbose:
            print("\n".join(_explained(each)), flush=True)
    without: list[Clean] = []
    if options.clean != "no" and not options.cause:
        for style in planted.STYLES:
            for seed in seeds[: options.runs]:
                without.append(clean(style, seed, is_rough=is_rough, removed=removed))
                for one in without[-1].false if options.verbose else ():
                    print(f"FALSE {style} seed {seed} [{one.rule}, {one.saving_ns}] {one.detail}")
    lines = report(found, without)
    if options.output:
        head, rest = options.output.read_text(encoding="utf-8").split(_BLOCK[0])
        text = "\n".join(("", *lines, ""))
        tail = rest.split(_BLOCK[1])[1]
        options.output.write_text(head + _BLOCK[0] + text + _BLOCK[1] + tail, encoding="utf-8")
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
