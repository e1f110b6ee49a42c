"""Questions in words: the concepts that they are made of, and the place that answers each.

A question is known by its concepts, not by its sentence: `who holds the others back` and `which
rank does everyone wait for` have the same ones. Which words say a concept is in `concepts`; here is
which concepts ask for what.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.phrases import level_title
from chopper_core.model.run import Run
from chopper_core.model.view import View, with_view
from chopper_core.util.patterns import late, listed_entries
from chopper_core.views import view_spec
from chopper_core.views.query import reason_against_view
from chopper_core.views.spec import splits_of
from chopper_tui.concepts import BASELINE, in_usual_words, said_concepts
from chopper_tui.places import question_of_place
from chopper_tui.search import FILLING, Offer, going, spaced
from chopper_tui.spoken import Asked, asked_in, at_place
from chopper_tui.worked_places import WORKED_OUT, is_named

_ANSWERS: Final = """
    view=throughput | Throughput: tokens/s in all and per GPU
        token second; token speed; token per second; speed gpu; speed
        + per run step training all
    @summary | Summary
        mfu; step time speed; step time
        + run all peak use
    view=power | Power: energy of a token and of a step
        energy token; power token; energy step; energy
        + per cost use all
    view=power&sort=-mean_power_w | Power of each GPU next to its cap, and throttling
        power bound; power lossy; throttled gpu; throttled; power use
        + lossy drop others cost use
    view=overheads&by={split:operation}&sort=-frequency_ns | {Split:operation} by low clock
        lossy clock split; clock split; clock cost split; lossy drop split; lossy clock
        + drop first time cost per lossy slow
    @clock_drop | When the clock is low
        clock since drop; clock since; drop since; clock drop; throttled drop since; clock time
        ; clock gpu
        + gpu time slow hot why throttled
    view=lost&by={split:name} | {Split:name} by time lost to the roof
        roof lossy; kernel lossy; shape lossy; roof slow; kernel roof; kernel fix; kernel fix first
        + first kernel shape time peak use all
    view=comms&by={split:kind} | Exposed communication by {split:kind}
        exposed comm; exposed; exposed split
        + all per comm others cost time
    view=comms&by=kind | Communication: own wait, transfer and bus bandwidth by kind
        comm wait; comm bandwidth; comm slow; comm bound; comm why; comm slow why
        + time bandwidth wait bound network others cost gap
    view=overlap | Overlap: how much longer with communication next to it
        gemm slow comm; kernel slow comm; slow comm split; comm overlap; slow overlap;
        attention slow comm
        ; held comm gemm; overlap
        + gemm kernel attention time use drop all why cost work split
    :open | Open another run
        open run; open switch; run switch open
        + files switch run
    view=kernels&sort=-kernel_ns_delta&filter=kernel_ns_delta>0 | Kernels that got slower
        slow kernel baseline
        + again compare run time use all first others two per
    view=compare&by={split:layer}&filter=elapsed_ns_delta>0 | {Split:layer} that got slower
        slow split baseline; slow baseline; slow split baseline run
        + all time others slow two step again run compare per first
    view=kernels&sort=-kernel_ns_delta | Kernels by their difference from the baseline
        compare kernel baseline
        + compare run time use all first others two per
    view=compare&by={split:layer} | Compare the runs by {split:layer}
        compare run; compare split; compare baseline; run split baseline; why run baseline
        ; why speed baseline; why slow baseline
        + all time others slow two step again speed why
    view=ranks | Ranks: who is late, and what the others wait
        others wait; held others; late; late cost; wait gpu; others held again; held again
        ; late why; slow gpus; compare others; wait first; wait time; wait gpus
        + gpu others cost time all wait why slow again who
    @why | Why a GPU is slow
        why gpu slow; why gpu late; why gpu hot; why gpu
        + others drop held
    view=losses | Losses: from the ideal to the measured step, in one sum
        where time; where time step; step lossy; why step slow; why step lossy; ideal; time
        lossy; step ideal; all lossy;
        ideal lossy step; ideal lossy
        + step all time per lossy up where cost compare
    view=overheads&by={split:operation} | {Split:operation} by what compute loses to the ideal
        why compute lossy; why compute slow
        + gemm kernel attention slow lossy time all
    view=launch&by={split:gpu} | Launch: idle time, and what the GPUs wait for before they start
        host lossy; host held; host fix; launching lossy; queue lossy; gap lossy; gap time;
        gap split; host slow
        ; host bound; launching bound; launching slow; launching late; launching time; gap first
        + time all per cost gpu host cpu bound keep
    view=power&sort=-mean_hot_c | Power and temperature of each GPU, the hottest first
        hot gpu; hot
        + first late why
    view=determinism | Steadiness: how clocks, power and durations vary
        steady step; steady gpu; steady time; steady clock; steady kernel; steady
        + time clock power step gpu kernel between per run
    view=roofline | Shapes next to their roof, and what bounds each
        memory bound; roof shape; bound kernel; bound gemm; bound attention; bound shape; roof gemm
        + memory kernel gemm shape attention lossy why bandwidth
    view=comms&by=collective | Messages of each collective, and how fast they go
        message comm; message shape; comm shape; message bandwidth
        + shape bandwidth time first
    view=experts | Experts: tokens of each
        expert token; expert lossy; expert compare; expert
        + compare token gpu
    view=pipeline | Pipeline: stages, and their bubbles
        pipeline gap; pipeline lossy; pipeline
        + gap time per lossy
    view=training | Training: the log's steps and losses
        training time; training step; training
        + time step
    view=findings | Findings: what to fix first, and what each saves
        fix first; fix; first saving; saving; what_next
        + first saving time all much step
    @host_gap | What the host does in the longest gap
        host gap; host work gap; host late; host work wait; host wait gpu
        + work gpu idle longest during
    @phase_edge | The timeline where one phase ends and the next begins
        between phase; since phase
        + gap time where axis work lies
    @memory | Memory of the GPUs
        memory peak; memory use; memory
        + all use peak gpu first much by
    @find | Where it runs
        where work name; where name; kernel name work; work name
        + kernel use work split
    @cores | Cores of the ranks' threads
        core launching; core cpu; core; launching cpu
        + gpu late launching busy work split
    :notes missing | What these files don't tell
        missing; not known; files not; missing files
        + files run known missing not all
    :notes +/- | How the clocks were aligned, and how well
        clock aligned; aligned; aligned time
        + clock files all time run telemetry
    :notes sources | What was read
        files read; read; files
        + files all run telemetry
    :copy_view | Copy this table as Markdown
        markdown; copy table; copy ticket; markdown ticket
        + table copy ticket write view screen all
    :snapshot | Write this view to a file
        write table; write column
        + write all
    :notes gpus | Which GPUs the run has
        hardware
        + gpu run
    :report | Write an HTML report of this run
        page; report; write report
        + write report ticket run page all share colleague
    @perfetto | Write one step for Perfetto
        perfetto
        + write run pick files step slowest worst
    :help | What the sorted column means, and this screen's keys
        column meaning; column mean; column
        + this table
    view=graph | Critical path of a step
        critical_path; longest_path
        + step
    :next_gpu | The same place on the next GPU
        elsewhere
        + split others where gpu column step
    :back | Back to the place before
        again went; again
        + steps place where
    view=runs | The runs, the best first
        best run; slow run why
        + why slow all first compare
"""
"""Where an answer is | its title; the concepts that ask for it, any of several sets; after `+`
those that may be named, too. `@name` is worked out, `:action argument` is performed."""


_NEUTRAL: Final = ("gpu", "step", "run", "split")
"""Concepts that any question may name."""
_LEAST_WORDS: Final = 2
"""Words of a question: one alone is a name, which the search finds."""
_OF_NAMES: Final = (":", "@perfetto", "@cores", "view=findings")
"""How answers begin that one word alone asks for; other names are found by the search."""
_NEUTRAL_SPLITS: Final = ("", "gpu", "iteration")
_COMPARED: Final = "view=compare"
"""Of two places of the run what they differ in is worked out from both."""
_SPLIT: Final = late(r"\{(split|Split):(\w+)\}")
_ALIASES: Final = {"kernel": "name"}
"""Levels that views call otherwise."""


class AskedPlace(Struct, frozen=True):
    """A place that answers the questions with some concepts."""

    target: str
    title: str
    asked_by: tuple[frozenset[str], ...]
    """Sets of concepts: each asks for it."""
    also: frozenset[str]
    """Concepts that may be named besides."""


class Meant(Struct, frozen=True):
    """An answer that a question may mean."""

    offer: Offer
    score: float
    is_whole: bool
    """Whether each word of the question is understood."""


@lru_cache(maxsize=1)
def _answers() -> tuple[AskedPlace, ...]:
    found = []
    for head, text in listed_entries(_ANSWERS):
        target, _, title = head.partition(" | ")
        asks, _, also = text.partition("+")
        sets = tuple(frozenset(each.split()) for each in asks.split(";"))
        found.append(AskedPlace(target, title, sets, frozenset(also.split())))
    return tuple(found)


def meant(run: Run, view: View, text: str) -> list[Meant]:
    """The answers that a question in words may mean, the best first."""
    text = in_usual_words(text)
    asked, said = asked_in(run, text), said_concepts(text)
    if asked.split:
        said["split"] = set()
    named = [word for word in asked.rest if not _is_said(said, word) and is_named(run, word)]
    if named:
        said["name"] = {*named}
    if "phase" in asked.steps:
        said["phase"] = set()
    if asked.split == "gpu":
        said["gpus"] = set()
    if "gpu" in asked.steps or asked.split == "gpu":
        said["gpu"] = set()
    if view.baseline is not None or BASELINE & {*spaced(text).split()}:
        said["baseline"] = {*BASELINE}
    words = [word for word in spaced(text).split() if word not in FILLING]
    is_name = len(spaced(text).split()) < _LEAST_WORDS
    found = []
    for answer in _answers():
        sets = [each for each in answer.asked_by if each <= said.keys()]
        if not sets or (asked.again and _COMPARED in answer.target):
            continue
        if is_name and not answer.target.startswith(_OF_NAMES):
            continue
        needed = max(sets, key=len)
        known = set().union(*(said.get(each, ()) for each in (*needed, *answer.also, *_NEUTRAL)))
        known |= {part for word in known for part in word.split("/")}
        unknown = [word for word in asked.rest if word not in known]
        is_split = asked.split in _NEUTRAL_SPLITS or {"split", asked.split} & {
            *needed,
            *answer.also,
        }
        if not is_split and "{split" not in answer.target:
            unknown.append(asked.split)
        if asked.limit:
            unknown.append(asked.limit)
        if len(unknown) > len(words) // 2:
            continue
        offer = _offer(run, view, asked, answer)
        if offer is not None:
            score = 2 * len(needed) + len(asked.rest) - 2.5 * len(unknown)
            found.append(Meant(offer, score, not unknown))
    return sorted(found, key=lambda each: -each.score)


def _is_said(said: Mapping[str, set[str]], word: str) -> bool:
    return any(word in words for words in said.values())


def _offer(run: Run, view: View, asked: Asked, answer: AskedPlace) -> Offer | None:
    target = answer.target
    if target.startswith("@"):
        return WORKED_OUT[target[1:]](run, view, asked)
    if target.startswith(":"):
        action, _, argument = target[1:].partition(" ")
        return Offer(answer.title, "", action, argument)
    options = dict(each.split("=", 1) for each in target.split("&"))
    name = options["view"]
    place = replace(at_place(view, asked.steps), baseline=view.baseline)
    split = _ALIASES.get(asked.split, asked.split)
    choices = splits_of(run, view_spec(name))

    def chosen(default: str) -> str:
        return split if split in choices else default

    def filled(text: str) -> str:
        return _SPLIT.sub(lambda found: _worded(chosen(found[2]), found[1][0].isupper()), text)

    by = options.get("by", "")
    by = _SPLIT.sub(lambda found: chosen(found[2]), by)
    sort, only = options.get("sort", ""), options.get("filter", "")
    shown = replace(with_view(place, name), by=by, sort=sort, filter=only)
    return going(filled(answer.title), question_of_place(name), shown)._replace(
        lacks=reason_against_view(run, name)
    )


def _worded(split: str, is_first: bool) -> str:
    """A split as a title names it: rows at its beginning, else what they are by."""
    name = "kernel" if split == "name" else level_title(split)
    return f"{name[0].upper()}{name[1:]}s" if is_first else name
