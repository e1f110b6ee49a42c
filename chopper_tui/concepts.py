"""The words of questions: the concepts that they say, and other ways of saying the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from chopper_core.util.patterns import listed_entries
from chopper_tui.search import spaced, stem

_CONCEPTS: Final = """
    again
        back return returns undo before
    compute
        compute gemm gemms matmul attention kernel kernels vector elementwise
    hardware
        hardware how_many_gpus how_many_ranks gpu_type gpu_model world_size device devices
    steady
        steady steadiness variance variation varies vary jitter noise noisy reproducible stable
        stability deterministic determinism fluctuate fluctuates
    message
        message messages
    training
        loss_curve trainer log goodput convergence
    expert
        expert experts moe router routing
    all
        total sum whole together
    aligned
        aligned align alignment synchronised synchronized synced sync offset
    elsewhere
        around elsewhere other_gpu other_gpus another_gpu different_gpu next_gpu other_rank
        another_rank
        next_rank
    attention
        attention flash_attention fmha
    bandwidth
        bandwidth gb/s busbw
    best
        best fastest winner wins better
    between
        between
    bound
        bound limited limit limits cap capped
    clock
        downclock downclocks clock clocks frequency frequencies mhz ghz gfxclk sclk dvfs
        downclocked downclocking
    column
        column heading header field
    comm
        communication comm comms collective collectives nccl rccl network all_gather allgather
        all_reduce allreduce reduce_scatter reducescatter all_to_all alltoall interconnect
    compare
        relative minus new removed gone compare compared differ differs difference
        differences different
        diff changed change changes
        delta versus vs against
    copy
        copy paste clipboard
    core
        core cores processor processors affinity pinned pinning socket numa
    cost
        cost costs costing
    cpu
        cpu cpus core cores processor processors thread threads
    depth
        depth length deep many
    drop
        downclock downclocks downclocked drop drops dropped fall falls fell falling dip dips
        sink sinks sank decrease decreases
        decreased low lower lowered reduced throttle throttled throttles throttling go_down
        goes_down went_down slow_down slowed_down
    energy
        energy joule joules j watt_hours
    exposed
        visible uncovered exposed unhidden unoverlapped not_hidden not_overlapped
        non-overlapped non_overlapped nothing_hides exposure
    files
        file files source sources input inputs trace traces data
    first
        first most biggest top priority worth best largest main
    fix
        priority priorities fix fixed improve improvement optimise optimize optimisation
        optimization tackle advice
        would_help help_most recommend recommendation recommendations suggestion suggestions
        todo bottleneck bottlenecks
    gap
        gap gaps bubble bubbles idle idles stall stalls stalled hole holes
    gemm
        gemm gemms matmul matmuls matrix mm
    held
        hold holds holding held keep keeps keeping slow slows slowing
    host
        host cpu python launcher dataloader
    hot
        hot hottest temperature temperatures temp thermal warm cool
    ideal
        ideal waterfall breakdown break_down account budget
    issue
        issue ticket github gitlab jira slack
    kernel
        kernel kernels function functions
    known
        known know knowable recorded record
    launching
        launch launches launching launcher thread threads
    late
        late later lag lags lagging behind delay delays delayed straggler stragglers straggling
    lossy
        lose loses losing lost loss losses inefficient inefficiency least_efficient wasteful waste
        wasted wastes far_from farthest furthest improvable headroom least_efficiently suffer
        efficiency tuning tune potential optimised optimized leave leaves on_the_table
        distance suffers worst poor poorly bad badly underperform
        underperforms away
    markdown
        markdown md
    memory
        memory mem vram hbm ram footprint out_of_memory oom
    missing
        missing lack lacks lacking absent unknown unrecorded not_known not_know don't_know
        not_see not_find not_recorded not_in unavailable blind_spots gaps_in_data caveats
        caveat limitations
        can't_know can't_tell
    mfu
        peak_flops model_flops hardware_utilisation hardware_utilization mfu
        model_flops_utilisation model_flops_utilization flops_utilisation flops_utilization
    nominal
        nominal boost maximum max
    not
        not don't can't isn't doesn't cannot no
    open
        open load switch change_run
    others
        other others rest everyone everybody peers
    overlap
        overlap overlaps overlapped overlapping hidden hide hides concurrent concurrently
        interference interfere contention contend next_to alongside
    page
        html page webpage web_page
    peak
        peak most maximum max high_water
    per
        per a each every by
    perfetto
        perfetto chrome_trace chrome_tracing
    power
        power watt watts tdp w
    pick
        step single one
    pipeline
        pipeline stage stages microbatch microbatches
    queue
        queue queued queues
    read
        read loaded load parsed used ingested imported opened
    report
        report summary_page
    roof
        roof roofs roofline rooflines speed_of_light
    run
        run runs trace traces
    saving
        save saves saving savings gain gains win
    second
        second s
    shape
        shape shapes size sizes dimension dimensions
    since
        when since start starts started begin begins began moment instant from_when
        what_time which_time
    slow
        slow slower slowest longest long slowdown slows expensive costliest costly time_consuming
        most_time heaviest takes_longest regress regressed regression regressions longer worse
        got_slower impact effect influence affect affects
    speed
        throughput fast faster tokens/s speed
    step
        step steps
    switch
        another different other
    table
        table tables view rows
    ticket
        ticket issue
    throttled
        throttle throttles throttled throttling thermal
    time
        time times timeline axis
    token
        token tokens tokens/s
    use
        use used uses using usage eat eats eating consume consumes take takes took
    wait
        wait waits waiting waited
    where
        where place places location located which_layer which_layers which_phase in_which
    why
        what_makes makes diagnose up_with problem why reason reasons cause causes caused
        explain explanation wrong matter
    work
        work works working does doing did happen happens happening run runs running executed called
        call calls lie lies
        invoked launched
    write
        write export save dump produce make generate create
"""
"""A concept, and the words and phrases (with _) for it: a word may be in several."""

_USUAL: Final = """
    backward
        bwd, back propagation, backprop, backpropagation, backward pass
    forward
        fwd, forward pass
    layer
        transformer block, transformer blocks, transformer layer, decoder layer, decoder block
    gemm
        matmul, matmuls, matrix multiplication, matrix multiplications, matrix multiply,
        matrix product, matrix products
    gemm shape
        gemm size, gemm sizes, matmul size, matmul sizes, matmul shape, matmul shapes,
        problem size, problem sizes, matrix size, matrix sizes
    energy per token
        j/token, mj/token, j/tok, joules/token
    worst
        lowest efficiency, lowest % roof, least % roof, lowest roof, least efficient, most
        inefficient, least efficiently, lose most, loses most, lose the most,
        loses the most, most time lost, most lost time, most improvable, worst performing
    slowest
        longest, takes longest, takes the longest, most time, most expensive, costliest
    p95
        95th percentile, 95 percentile, 95 % quantile
    attention
        flash attention, fmha
    operation
        op, ops
    %
        percent, per cent
    without
        w/o
    what is
        what's, whats
    who is
        who's
    do not
        don't
    is not
        isn't
    are not
        aren't
    can not
        can't, cannot
    by layer
        layer by layer, layer-by-layer
    by step
        step by step
"""
"""A word of Chopper's, and other words for the same."""
BASELINE: Final = frozenset(("baseline", "reference", "regressed", "regression", "regressions"))
"""Words that speak of another run than the one shown."""
_LONGEST: Final = 3
"""Words of a phrase."""


@lru_cache(maxsize=1)
def _concepts() -> Mapping[tuple[str, ...], frozenset[str]]:
    """The words of a phrase → the concepts that it says."""
    found: dict[tuple[str, ...], frozenset[str]] = {}
    for concept, phrases in listed_entries(_CONCEPTS):
        for phrase in phrases.split():
            for each in {phrase, phrase.replace("_", " ")}:
                words = tuple(map(stem, spaced(each).split()))
                found[words] = found.get(words, frozenset()) | {concept}
    return found


def words_of_concepts() -> set[str]:
    """All words that say a concept, alone or with others."""
    usual = (word for phrase in _usual()[1] for word in spaced(phrase).split())
    return {*(word for phrase in _concepts() for word in phrase), *usual}


def said_concepts(text: str) -> dict[str, set[str]]:
    """The concepts that a text says, each with its words there."""
    words, known = spaced(text).split(), _concepts()
    words = ["step" if stem(word) == "iteration" else word for word in words]
    found: dict[str, set[str]] = {}
    for at in range(len(words)):
        for end in range(at + 1, min(at + _LONGEST, len(words)) + 1):
            phrase = words[at:end]
            for concept in known.get(tuple(map(stem, phrase)), ()):
                found.setdefault(concept, set()).update(phrase)
    return found


@lru_cache(maxsize=1)
def _usual() -> tuple[re.Pattern[str], Mapping[str, str]]:
    usual = {
        " ".join(phrase.split()): word
        for word, phrases in listed_entries(_USUAL)
        for phrase in phrases.split(",")
    }
    longest = sorted(usual, key=len, reverse=True)
    return re.compile(rf"(?<!\S)(?:{'|'.join(map(re.escape, longest))})(?![\w%])"), usual


def in_usual_words(text: str) -> str:
    """A text with the words that Chopper uses for what has several names."""
    pattern, usual = _usual()
    return pattern.sub(lambda found: usual[found[0]], " ".join(text.lower().split()))
