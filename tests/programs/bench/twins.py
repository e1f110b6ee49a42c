"""What-if answers against simulated twins: the same run, same seed, with the change truly made.

`python -m tests.programs.bench.twins --seeds 1001 1002` asks each question of a generated run and
generates the run again as the question says: without a cause, or with other kernels, links, hosts
or clocks. The answer is right within a quarter of the true difference, or within 0.2 % of the step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final
from unittest.mock import patch

from msgspec import Struct

from chopper_core.analyses.asked import Steady, answer_of, change_of, questions_of
from chopper_core.analyses.step_times import step_times
from chopper_core.columns import METRICS, Scope
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from tests.programs.bench.causes import opened, planted

Cause = planted.Cause

SIZE: Final = 0.04
_RIGHT: Final = 0.25
_CLOSE: Final = 0.002
"""Of the step."""


class Twin(Struct, frozen=True):
    """Two runs that differ in one thing, and how a question asks for the second one."""

    before: planted.Simulated
    after: planted.Simulated
    question: Callable[[Run], str]


Make = Callable[[int, str], Twin]
"""From a seed and a style, empty: one by the seed."""


def _planted(cause: str, question: Callable[[Cause], str]) -> Make:
    """A cause, and the same run without it."""

    def make(seed: int, style: str) -> Twin:
        truth = planted.plant(cause, seed, SIZE, style)
        own = truth.run.config.causes[0]
        without = planted.simulated(replace(truth.run.config, causes=()))
        return Twin(truth.run, without, lambda _: question(own))

    return make


def _changed(
    question: str,
    change: Callable[[planted.Style], planted.Style],
    styles: Sequence[str],
    cause: str = "",
) -> Make:
    """A clean run, or one with a cause, and the same one with something changed."""

    def make(seed: int, style: str) -> Twin:
        style = style or styles[seed % len(styles)]
        if cause:
            before = planted.plant(cause, seed, SIZE, style).run
        else:
            before = planted.clean(style, seed)
        return Twin(before, planted.simulated(change(before.config)), lambda _: question)

    return make


def _with(*causes: Cause) -> Callable[[planted.Style], planted.Style]:
    def change(style: planted.Style) -> planted.Style:
        every = (planted.c.FIRST_ITERATION, *style.complete_iterations)
        new = tuple(replace(each, iterations=every) for each in causes)
        return replace(style, causes=(*style.causes, *new))

    return change


def _without_contention(seed: int, style: str) -> Twin:
    names = ("annotated", "module", "busy links", "fsdp")
    before = planted.clean(style or names[seed % len(names)], seed)
    with (
        patch.object(planted.c, "TRANSFER_SLOWDOWN", 1.0),
        patch.object(planted.c, "SPIN_SLOWDOWN", 1.0),
    ):
        after = planted.simulated.__wrapped__(before.config)
    return Twin(before, after, lambda _: "no contention")


def _at_clock(cause: str, of_gpu: bool) -> Make:
    """The clock that GPUs have without a cause, as the run with it lets one know."""

    def make(seed: int, style: str) -> Twin:
        truth = planted.plant(cause, seed, SIZE, style)
        own, config = truth.run.config.causes[0], truth.run.config
        without = planted.simulated(replace(config, causes=()))

        def question(run: Run) -> str:
            nodes = run.tree().split((), ("gpu",))
            scope = Scope.of(run, nodes, run.tree().node(()))
            mhz = METRICS["gfx_mhz"].compute(scope).known()
            low = [mhz[gpu] for gpu in own.gpus or range(config.ranks)]
            which = _of_gpus(own) + " " if of_gpu else ""
            return f"{which}clock={fmean(low) / own.amount:.0f}"

        return Twin(truth.run, without, question)

    return make


def _balanced(seed: int, style: str) -> Twin:
    """More tokens on one GPU, and the same ones shared by all."""
    truth = planted.plant("more tokens on one GPU", seed, 3 * SIZE, style)
    own, config = truth.run.config.causes[0], truth.run.config
    shared = replace(own, gpus=(), amount=own.amount / config.ranks)
    after = planted.simulated(replace(config, causes=(shared,)))
    return Twin(truth.run, after, lambda _: "compute balanced")


def _stages_balanced(seed: int, style: str) -> Twin:
    """A heavy last stage, and the same work in stages of one length."""
    truth = planted.plant("a heavy last stage", seed, SIZE, style)
    after = planted.simulated(planted.balanced(truth.run))
    return Twin(truth.run, after, lambda _: "stages balanced")


def _of_gpus(cause: Cause) -> str:
    return f"gpu:{','.join(map(str, cause.gpus))}"


def _of_steps(cause: Cause) -> str:
    return f"iteration:{','.join(map(str, cause.iterations))}"


def _peers(cause: Cause) -> str:
    return f"{_of_gpus(cause)} as peers"


def _host_of_gpus(cause: Cause) -> str:
    return f"{_of_gpus(cause)} host as peers"


def _host_of_steps(cause: Cause) -> str:
    return f"{_of_steps(cause)} host as peers"


_DENSE: Final = ("annotated", "module", "fsdp", "module recomputing")
TWINS: Final[Mapping[str, Make]] = {
    "GPU as peers, a lower clock": _planted("one GPU at a lower clock", _peers),
    "no stragglers, a lower clock": _planted("one GPU at a lower clock", lambda _: "no stragglers"),
    "hosts as peers, data late": _planted(
        "data of one GPU late, always", lambda _: "host as peers"
    ),
    "GPUs as peers, two at a lower clock": _planted("two GPUs at a lower clock", _peers),
    "tensor group's GPU as peers": _planted("one GPU of a tensor group at a lower clock", _peers),
    "GPU as peers, slow memory": _planted("slow memory of one GPU", _peers),
    "GPU as peers, more tokens": _planted("more tokens on one GPU", _peers),
    "GPU as peers, debug kernels": _planted("debug kernels on one GPU", _peers),
    "GPU's optimizer as peers": _planted(
        "slow optimizer kernels on one GPU", lambda own: f"{_of_gpus(own)} phase:optimizer as peers"
    ),
    "GPU's operation as peers": _planted(
        "one operation slow on one GPU",
        lambda own: f"{_of_gpus(own)} compute as peers",
    ),
    "GPU's experts as peers": _planted(
        "experts of one GPU with more tokens",
        lambda own: f"{_of_gpus(own)} layer:{own.layer},{(own.layer or 0) + 1} as peers",
    ),
    "GPU's copies as peers": _planted(
        "slow copies of one GPU", lambda own: f"{_of_gpus(own)} copy as peers"
    ),
    "balanced": _balanced,
    "stages balanced": _stages_balanced,
    "layer as peers": _planted("one layer slow", lambda own: f"layer:{own.layer} as peers"),
    "layer as peers, an operation": _planted(
        "one operation slow in one layer", lambda own: f"layer:{own.layer} as peers"
    ),
    "layer as peers, an extra operation": _planted(
        "an extra operation in one layer", lambda own: f"layer:{own.layer} as peers"
    ),
    "step as peers": _planted("one slow iteration", lambda own: f"{_of_steps(own)} as peers"),
    "step as peers, more tokens": _planted(
        "more tokens in one iteration", lambda own: f"{_of_steps(own)} as peers"
    ),
    "step's communication as peers": _planted(
        "a slow network in one iteration", lambda own: f"{_of_steps(own)} comm as peers"
    ),
    "host of a GPU as peers": _planted("a slow host of one GPU", _host_of_gpus),
    "host of a GPU as peers, data": _planted("data of one GPU late, always", _host_of_gpus),
    "host of a GPU as peers, hipFree": _planted("hipFree on one GPU", _host_of_gpus),
    "host of a GPU as peers, optimizer": _planted("slow optimizer host on one GPU", _host_of_gpus),
    "host of a GPU as peers, pauses": _planted("pauses of one host anywhere", _host_of_gpus),
    "host of a GPU as peers, at the end": _planted("a stall after the optimizer", _host_of_gpus),
    "host of steps as peers, data": _planted("data late on all GPUs, every third", _host_of_steps),
    "host of steps as peers, pauses": _planted("garbage collection on all GPUs", _host_of_steps),
    "host of a step as peers, compilation": _planted("a step that compiles", _host_of_steps),
    "host x": _planted("hosts that can't keep up", lambda own: f"host x{1 / own.amount:.4f}"),
    "memory x": _planted("slow memory of all GPUs", lambda own: f"memory x{1 / own.amount:.4f}"),
    "clock of all GPUs": _at_clock("all GPUs at a lower clock", of_gpu=False),
    "clock of a throttled GPU": _at_clock("a throttled GPU", of_gpu=True),
    "communication hidden": _planted("parameters not gathered ahead", lambda _: "comm hidden"),
    "an operation's contention as peers": _planted(
        "an operation slowed by communication", lambda own: f"{own.operation} contention as peers"
    ),
    "no contention": _without_contention,
    "links of a group at peak": _planted(
        "a slow link of one group", lambda own: f"{_of_gpus(own)} comm as peers"
    ),
    "copies at no time": _planted("copies from pageable memory", lambda _: "copy x0"),
    "an operation x0.8": _changed(
        "operation:mlp_dp x0.8", _with(Cause("kernels", 0.8, operation="mlp_dp")), _DENSE[:3]
    ),
    "compute of a GPU x1.05": _changed(
        "gpu:1 compute x1.05", _with(Cause("kernels", 1.05, (1,))), (*_DENSE, "tensor", "stages")
    ),
    "compute x0.9": _changed("compute x0.9", _with(Cause("kernels", 0.9)), (*_DENSE, "tensor")),
    "compute of a stage x0.9": _changed(
        "stage:1 compute x0.9", _with(Cause("kernels", 0.9, (2, 3))), ("stages",)
    ),
    "communication x2": _changed(
        "comm x2",
        lambda style: replace(style, link_times=2 * style.link_times),
        (*_DENSE, "busy links", "tensor", "stages"),
    ),
    "communication x0.5": _changed(
        "comm x0.5",
        lambda style: replace(style, link_times=style.link_times / 2),
        ("busy links", "busy links of modules", "tensor", "stages"),
    ),
    "host x2": _changed("host x2", _with(Cause("host", 2.0)), ("annotated", "module", "flat")),
    "host x0.5, hosts that can't keep up": _changed(
        "host x0.5",
        lambda style: replace(
            style, causes=tuple(replace(each, amount=each.amount / 2) for each in style.causes)
        ),
        ("annotated", "module", "flat"),
        "hosts that can't keep up",
    ),
}  # fmt: skip
"""A title → the twins, and the question about them."""


class Answered(Struct, frozen=True):
    """A question's answer and the truth, in ns per step."""

    title: str
    question: str
    style: str
    seed: int
    step_ns: float
    said_ns: float
    range_ns: tuple[float, float]
    true_ns: float

    @property
    def is_right(self) -> bool:
        most = max(_RIGHT * abs(self.true_ns), _CLOSE * self.step_ns)
        return abs(self.said_ns - self.true_ns) <= most

    @property
    def is_in_range(self) -> bool:
        return self.range_ns[0] <= self.true_ns <= self.range_ns[1]


def measure_twins(title: str, seed: int, style: str = "") -> Answered | str:
    """Generate two runs, ask the first one for the second, and compare; why the first one doesn't
    know, where it says so."""
    twin = TWINS[title](seed, style)
    run = opened(twin.before)
    question = twin.question(run)
    steady = Steady.of(run, View(run.name), questions_of(question))
    step_ns = steady.times.mean_ns
    other = opened(twin.after)
    true_ns = step_ns - step_times(other, View(other.name)).mean_ns
    try:
        changes = [change_of(steady.predictor, each) for each in questions_of(question)]
    except NothingToShow as reason:
        return f"{title}: `{question}` | {seed}: {reason}"
    answer = answer_of(steady, changes)
    named = next((name for name, each in planted.STYLES.items() if _is_of(twin, each)), "")
    return Answered(
        title, question, named, seed, step_ns, answer.saving_ns, answer.range_ns, true_ns
    )  # fmt: skip


def _is_of(twin: Twin, style: planted.Style) -> bool:
    config = twin.before.config
    names = ("looks", "shards", "microsteps", "tensor", "stages", "recompute", "layers", "ranks")
    names += ("link_times", "noise", "lost_share")
    return all(getattr(config, name) == getattr(style, name) for name in names)


def answers(
    titles: Sequence[str], seeds: Sequence[int], style: str = ""
) -> Iterator[Answered | str]:
    """All questions for each seed."""
    for seed in seeds:
        for title in titles:
            yield measure_twins(title, seed, style)


def main() -> None:
    """Print a row per question and how many are right."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--question", action="append", help="part of a title; repeatable")
    parser.add_argument("--style", default="", help="of the runs; usually by the seed")
    options = parser.parse_args()
    titles = [t for t in TWINS if not options.question or any(q in t for q in options.question)]
    print(
        "| | question | run | said, ms | range | true, ms |\n| :-- | :-- | :-- | --: | --: | --: |"
    )
    found: list[Answered] = []
    unknown = 0
    for each in answers(titles, options.seeds, options.style):
        if isinstance(each, str):
            unknown += 1
            print(f"| not known | {each} | | | |", flush=True)
            continue
        found.append(each)
        low, high = (ns / 1e6 for ns in each.range_ns)
        mark = "right" if each.is_right else "wrong"
        share = 100 * each.true_ns / each.step_ns
        print(
            f"| {mark} | {each.title}: `{each.question}` | {each.style} {each.seed} "
            f"| {each.said_ns / 1e6:.2f} | {low:.2f} to {high:.2f} "
            f"| {each.true_ns / 1e6:.2f} ({share:.1f} %) |",
            flush=True,
        )
    right, held = (sum(getattr(e, n) for e in found) for n in ("is_right", "is_in_range"))
    print(
        f"\n{right} of {len(found)} answers are within a quarter of the truth "
        f"({100 * right / max(len(found), 1):.0f} %); the range holds it in {held}; "
        f"{unknown} say that the run doesn't show it."
    )


if __name__ == "__main__":
    main()
