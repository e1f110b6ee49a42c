"""All benchmarks, or those that are named, printed as markdown or put into a page."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from chopper_core.store.reader import read_store
from chopper_core.views import VIEWS
from tests.programs.bench import analyses, budgets, data, engine, explorer, memory, private, reading
from tests.programs.bench.page import Conditions, Section, page_of
from tests.programs.bench.processes import CHOPPER, ROOT, Cost, in_turn, run, together
from tests.programs.bench.runs import LARGE, MANY, MOST
from tests.programs.fuzz.seeds import small_trace

SMALL, WIDE = explorer.SIZES
_QUICK: Mapping[str, Any] = {
    "size": 50,
    "huge": 0,
    "large": (8, 60_000),
    "many": (100, 33_000),
    "most": (500, 3_730),
    "counters": 0.05,
    "runs": 300,
    "writers": 8,
    "names": (2_000, 2_000),
    "rounds": 1,
    "views": ("overview", "kernels", "ranks"),
}
"""The options of a run of three minutes."""
_DEMO = ROOT / "demo_data" / "fsdp2"
_SLOW = ("private",)
"""Parts that a quick run has only if they are named."""
_EACH_FIRST = (
    "Through the terminal, each key in turn. A view that needs all activities for the first time "
    "shows that it is loading and can be cancelled; it is quick from then on:"
)


def main() -> None:
    """Run the parts that are named, or all, in turn; what is measured so far is on the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", metavar="PART", help=_PART_NAMES)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the page to write")
    parser.add_argument("--quick", action="store_true", help="small runs, each once")
    parser.add_argument("--size", type=int, default=200, metavar="MB", help="of the trace")
    parser.add_argument("--huge", type=int, default=1000, metavar="MB", help="of another; 0: none")
    parser.add_argument("--large", type=_shape, default=LARGE, metavar="RANKSxKERNELS")
    parser.add_argument("--many", type=_shape, default=MANY, metavar="RANKSxKERNELS")
    parser.add_argument("--most", type=_shape, default=MOST, metavar="RANKSxKERNELS")
    parser.add_argument("--counters", type=float, default=1.0, help="share of the full sizes")
    parser.add_argument("--runs", type=int, default=3000, help="tiny ones in a directory")
    parser.add_argument("--writers", type=int, default=64, help="jobs that write one store")
    parser.add_argument("--names", type=_shape, default=(60_000, 2_000), metavar="COUNTxBYTES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--views", type=_views, default=tuple(VIEWS), metavar="VIEW,…", help="keys")
    if "--quick" in sys.argv:
        parser.set_defaults(**_QUICK)
    options = parser.parse_args()
    if unknown := [name for name in options.part if name not in PARTS]:
        parser.error(f"no part is called {' or '.join(unknown)}; the parts: {', '.join(PARTS)}")
    conditions, found = Conditions(), {}
    for name in options.part or [name for name in PARTS if not options.quick or name not in _SLOW]:
        print(f"measuring: {name}", end="", file=sys.stderr, flush=True)
        start = time.monotonic()
        found[name] = section = PARTS[name][1](options)
        print(f", {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        print("\n".join([f"## {PARTS[name][0]}", "", *section.lines, ""]), flush=True)
        page = page_of(found, conditions.line())
        if options.output:
            options.output.write_text(page, encoding="utf-8")
    print(page)


def _views(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _shape(text: str) -> tuple[int, int]:
    ranks, _, kernels = text.partition("x")
    return int(ranks), int(kernels)


def _reading(options: argparse.Namespace) -> Section:
    found = reading.measure(options.size, options.rounds)
    return Section([*reading.lines(found)], [*budgets.of_reading(found)])


def _huge(options: argparse.Namespace) -> Section:
    if not options.huge:
        return Section([], [*budgets.of_huge(None)])
    found = reading.measure(options.huge, options.rounds, alone=True)
    return Section([*reading.lines(found)], [*budgets.of_huge(found)])


def _counters(options: argparse.Namespace) -> Section:
    lines = [*memory.report(options.counters)]
    return Section(lines, [*budgets.of_counters(lines)])


def _start(options: argparse.Namespace) -> Section:
    shown, imports = _show(options.rounds)
    empty, large = explorer.empty(), explorer.first_screen(*options.large)
    most = explorer.first_screen(*options.most)
    cases = (explorer.demo(), large, most, empty, explorer.empty("numpy", "msgspec"))
    for case in (cases[0], *cases):  # The first start of all greets, which no screen keeps.
        explorer.first_paint(case, SMALL, explorer.KEPT_AFTER_S)
    paints: dict[str, list[float]] = {case.title: [] for case in cases}
    rests: dict[str, list[float]] = {case.title: [] for case in cases}
    answers: dict[str, list[float]] = {case.title: [] for case in cases}
    for _ in range(3 * options.rounds):
        for case in cases:
            paint, rest = explorer.start(case, SMALL)
            paints[case.title].append(paint)
            rests[case.title].append(rest)
            answers[case.title].append(explorer.first_key(case, SMALL))
    lines = [
        f"{3 * options.rounds} processes each, in turn, after one that kept what the next can "
        "recall. Processor time from the start of the process to the first complete screen; until "
        "all that follows it is done; and of others until this shows the effect of a key that is "
        "typed as soon as its rows stand:",
        "",
    ]
    lines += [
        f"- {title}: {_ms(paint)}; it rests after {_ms(rests[title])}; a key is answered after "
        f"{_ms(answers[title])}"
        for title, paint in paints.items()
    ]
    found = (
        *budgets.of_show(shown, imports),
        *_commands(options.rounds),
        *budgets.of_paint(paints, empty.title),
        *budgets.of_rest(rests, empty.title),
        *budgets.of_answers(answers, empty.title),
    )
    return Section(lines, found)


def _commands(rounds: int) -> Iterator[budgets.Budget]:
    """A command that opens no run, and the first opening of one with counters and telemetry."""
    for what, most, words in (
        ("`chopper --version`", 60, ["--version"]),
        ("first opening of the demo", 2000, ["show", str(_DEMO), "--no-cache"]),
    ):
        spent = [1000 * run([*CHOPPER, *words]).cpu_s for _ in range(3 * rounds)]
        yield budgets.at_most(f"{what}, processor time", most, median(spent), "ms", min(spent))


def _runs(options: argparse.Namespace) -> Section:
    """Tiny runs in a directory, never seen and then cached."""
    folder, found = ROOT / "build" / "bench" / f"tiny-{options.runs}", []
    for number in range(options.runs):
        place = folder / f"run{number:05d}"
        if not place.exists():
            place.mkdir(parents=True)
            small_trace().write(place / "rank0.json")
    with TemporaryDirectory() as cache:
        command = ["env", f"XDG_CACHE_HOME={cache}", *CHOPPER, "runs", str(folder)]
        read, again = (1000 * run(command).wall_s for _ in range(2))
    title = f"{options.runs:,} tiny runs in a directory"
    found.append(budgets.Budget(f"{title}, never seen, wall", "–", f"{read:,.0f} ms", None))
    found.append(budgets.at_most(f"{title}, cached, wall", 1000, again, "ms"))
    with TemporaryDirectory() as cache:
        case = explorer.Case("runs", (*CHOPPER, str(folder)), "", ())
        for what in ("never seen", "cached"):
            wall_s = explorer.first_rows_s(case, SMALL, cache)
            name = f"{title}, {what}, first rows, wall"
            found.append(budgets.at_most(name, 1000, 1000 * wall_s, "ms"))
    return Section([], found)


def _names(options: argparse.Namespace) -> Section:
    """A trace of very many long names, never opened and then opened again."""
    path = str(data.names_trace(*options.names))
    with TemporaryDirectory() as cache:
        command = ["env", f"XDG_CACHE_HOME={cache}", *CHOPPER, "show", path]
        once = run(command).cpu_s
        again = median(run(command).cpu_s for _ in range(3))
        demo = [*command[:-1], str(_DEMO)]
        run(demo)
        base = median(run(demo).cpu_s for _ in range(3))
    title = f"{options.names[0]:,} names of {options.names[1]:,} bytes"
    found = [
        budgets.at_most(f"{title}, read, processor time", 3000, 1000 * once, "ms"),
        budgets.at_most(
            f"{title}, opened again, beyond the demo", 300, 1000 * max(again - base, 0.0), "ms"
        ),
    ]
    return Section([], found)


def _writers(options: argparse.Namespace) -> Section:
    """A job for each rank of a run, all at once on this machine, and the merge of their parts."""
    traces = data.rank_traces(options.writers)
    with TemporaryDirectory() as place:
        store = f"{place}/job.chopper"
        words = [*CHOPPER, "ingest"]
        costs, wall_s = together([[*words, str(trace), "--into", store] for trace in traces])
        finished = run([*words, "--finish", store])
        merged = len(read_store(Path(store)).sources)
    return Section([], [*budgets.of_writers(costs, wall_s, finished, merged)])


def _private(options: argparse.Namespace) -> Section:
    case = explorer.first_screen(*options.large)
    found = private.measure(case)
    return Section([*private.report(case, found)], [private.budget(found, case.title)])


def _explorer(options: argparse.Namespace) -> Section:
    cases = {
        "demo": explorer.demo(),
        "pages": explorer.pages(),
        "large": explorer.large(*options.large),
    }
    seen = {
        (name, size): explorer.seen(case, size, options.rounds)
        for name, case in cases.items()
        for size in explorer.SIZES
    }
    small, wide = seen["pages", SMALL], seen["pages", WIDE]
    found = (
        *budgets.of_keys(seen["large", SMALL].presses, cases["large"].title),
        *budgets.of_bytes(small.presses, wide.presses, small.idle),
    )
    return Section([*explorer.report(seen.values())], found)


def _keys(options: argparse.Namespace) -> Section:
    title = explorer.first_screen(*options.large).title
    walked = explorer.walk(*options.large, SMALL, options.views)
    return Section([*explorer.report_of_walk(walked, title)], [*budgets.of_walk(walked, title)])


def _engine(options: argparse.Namespace) -> Section:
    return Section([*engine.report(options.large, engine.medians(options.large, options.rounds))])


def _ranks(options: argparse.Namespace) -> Section:
    steps = engine.medians(options.many, options.rounds, parts=True)
    views = analyses.views_of(options.many, 1, compares=False, is_ingested=True)
    title = f"{options.many[0]:,} ranks × {options.many[1]:,} kernels"
    case = explorer.many(*options.many)
    seen = [explorer.seen(case, size, options.rounds) for size in explorer.SIZES]
    core = [*engine.report(options.many, steps), "", *analyses.report(options.many, views)]
    lines = [*core, "", _EACH_FIRST, "", *explorer.report(seen)]
    return Section(lines, [*budgets.of_ranks(steps, views, title)])


def _most(options: argparse.Namespace) -> Section:
    views = analyses.views_of(options.most, 1, compares=False, is_ingested=True)
    case = explorer.many(*options.most)
    presses, idle = explorer.pressed(case, SMALL, 2)
    seen = explorer.Seen(case.title, SMALL, [], presses, idle)
    lines = [*analyses.report(options.most, views), "", *explorer.report([seen])]
    return Section(lines, [*budgets.of_most(views, presses, case.title)])


def _analyses(options: argparse.Namespace) -> Section:
    found = analyses.views_of(analyses.MILLION, min(options.rounds, 1), compares=True)
    return Section([*analyses.report(analyses.MILLION, found)])


PARTS: Mapping[str, tuple[str, Callable[[argparse.Namespace], Section]]] = {
    "reading": ("Reading a trace", _reading),
    "huge": ("Reading a trace of a gigabyte", _huge),
    "counters": ("Reading counters", _counters),
    "start": ("Starting", _start),
    "runs": ("A directory of tiny runs", _runs),
    "names": ("Very many long names", _names),
    "private": ("Explorers side by side", _private),
    "explorer": ("The explorer over a pseudo-terminal", _explorer),
    "keys": ("Every key in every view", _keys),
    "engine": ("The engine without a screen", _engine),
    "ranks": ("A thousand ranks", _ranks),
    "writers": ("Jobs that write one store", _writers),
    "most": ("Ten thousand ranks", _most),
    "analyses": ("The views of a run of a million activities", _analyses),
}
"""Title and measurement of each part, in the order of the page."""
_PART_NAMES = f"of {', '.join(PARTS)}; all unless named"


def _ms(seconds: list[float]) -> str:
    return f"{median(seconds) * 1000:.0f} ms ({min(seconds) * 1000:.0f} at best)"


def _show(rounds: int) -> tuple[list[Cost], list[Cost]]:
    """Printing the demo run from a store that was written before, and importing alone."""
    store = ROOT / "build" / "bench" / "demo-store"
    in_turn({"ingest": [*CHOPPER, "ingest", str(_DEMO), "-o", str(store)]}, 1)
    commands = {
        "show": [*CHOPPER, "show", str(store)],
        "import": [sys.executable, "-c", "import numpy, msgspec"],
    }
    in_turn(commands, 1)
    costs = in_turn(commands, 3 * rounds)
    return costs["show"], costs["import"]


if __name__ == "__main__":
    main()
