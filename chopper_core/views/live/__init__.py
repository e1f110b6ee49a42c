"""Live: the latest samples of each GPU, and the last complete step."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from time import localtime, strftime
from time import time as clock
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.rows import LabelledRows, Own
from chopper_core.analyses.samples import gpus_of
from chopper_core.analyses.step_account import headline_of, step_of
from chopper_core.analyses.step_times import StepTimes, step_times
from chopper_core.analyses.training import job_steps
from chopper_core.columns import columns, numbered, worded
from chopper_core.columns.labels import LABELS
from chopper_core.model import address
from chopper_core.model.accounting import is_between_programs
from chopper_core.model.charts import Card, Cards
from chopper_core.model.phrases import facts
from chopper_core.model.recent import STALE_S, NodeGpu
from chopper_core.model.run import Run
from chopper_core.model.signals import Signal
from chopper_core.model.units import Unit, scaled_text
from chopper_core.model.view import ALL_TIME, View, Window, child_of
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NothingToShow
from chopper_core.views.live.job import job_headline, other_cards, step_bars, window_cards
from chopper_core.views.live.lanes import (
    FIGURES,
    HISTORY,
    LANES,
    gpu_lanes,
    history_charts,
    name_words,
)
from chopper_core.views.shared.evidence import finding_cards
from chopper_core.views.shared.rows_of_samples import power_of_gpu
from chopper_core.views.shared.table_view import known_columns, table_view
from chopper_core.views.spec import POSITIVE, ViewResult, ViewSpec, options_of

SPEC: Final = ViewSpec(
    name="live",
    title="Summary · live",
    question="What are the GPUs doing now, and how long did the last step take?",
    of="window:SECONDS or gpu:NUMBER",
    no_statistic="shows the latest samples",
    takes_samples=True,
    takes_logs=True,
    is_live=True,
)
WINDOW_S: Final = 300.0
STALE_NS: Final = round(STALE_S * 1e9)
"""A GPU without a sample for so long, while others have some, has no figures."""
_MOST_FINDINGS: Final = 3
_MOST_CARDS: Final = 12
_MOST_PROCESSES: Final = 128
_NUMBER: Final = r"\d{1,9}"
_MOST_OTHERS: Final = 3
_HISTORY_S: Final = 3600.0
_NOW: Final = "of its latest sample, at most 10 s older than the latest of all GPUs"
_COLUMNS: Final = columns(
    f"""
    now_step | | step
        The newest step that its rank has ended.
    now_step_ns | ns | step
        The time of that step: until the next one begins.
    now_doing | | now in
        What its rank does.
    now_gfx_mhz | MHz | gfx
        The clock {_NOW}.
    now_gfx_util_pct | % | util
        The use {_NOW}.
    now_power_w | W | power
        The power {_NOW}.
    now_limit_w | W | limit
        The latest power cap in the telemetry; else the product's power in hardware.toml.
    now_hotspot_c | °C | hotspot
        The temperature of the hot spot {_NOW}.
    now_edge_c | °C | edge
        The temperature of the edge {_NOW}.
    now_throttle_pct | % | throttled
        The share of time under a limiter {_NOW}.
    now_vram_bytes | B | memory
        The memory in use {_NOW}.
    now_fan_pct | % | fan
        The speed of the fan {_NOW}.
    now_nvlink_gbps | GB/s | NVLink
        The traffic of NVLink, both directions, {_NOW}.
    now_nvlink_read_gbps | GB/s | NVLink in
        What NVLink receives {_NOW}.
    now_nvlink_write_gbps | GB/s | NVLink out
        What NVLink sends {_NOW}.
    now_xgmi_read_gbps | GB/s | xGMI in
        What is read over the links to other GPUs {_NOW}.
    now_xgmi_write_gbps | GB/s | xGMI out
        What is written over the links to other GPUs {_NOW}.
    now_pcie_gbps | GB/s | PCIe
        The traffic of PCIe, both directions, {_NOW}.
    model | | model
        The product.
    pci | | PCI
        Its PCI address.
    memory_bytes | B | of memory
        Its memory, where a file states it.
    """,
    missing="no such telemetry of the GPU for 10 s; steps need a recording that still runs",
    source="telemetry",
)


def answer(run: Run, view: View) -> ViewResult:
    given = options_of(view, SPEC, window=POSITIVE, gpu=_NUMBER)
    seconds = float(given.get("window", _HISTORY_S if "gpu" in given else WINDOW_S))
    measured = run.measured
    if run.recent is not None:
        measured = run.recent.signals((*HISTORY, "power_cap_w"), seconds)
    gpus = gpus_of(run)
    if "gpu" in given:
        gpus = [gpu for gpu in gpus if gpu == int(given["gpu"])]
        if not gpus:
            raise NothingToShow(f"there is no GPU {given['gpu']} in this run")
    steps = None if run.is_sampled_only else step_times(run, View(view.run))
    # A source of other signals, such as memory, may go on for longer: lanes end with their own.
    lanes_of = [measured[name] for name in LANES if name in measured] or [*measured.values()]
    curves = [curve for each in lanes_of for curve in each.curves.values()]
    end_ns = max((int(each.edges_ns[-1]) for each in curves if len(each.edges_ns)), default=0)
    job = job_steps(run)
    if not end_ns and steps is None and not len(job):
        raise NothingToShow("no telemetry yet; put a log of amd-smi or nvidia-smi next to the run")
    stale = run.recent.stale(clock()) if run.recent is not None else frozenset()
    now = {
        name: np.where(
            [(name, gpu) in stale for gpu in gpus], np.nan, _latest(run, signal, gpus, end_ns)
        )
        for name, signal in measured.items()
    }
    own = [
        (_COLUMNS[f"now_{name}"], numbered(now[name].tolist()))
        for name in (*LANES, *FIGURES)
        if name in now
    ]
    limit = _limits(run, now.get("power_cap_w"), len(gpus))
    if np.isfinite(limit).any():
        own.insert(min(3, len(own)), (_COLUMNS["now_limit_w"], numbered(limit.tolist())))
    own = [*_of_ranks(run, gpus), *own, *_names(run, gpus)]
    if "gpu" in given:
        return table_view(
            view,
            LabelledRows("gpu", [str(gpu) for gpu in gpus]),
            own,
            total={},
            opens=lambda row: (power_of_gpu if run.is_sampled_only else _gpu)(view, given["gpu"]),
            shown=known_columns(own),
            headline=job_headline(run),
            notes=_notes(run, gpus[0]),
            charts=(
                *history_charts(measured, gpus[0], float(limit[0]), (end_ns, seconds)),
                *_below((), _process_cards(run, view, gpus)),
            ),
        )
    lanes = gpu_lanes(run, measured, gpus, now, limit, (end_ns, seconds))
    cards = _below(_cards(run, view, steps, gpus), _process_cards(run, view, gpus))
    bars = step_bars(view, job, steps)
    lanes = tuple(replace(each, steps=bars) for each in lanes)
    return table_view(
        view,
        LabelledRows("gpu", [str(gpu) for gpu in gpus]),
        own,
        total={},
        opens=lambda row: _history_of(view, gpus[row]),
        shown=known_columns(own),
        headline=(
            *job_headline(run),
            *run.memo(("live headline", view.baseline), lambda: _headline(run, view, steps)),
        ),
        charts=(*(lanes or ((bars,) if bars else ())), *cards),
    )


def _notes(run: Run, gpu: int) -> tuple[str, ...]:
    """What the source of a GPU's samples doesn't give."""
    if run.recent is None:
        return ()
    return tuple(filter(None, (run.recent.silent.get(gpu, ""), run.recent.lacks)))


def _below(cards: tuple[Card, ...], processes: tuple[Card, ...]) -> tuple[Cards, ...]:
    """One panel of them all, with their name."""
    named = {"alarms and findings": cards, "processes": processes}
    title = ", ".join(name for name, own in named.items() if own)
    return (Cards(title, (*cards, *processes)),) if title else ()


def _history_of(view: View, gpu: int) -> View:
    """The signals of a GPU over the last hour."""
    return replace(view, of=f"gpu:{gpu}", columns=(), sort="", filter="")


def _process_cards(run: Run, view: View, gpus: Sequence[int]) -> tuple[Card, ...]:
    """The processes on the GPUs of this node, those with the most memory first."""
    own = [each for each in (run.recent.processes if run.recent else ()) if each.gpu in gpus]
    own.sort(key=lambda each: (-each.memory_bytes, each.gpu, each.pid))
    return tuple(
        Card(
            (f"GPU {each.gpu}",),
            facts(
                f"process {each.pid}",
                each.user,
                scaled_text(float(each.memory_bytes), Unit.BYTES) if each.memory_bytes >= 0 else "",
                each.command,
            ),
            address.render(_history_of(View(view.run, name=SPEC.name), each.gpu)),
        )
        for each in own[:_MOST_PROCESSES]
    )


def _gpu(view: View, gpu: str) -> View:
    return child_of(view, "gpu", gpu)


def newest(steps: StepTimes) -> int | None:
    """The newest complete step."""
    return max(steps.iterations, default=None)


def _headline(run: Run, view: View, steps: StepTimes | None) -> tuple[str, ...]:
    if steps is None:
        return ()
    number, whole = newest(steps), View(view.run, baseline=view.baseline)
    if number is None:
        return (headline_of(step_of(run, whole)),)
    last = headline_of(step_of(run, child_of(whole, "iteration", str(number))))
    return (f"step {number}: {last.removeprefix('step ')}",)


def _cards(run: Run, view: View, steps: StepTimes | None, gpus: Sequence[int]) -> tuple[Card, ...]:
    """Alarms, the newest first, then findings: those of the newest step while the run is followed,
    else those of its summary."""
    cards = []
    opens = power_of_gpu if run.is_sampled_only else _gpu
    for event in reversed(run.recent.events if run.recent is not None else ()):
        target = opens(view, str(event.gpu)) if event.gpu in gpus else View(view.run)
        sign = ("▲" if event.holds else "●") + strftime(" %H:%M:%S", localtime(event.began_s))
        cards.append(Card((sign,), event.text, address.render(target)))
    if run.recent is not None:
        whole, now_s = address.render(View(view.run)), clock()
        cards = ([Card(("!",), run.recent.problem, whole)] if run.recent.problem else []) + cards
        cards += [
            Card(
                (f"GPU {gpu}",),
                why,
                address.render(_history_of(View(view.run, name=SPEC.name), gpu)),
            )
            for gpu, why in run.recent.silent.items()
            if gpu in gpus
        ]
        others = run.recent.others[:_MOST_OTHERS]
        cards += [Card(("other run",), each.text(now_s), whole) for each in others]
    number = newest(steps) if steps is not None else None
    if steps is not None:
        cards += window_cards(view, steps, job_steps(run))
    cards += other_cards(view, job_steps(run))
    if number is not None:
        scope = View(view.run)
        if run.recent is not None:
            # What is new counts. GPUs whose next window comes later have no less work.
            scope = child_of(scope, "iteration", str(number))
        cards += [card for card in finding_cards(run, scope, _MOST_FINDINGS) if card.text]
    return tuple(cards[:_MOST_CARDS])


def _of_ranks(run: Run, gpus: Sequence[int]) -> Own:
    """The newest step of the rank of each GPU, and what it does."""
    current = run.recent.steps.current if run.recent is not None else []
    by_rank = {each.now.rank: each for each in current}
    if len(current) == 1 and len(gpus) == 1:
        by_rank = {run.rank_of[gpus[0]]: current[0]}
    own = [by_rank.get(run.rank_of[gpu]) for gpu in gpus]
    if not any(own):
        return []
    rows = [each.rows[-1] if each is not None and len(each.rows) else None for each in own]
    doing = [
        None if each is None else each.now.doing.format(each.now.step) or "ended" for each in own
    ]
    return [
        (_COLUMNS["now_step"], numbered([nan if row is None else row[0] for row in rows])),
        (_COLUMNS["now_step_ns"], numbered([nan if row is None else row[2] for row in rows])),
        (_COLUMNS["now_doing"], worded(doing)),
    ]


def _latest(run: Run, signal: Signal, gpus: list[int], end_ns: int) -> Float64:
    """The latest value of each GPU; NaN for a stale one."""
    if run.recent is not None:
        return run.recent.latest(signal.name, gpus, end_ns - STALE_NS)
    found = np.full(len(gpus), np.nan)
    for place, gpu in enumerate(gpus):
        curve = signal.curves.get(gpu)
        if curve is not None and len(curve.edges_ns) and end_ns - curve.edges_ns[-1] <= STALE_NS:
            found[place] = curve.means(curve.edges_ns[-2:])[0]
    return found


def _limits(run: Run, cap: Float64 | None, count: int) -> Float64:
    tdp_w = float(run.hardware.tdp_w) if run.hardware else np.nan
    return np.full(count, tdp_w) if cap is None else np.where(np.isfinite(cap), cap, tdp_w)


def _names(run: Run, gpus: list[int]) -> Own:
    """The node and the rank of each GPU, where there are several and they say more."""
    nodes, ranks = name_words(run, gpus)
    about = {gpu.index: gpu for gpu in run.gpus}
    node = run.recent.gpus if run.recent is not None else {}
    unknown = NodeGpu("", "", 0)
    words: list[tuple[str, list[str]]] = [
        ("node", nodes),
        ("rank", [rank.removeprefix("r") for rank in ranks]),
        ("model", [about[gpu].hardware or node.get(gpu, unknown).model for gpu in gpus]),
        ("pci", [about[gpu].pci or node.get(gpu, unknown).pci for gpu in gpus]),
    ]
    found = [
        (LABELS.get(name) or _COLUMNS[name], worded([each or None for each in own]))
        for name, own in words
    ]
    sizes = numbered(
        [
            float(about[gpu].memory_bytes or node.get(gpu, unknown).memory_bytes) or nan
            for gpu in gpus
        ]
    )
    found.append((_COLUMNS["memory_bytes"], sizes))
    return [(column, values) for column, values in found if values.present().any()]


def newest_window(run: Run) -> Window:
    """The time of the traces that were written last; all of it without a gap before them."""
    spans = sorted(each.span_ns for each in run.sources if each.span_ns[1] > each.span_ns[0])
    begin_ns = end_ns = run.origin_ns
    for first_ns, last_ns in spans:
        if is_between_programs(np.array([first_ns - end_ns]), end_ns - begin_ns).any():
            begin_ns = first_ns
        end_ns = max(end_ns, last_ns)
    if begin_ns == run.origin_ns:
        return ALL_TIME
    return Window(begin_ns - run.origin_ns, end_ns - run.origin_ns)


def followed(before: Run, after: Run, view: View) -> View:
    """A view of the newest complete step of a run, of that of a later state of the run."""
    one, other = (
        None if run.is_sampled_only else newest(step_times(run, View(view.run)))
        for run in (before, after)
    )
    depth = next((at for at, (level, _) in enumerate(view.scope) if level == "iteration"), None)
    if depth is None or other is None or view.path[depth] != str(one):
        return view
    path = (*view.path[:depth], str(other), *view.path[depth + 1 :])
    return replace(view, path=path)
