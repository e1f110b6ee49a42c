"""Pairs and triples of planted causes: whether each is named and sized, and what all save together.

`python -m tests.programs.bench.causes_together --seeds 801 802` draws pairs from all causes and
triples; a cause alone is `tests.programs.bench.causes`. What one costs is what the same run without
it takes less: of two GPUs that are late for one another, that may be nothing. A finding that names
several of them, itself or by its parts, is sized by what these cost together.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from itertools import product
from random import Random
from typing import Final

from msgspec import Struct

from chopper_core.findings import checked
from chopper_core.findings.rule import SMALLEST_SAVING
from chopper_core.model.view import View
from tests.programs.bench.causes import Finding, findings_of, opened, planted, rightness

SIZE: Final = 0.05
COUNTS: Final = 0.01
"""Of the step: what costs less needn't be found."""
_SIZED: Final = 0.25
_CLOSE: Final = 0.005
"""Of the step: a saving this close to the truth is right, whatever its share of it."""
_SEE_ALSO: Final = re.compile("See also '(.+)', which takes much of the same time")
_ALONE: Final = ("a heavy last stage",)
"""Those whose run without them isn't the run without causes."""
_ALIKE: Final = (
    ("memory", "later_memory"),
    ("data", "growing_data"),
    ("items", "synchronises"),
    ("clock", "throttled"),
    ("clock", "sinking"),
    ("throttled", "sinking"),
)
"""Kinds that are one cause where both happen."""


class FoundTogether(Struct, frozen=True):
    """The findings of one run with several causes, against its truth."""

    title: str
    names: tuple[str, ...]
    step_ns: float
    costs_ns: tuple[float, ...]
    """Of each cause: what the step takes less without this one alone."""
    truths_ns: tuple[float, ...]
    """Of each cause: without all causes that its finding names, itself or by its parts."""
    findings: tuple[Finding | None, ...]
    """The first one that names each cause with GPU and place."""
    all_ns: float
    saved_ns: float | None
    """What all cost, and what the remedies of these findings save together; None without."""
    listed: tuple[Finding, ...]

    def is_near(self, told_ns: float | None, true_ns: float) -> bool:
        most = max(_SIZED * true_ns, _CLOSE * self.step_ns)
        return told_ns is not None and abs(told_ns - true_ns) <= most

    @property
    def counted(self) -> list[int]:
        """The causes that cost enough to be found."""
        return [at for at, ns in enumerate(self.costs_ns) if ns >= COUNTS * self.step_ns]

    @property
    def named(self) -> list[bool]:
        return [self.findings[at] is not None for at in self.counted]

    @property
    def sized(self) -> list[bool]:
        """Of those that are named."""
        return [
            self.is_near(_told(one), self.truths_ns[at])
            for at in self.counted
            if (one := self.findings[at]) is not None
        ]

    @property
    def is_together(self) -> bool | None:
        """Whether what all save together is right; None where one isn't named, or not replayed."""
        known = None if self.saved_ns is None else self.is_near(self.saved_ns, self.all_ns)
        return known if None not in self.findings else None


def _told(one: Finding) -> float | None:
    return one.cost_ns if one.saving_ns is None else one.saving_ns


def _around(one: Finding | None, found: Sequence[Finding]) -> Iterator[Finding]:
    """A finding, and those that it is a part of, or says to take much of the same time."""
    by_place = {each.place: each for each in found}
    by_title = {each.title: each for each in found}
    while one is not None:
        yield one
        said = _SEE_ALSO.search(one.detail)
        whole = by_title.get(said[1]) if said else None
        one = whole if one.part_of is None else by_place.get(one.part_of)


def _one_each(
    right: Sequence[Sequence[Finding]], found: Sequence[Finding]
) -> tuple[Finding | None, ...]:
    """Of the findings that name each cause the first, so that as many as can have one of their
    own, with its parts."""

    def rank(way: tuple[Finding | None, ...]) -> tuple[int, int, int]:
        own = [[each.place for each in _around(one, found)] for one in way if one is not None]
        wholes, places = {each[-1] for each in own}, [each[0] for each in own]
        return -len(wholes), -len(set(places)), sum(places)

    return min(product(*(own or [None] for own in right)), key=rank)


def _named_by(
    one: Finding, own: Sequence[Finding | None], found: Sequence[Finding], least_ns: float
) -> tuple[int, ...]:
    """The causes whose findings are one finding, or among its parts that save time alone: the
    time of others, which it hides, isn't in what it saves."""

    def is_within(each: Finding | None) -> bool:
        for way in _around(each, found):
            if way.place == one.place:
                return True
            if way.saving_ns is not None and way.saving_ns < least_ns:
                return False
        return False

    return tuple(at for at, each in enumerate(own) if is_within(each))


def draw(seed: int, number: int) -> tuple[str, ...]:
    """Causes of a pair or triple that can happen in one style of run, each of another kind."""
    random, causes = Random(f"{seed}:{number}"), sorted({*planted.CAUSES} - {*_ALONE})
    while True:
        names = tuple(random.sample(causes, number))
        styles = set.intersection(*(set(planted.CAUSES[each].styles) for each in names))
        if styles:
            return names


def measure_together(
    names: Sequence[str], seed: int, *, size: float = SIZE, is_rough: bool = False
) -> FoundTogether | None:
    """Plant some causes in one run and judge its findings; None where two are alike."""
    truths = planted.plant_together(names, seed, size, is_rough=is_rough)
    kinds = {each.cause.kind for each in truths}
    if len(kinds) < len(names) or any(kinds >= set(each) for each in _ALIKE):
        return None
    run = opened(truths[0].run)
    found = findings_of(run)
    own = _one_each(
        [[each for each in found if rightness(each.detail, truth, run) == 3] for truth in truths],
        found,
    )
    worth = checked(run, View(run.name, name="findings")).worth
    remedies = list(dict.fromkeys(each.remedy for each in own if each is not None and each.remedy))
    saved = worth.saving_ns(remedies) if worth is not None and remedies else None
    if saved is not None:
        # What is between steps is in no replay of them.
        saved += sum(each.cost_ns or 0.0 for each in own if each is not None and not each.remedy)
    title = f"{' + '.join(names)} | {truths[0].style} seed {seed}"
    costs = tuple(each.cost_ns for each in truths)
    run_ns = truths[0].step_ns
    least_ns = SMALLEST_SAVING.share * run_ns
    whose = [
        (at,) if one is None else _named_by(one, own, found, least_ns) for at, one in enumerate(own)
    ]

    def cost(places: tuple[int, ...]) -> float:
        if len(places) == 1:
            return costs[places[0]]
        return planted.cost_of(truths[0].run, [truths[at].cause for at in places])

    every = cost(tuple(range(len(names))))
    each = tuple(map(cost, whose))
    return FoundTogether(title, tuple(names), run_ns, costs, each, own, every, saved, found)


def _explained(each: FoundTogether) -> Iterator[str]:
    saved = "?" if each.saved_ns is None else f"{each.saved_ns / 1e6:.2f}"
    mark = "RIGHT" if all([*each.named, *each.sized, each.is_together is not False]) else "wrong"
    yield f"{mark} {each.title}: together {saved} of {each.all_ns / 1e6:.2f} ms"
    columns = (each.names, each.costs_ns, each.truths_ns, each.findings)
    for name, cost, truth, one in zip(*columns, strict=True):
        told = None if one is None else _told(one)
        more = "" if truth == cost else f" of {truth / 1e6:.2f} with what else it names"
        yield (
            f"    {name}: costs {cost / 1e6:.2f} ms ({100 * cost / each.step_ns:.1f} %), "
            + ("not named" if one is None else f"said {(told or 0) / 1e6:.2f}{more}")
        )
    for one in each.listed[:6]:
        saving = "?" if one.saving_ns is None else f"{one.saving_ns / 1e6:.2f}"
        yield f"        {'  ' * (one.part_of is not None)}[{one.rule} {saving}] {one.detail[:200]}"


def main() -> None:
    """Print how many causes are named, sized and right together."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, nargs="+", default=[801])
    parser.add_argument("--pairs", type=int, default=10, help="of each seed")
    parser.add_argument("--triples", type=int, default=5, help="of each seed")
    parser.add_argument("--rough", action="store_true", help="as in tests.programs.bench.causes")
    options = parser.parse_args()
    for number, many in ((2, options.pairs), (3, options.triples)):
        found: list[FoundTogether] = []
        for seed in options.seeds:
            for place in range(many):
                own = seed * 100 + place
                each = measure_together(draw(own, number), own, is_rough=options.rough)
                if each is not None:
                    found.append(each)
                    print("\n".join(_explained(each)), flush=True)
        named = [one for each in found for one in each.named]
        sized = [one for each in found for one in each.sized]
        together = [each.is_together for each in found if each.is_together is not None]
        print(
            f"{len(found)} runs with {number} causes: {sum(named)} of {len(named)} causes that "
            f"cost at least 1 % of the step are named with GPU and place, {sum(sized)} of "
            f"{len(sized)} of these are sized within a quarter; all together are right in "
            f"{sum(together)} of {len(together)}.",
            flush=True,
        )


if __name__ == "__main__":
    main()
