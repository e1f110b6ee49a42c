"""Questions in words at the colon: a question of engineers in wordings that nobody trained for,
each answered by its first entry, whose screen has the figure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.widgets import OptionList

from chopper_core.analyses.clock_drops import clock_drop
from chopper_core.model.run import Run
from chopper_core.model.signals import Signal, between
from chopper_core.model.table import NO_LABEL, Kind
from chopper_core.model.units import Unit
from chopper_core.model.view import Baseline, View
from chopper_tui.actions.palette import _found, _known, as_meant
from chopper_tui.search import is_one_mistake, without_mistakes
from chopper_tui.widgets.dialogs import Chooser
from chopper_tui.widgets.reader import TextReader
from tests.demo import demo_run
from tests.support import Row, run_of
from tests.tui.explorer import Driven, explorer, measured_run
from tests.tui.test_runs_screen import set_of_runs
from tests.wording import Wording

SIZE: Final = (80, 24)

ANSWERS: Final = """
go …sort=-elapsed_ns
    which transformer block takes longest in bwd on rank 5
    on gpu 5, what layer of the backward pass is the slowest?
    gpu 5 slowest layers during backprop
    gpu5 bwd layers sorted by time
    which layer is the bottleneck in backward for gpu 5?
    backward pass: slowest layer on rank 5
go demo_data/fsdp2?view=lost&by=name
    top 5 kernels by lost time
    least efficient kernels
    which kernels should I optimise
    which kernels are furthest from the roofline
    which kernels leave the most performance on the table
    biggest gap to roofline per kernel
go demo_data/fsdp2:gpu=5?view=timeline&metric=gfx_mhz&at=0ns
    since when is gpu 5 throttled
    at what time does the frequency of rank 5 fall
    when did the clocks dip
    when does gpu 5 start throttling
    clock of gpu 5 over time
go demo_data/fsdp2?view=comms&by=operation
    exposed comm per operation
    which collective is not hidden, and under which operation
    non-overlapped communication by op
go demo_data/fsdp2?view=lost&by=shape&filter=gemm
    which matmul size is the least efficient
    gemm shapes with most time lost
    worst matrix sizes
go demo_data/fsdp2?view=throughput
    tokens/s in total and per gpu
    how many tokens a second does each gpu process
    speed in tokens per second
go demo_data/fsdp2?view=overview
    what model flops utilisation do we reach
    how good is our MFU
go demo_data/fsdp2?view=power
    joules per token
    energy for one token
    J/token
    how much energy does a step use
copy_view
    copy this as markdown
    markdown table for a ticket
    paste this table into a github issue
    copy table
    md
find softmax
    in which layers is the softmax kernel called
    where are the softmax kernels executed
    who calls softmax
    softmax location
go …gpu=5?view=timeline&at=1100000000ns
    what was gpu 5 doing at 1100 ms
    queue depth on rank 5 at 1.1 s
    what waits in the queue of gpu 5 around 1,100 ms
    what's queued on gpu 5 at t=1.1s
    queue gpu 5 1100ms
go demo_data/fsdp2?columns=peak_vram_bytes
    how much memory do we use at most
    what takes the vram
    hbm high water mark
    out of memory risk
go …base=iteration=11
    use iteration 11 as the reference for 12
    step 12 with step 11 as baseline
    set baseline to iteration 11
    Have iteration 11 as the baseline and look at 12.
    use step 11 as baseline and show step 12
export perfetto step=12
    perfetto trace of a single iteration
    dump a step to perfetto
export perfetto step=11
    export step 11 to perfetto
report
    make an html page for my colleagues
    generate a report
open
    load a different trace
    change run
    switch to another run
go …sort=-p95_ns&filter=class:attention
    95th percentile of flash attention
    attention p95 duration
    how long is the attention kernel at p95
what_if clock=1900
    what if clock 1900
    step time if the gpus ran at 1.9 ghz
    predict the step with a clock of 1,900 MHz
    time per step at a 1900 MHz clock
go …gpu=5?view=compare&base=gpu=3
    difference between rank 5 and rank 3
    how does gpu 5 differ from gpu 3
    gpu 5 versus 3
    what's different between gpu 5 and gpu 3
go …model_roof_pct<57
    matmuls below 57% of roof
    which gemms reach less than 57 percent of their roofline
go …gpu=2?view=timeline&from=…
    what is the cpu doing while gpu 2 is idle
    host work during the bubble on gpu 2
    python activity in the longest gap of rank 2
next_gpu
    same layer, other gpu
why 5
    what is wrong with gpu 5
    reason that rank 5 lags
    explain why gpu 5 is slower
    diagnose gpu 5
    what makes gpu 5 slow
    what's up with gpu 5
what_if no stragglers
    how fast would we be without the slow gpu
    what would the step take with no stragglers
    step time if no gpu were late
what_if gpu:5 as peers
    what if gpu 5 were as fast as the others
    step if rank 5 was like its peers
what_if comm x0.5
    with twice the bandwidth
    what if the network were twice as fast
what_if no host gaps
    how long would a step be without host gaps
go demo_data/fsdp2?view=losses
    where does the step time go up to the ideal step
    where does the time go
    waterfall from ideal to measured
    how much does a step lose in total
    what do we lose compared to the ideal step
go demo_data/fsdp2?view=overheads&by=operation&sort=-frequency_ns
    operations by low clock
    which ops suffer from throttling
    lost to the clock per operation
go demo_data/fsdp2?view=ranks
    which gpu do the others wait for
    cost of the straggler in ms
    who keeps everyone waiting
    which rank is the slowest
go demo_data/fsdp2?view=power&sort=-mean_power_w
    are we power limited
    is any gpu throttled
    power draw against the cap
go demo_data/fsdp2?view=findings
    biggest saving
    what is the best optimisation to do
    what should we improve first
    what would help most
go …gpu=0/iteration=11?view=timeline&from=…
    what happens between the fwd and the bwd pass
    gap between forward and backward on the time axis
go demo_data/fsdp2?view=comms&by=kind
    is all_gather bandwidth bound or does it wait
    all_gather network or waiting
    is nccl slow or waiting
    is the network the problem
go demo_data/fsdp2?view=launch&by=gpu
    idle time per gpu
    are we launch bound
    is the host the bottleneck
go demo_data/fsdp2?view=roofline
    which kernels are memory bound
    what limits attention
go demo_data/fsdp2?view=determinism
    how stable are the steps
go demo_data/fsdp2?view=overlap
    do collectives slow down the matmuls
    how much slower are gemms while nccl runs
    gemm slowdown due to overlapping communication
go demo_data/fsdp2?view=cpu&by=core
    cpu affinity of ranks
    which cpu core is rank 3 pinned to
    cores of the launch threads
    numa
notes missing
    what data do we lack
    what can't be known from these files
    what is missing
    what don't these files tell
notes sources
    which files were loaded
    what was read
notes +/-
    how are the clocks synchronised
    alignment of the telemetry
explain_term % roof
    what is % roof
    meaning of % roof
help
    what does this column mean
"""
"""The entry that comes first, `…` for any beginning or end, and the wordings that it answers."""
OF_BOTH: Final = """
go …view=compare&by=layer&filter=elapsed_ns_delta>0&base=demo_data/fsdp1
    which layers got slower
    layers slower than in the reference run
go …view=compare&by=layer&base=demo_data/fsdp1
    where do the two runs differ
    differences per layer
    runs layer by layer
    why is this run faster
go …sort=-kernel_ns_delta&filter=kernel_ns_delta>0&base=demo_data/fsdp1
    which kernels regressed
    kernels slower than in the baseline
    kernels that got slower
go …sort=-kernel_ns_delta&base=demo_data/fsdp1
    new kernels
    how did the kernels change
"""


@cache
def both() -> Run:
    other = demo_run("fsdp1")
    return replace(demo_run(), others={other.name: other})


def asked(text: str) -> list[tuple[str, str]]:
    pairs, key = [], ""
    for line in text.strip("\n").splitlines():
        if line.startswith("    "):
            pairs.append((line.strip(), key))
        else:
            key = line
    return pairs


@pytest.mark.parametrize(("run", "text"), [(demo_run, ANSWERS), (both, OF_BOTH)])
async def test_questions_are_answered_by_the_first_entry(run: object, text: str) -> None:
    own = run()  # type: ignore[operator]
    base = Baseline(next(iter(own.others))) if own.others else None
    async with explorer(SIZE, own, View(own.name, name="overview", baseline=base)) as at:
        known, wrong = _known(at.explore), {}
        for wording, key in asked(text):
            found = _found(at.explore, known, wording.lower().split())
            first = f"{found[0].action} {found[0].argument}".rstrip() if found else ""
            pattern = re.escape(key).replace("…", ".*")
            if not re.fullmatch(pattern, first):
                wrong[wording] = first
        assert wrong == {}


async def answered(at: Driven, question: str) -> str:
    """The screen after the question and its first entry."""
    await at.command(question)
    assert isinstance(at.app.screen, Chooser), (question, at.status)
    await at.press("enter")
    return " ".join(at.text().split())


def in_steps(run: Run) -> np.ndarray:
    return ~np.isin(run.table.iteration, [NO_LABEL, *run.cut_iterations])


async def test_the_figure_that_was_asked_for_is_on_the_screen() -> None:
    run = demo_run()
    table, own = run.table, in_steps(run)
    view = View(run.name, name="overview")
    async with explorer(SIZE, run, view) as at:

        async def screen(question: str) -> str:
            await at.explore.go(at.explore.trail_to(view))
            await at.settle()
            return await answered(at, question)

        # The queue of a GPU: kernels launched, and not yet started.
        text = await screen("how many kernels are queued on rank 5 at 1,100 ms")
        assert "1809 in queue" in text
        # The end of forward on GPU 0 is where its backward begins: activities in time order.
        text = await screen("what lies between forward and backward")
        rows = np.flatnonzero(
            own & (table.gpu == 0) & (table.iteration == 11) & (table.kind == Kind.COMPUTE)
        )
        phases = [table.text_of("phase", int(table.phase[row])) for row in rows]
        forward = rows[[each == "forward" for each in phases]]
        end = int((table.start_ns + table.duration_ns)[forward].max()) - run.origin_ns
        assert f"forward ends at {end / 1e6:.1f} ms" in text
        # The clock of GPU 5 against the median of the others, over its samples.
        text = await screen("since when does gpu 5 run at a lower clock")
        curves = run.signal("gfx_mhz").curves
        ends = np.array([run.origin_ns, run.end_ns])
        means = {gpu: float(curves[gpu].means(ends)[0]) for gpu in curves}
        mean = means.pop(5)
        usual = float(np.median([*means.values()]))
        said = re.search(r"low from the first sample on: ([\d,]+) MHz, ([\d.]+) % below", text)
        assert said and float(said[1].replace(",", "")) == pytest.approx(mean, rel=0.003)
        assert float(said[2]) == pytest.approx(100 * (1 - mean / usual), abs=0.3)
        text = await screen("how much HBM at the peak?")
        peak = max(
            float(curve.interval_values()[np.isfinite(curve.interval_values())].max())
            for curve in run.signal("vram_bytes").curves.values()
        )
        assert f"{peak / 1e9:.1f} GB" in text and "isn't recorded" in text
        text = await screen("which core does the launch thread of rank 3 use")
        assert "Not recorded: no file of this run says on which core" in text
        text = await screen("how long is a step at 1,900 MHz if we could")
        assert re.search(r"step 626\.\d ms instead of 739\.9", text)
        text = await screen("are we network bound or waiting in all_gather")
        assert "105.3" in text and "55.9" in text
        text = await screen("what is % roof?")
        assert "model" in text and isinstance(at.app.screen, TextReader)
        await at.press("escape")
        text = await screen("what don't we know")
        assert "no counters of GPU 1-4, 6-7" in text
        await at.press("escape")
        text = await screen("how were clocks synced")
        assert "1776349187.015923" in text
        await at.press("escape")


def falling(run: Run, gpus: set[int], at_ns: int) -> Run:
    """The run with clocks of 1,700 MHz, of some GPUs 1,500 MHz from a time on."""
    edges = np.array([run.origin_ns, at_ns, run.end_ns])
    curves = {
        gpu.index: between(
            edges[:-1], edges[1:], np.array([1700.0, 1500.0 if gpu.index in gpus else 1700.0])
        )
        for gpu in run.gpus
    }
    signal = Signal("gfx_mhz", "gfx", Unit("MHz"), curves, 1500, 1700)
    return replace(run, measured={"gfx_mhz": signal})


def test_a_clock_falls_at_its_time_by_its_share() -> None:
    run = measured_run()
    half = (run.origin_ns + run.end_ns) // 2
    part = (run.end_ns - run.origin_ns) / 96
    one = clock_drop(falling(run, {3}, half))
    assert one is not None and one.gpu == 3 and one.is_of_others
    assert one.since_ns is not None and abs(one.since_ns - half) <= part
    assert one.mhz == pytest.approx(1500, rel=0.01) and one.usual_mhz == 1700
    assert one.share == pytest.approx(200 / 1700, rel=0.05)
    # All together: each against its own time before.
    every = clock_drop(falling(run, {gpu.index for gpu in run.gpus}, half), 1)
    assert every is not None and (every.gpu, every.is_of_others) == (1, False)
    assert every.since_ns is not None and abs(every.since_ns - half) <= part
    assert clock_drop(falling(run, set(), half)) is None
    start = clock_drop(falling(run, {2}, run.origin_ns + 1))
    assert start is not None and start.since_ns is None


async def test_a_table_of_runs_says_which_is_best_and_why_another_is_slower(
    wording: Wording,
) -> None:
    runs = set_of_runs()
    async with explorer(SIZE, runs) as at:
        ns = {
            name: time
            for row, name in enumerate(at.frame.labels)
            if (time := at.frame.values["step_time_ns"].at(row))
        }
        best, second, third = sorted(ns, key=lambda name: ns[name])
        more = 100 * (ns[second] / ns[best] - 1)
        await at.command("which run is the best one")
        await at.press("enter")
        assert f"{more:.1f} % faster than {second}" in at.status and at.frame.labels[0] == best
        await at.command("why is the other run slower")
        await at.press("enter")
        assert at.frame.view.name == "compare" and at.frame.view.baseline is not None
        assert (at.frame.view.run, at.frame.view.base_run) == (f"all/{second}", f"all/{best}")
    # Two runs that are named are those that are compared, in whichever order.
    async with explorer(SIZE, runs) as at:
        await at.command(f"why is {third} slower than {second}")
        await at.press("enter")
        assert (at.frame.view.run, at.frame.view.base_run) == (f"all/{third}", f"all/{second}")
    # A key asks the same of the row: against the fastest, and of the fastest against the next.
    async with explorer(SIZE, runs) as at:
        for row, pair in ((third, (third, best)), (best, (second, best))):
            at.explore.table.move_to_label(row)
            await at.press("W")
            assert (at.frame.view.run, at.frame.view.base_run) == tuple(f"all/{x}" for x in pair)
            # One key goes back to where it was asked.
            await at.press("escape")
            assert at.frame.view.run == "all" and at.explore.table.label == row
        at.explore.table.move_to_label("tp16")
        await at.press("W")
        wording(at.status, "single run")


async def test_words_after_a_verb_are_its_argument_or_a_question(wording: Wording) -> None:
    async with explorer((100, 30), measured_run()) as at:
        before = at.frame.view
        for question in (
            "kernels that lose most to the roof",
            "what is missing",
            "open another run",
            "find out why gpu 3 is late",
            "sort out the slowest kernels",
            "report which gpu is late",
            "at what time does the clock drop",
            "go back to where i was",
        ):
            await at.command(question)
            assert isinstance(at.app.screen, Chooser), (question, at.status)
            await at.press("escape", "escape")
            assert at.frame.view == before
        # A command with its argument acts; one that is mistyped says so.
        await at.command("sort name")
        assert at.frame.sort == "name"
        await at.command("sort foo")
        assert at.app.screen is at.explore and "unknown column 'foo'" in at.status
        await at.command(":sort out the kernels")
        assert at.app.screen is at.explore and at.explore.status.is_error
        await at.command("define spaghetti")
        wording(at.status, "'spaghetti'")
        # Nothing answers: what there is to ask stands below the sentence.
        await at.command("how is the weather")
        assert isinstance(at.app.screen, Chooser)
        wording.among(at.text(), "“how is the weather”")
        assert at.app.screen.query_one(OptionList).option_count > 7


async def test_a_run_without_steps_is_asked_the_same() -> None:
    run = run_of([Row(0, 1_000_000)], name="R")
    async with explorer(SIZE, run, View("R")) as at:
        known = _known(at.explore)
        for wording, _ in asked(ANSWERS):
            _found(at.explore, known, wording.lower().split())
        assert _found(at.explore, known, ["perfetto"])[0].argument == "perfetto"


async def test_a_search_in_the_notes_stays_at_its_first_hit() -> None:
    run = demo_run()
    async with explorer(SIZE, run, View(run.name)) as at:
        await at.press("!", "/")
        await at.type("label coverage")
        await at.press("enter")
        assert isinstance(at.app.screen, TextReader)
        lines = [line for line in at.lines() if "label coverage" in line]
        assert lines and "phase" in at.text()
        await at.press("enter")
        assert at.app.screen is at.explore


def mistyped(word: str) -> Iterator[str]:
    """A word with a letter after the first left out, doubled or wrong, or two swapped."""
    for at in range(1, len(word)):
        yield word[:at] + word[at + 1 :]
        yield word[:at] + word[at] + word[at:]
        yield word[:at] + ("q" if word[at] != "q" else "x") + word[at + 1 :]
        if word[at - 1] != word[at]:
            yield word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :]


@given(st.data())
def test_one_mistake_makes_a_word_and_no_more(data: st.DataObject) -> None:
    word = data.draw(st.text("abcdefghij", min_size=4, max_size=9))
    once = data.draw(st.sampled_from([*mistyped(word)]))
    assert is_one_mistake(once, word) == (once != word) and is_one_mistake(word, once) == (
        once != word
    )
    assert not is_one_mistake(word, word) and not is_one_mistake(word, f"zz{word}")
    assert without_mistakes([once, "12", "gpu5"], [word]) == [word, "12", "gpu5"]


async def test_mistyped_words_are_taken_for_what_they_are_of() -> None:
    async with explorer((100, 30), measured_run()) as at:
        for text, wrong in (
            ("slowest layer", "slowst layr"),
            ("gpu 5", "gup 5"),
            ("kernels", "kernals"),
        ):
            known = _known(at.explore)
            first = _found(at.explore, known, text.split())[0]
            await at.command(wrong)
            chooser = at.app.screen
            assert isinstance(chooser, Chooser), (wrong, at.status)
            assert f"did you mean “{text}”?" in at.text()
            assert chooser._shown[0][1] == first.title
            await at.press("escape", "escape")
        # A name of the run is no mistake, and what nothing is near stays unknown.
        assert as_meant(at.explore, "mlp") == "mlp" and as_meant(at.explore, "zzzz") == "zzzz"
        await at.command(":kernals")
        assert "did you mean :kernels?" in at.status


async def test_what_a_command_may_become_is_listed_while_it_is_typed() -> None:
    async with explorer((100, 30), measured_run()) as at:
        await at.press(":")
        await at.type("s")
        verbs = [each.verb for each in at.explore.actions.values() if each.verb.startswith("s")]
        line = next(line for line in at.lines() if line.startswith(" tab:"))
        assert line.split()[1:3] == verbs[:2]
        await at.type("lowest layer")
        answers = _found(at.explore, _known(at.explore), ["slowest", "layer"])
        assert any(line.startswith(f" enter:  {answers[0].title}") for line in at.lines())
        await at.press("escape")
        assert not any("enter:" in line for line in at.lines())
