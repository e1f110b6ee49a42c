"""The quantities that several screens show: one definition, one function, one name each.

A place is a view and one of its columns, or `headline`, `bar` or `sentence`; `tree` and `runs` are
the tree and a table of runs. `tests/test_account.py` compares all places of each.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

_ALL: Final = "all GPUs and complete steps in scope"
_BASE: Final = "mean per GPU and step; sums with base=total"


class Quantity(Struct, frozen=True):
    """A quantity by its name, as its places show it."""

    name: str
    unit: str
    function: str
    """The module in `chopper_core` and the name of what computes it."""
    definition: str
    base: str
    covers: str
    places: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Quantity:
        """Of `name | unit | function`, then the definition, and parts that differ from these."""
        heading, *lines = text.splitlines()
        parts, key = {"definition": "", "base": _BASE, "covers": _ALL, "places": ""}, "definition"
        for line in map(str.strip, lines):
            first, colon, more = line.partition(": ")
            if colon and first in parts:
                key, line, parts[first] = first, more, ""
            parts[key] = f"{parts[key]} {line}".strip()
        places = tuple(map(str.strip, parts.pop("places").split(",")))
        name, unit, function = map(str.strip, heading.split("|"))
        return cls(name, unit, function, **parts, places=places)


_TEXT: Final = f"""
step time | s | analyses.step_times.step_times
    Time charged to a step on a GPU: its activities, and the idle time before them; idle time
    before a launch call belongs to the step that the host is in. The parts add up to it.
    base: mean per GPU and step; next to it their range, where they differ by 1 %
    places: overview headline, overview bar, overview iteration_ns, throughput headline,
        throughput iteration_ns, findings headline, live headline, tree elapsed_ns,
        whatif headline, whatif step_ns, runs step_time_ns

tokens/s | tok/s | analyses.step_times.token_rate
    Tokens of a step over step time. GPUs of one data-parallel replica (tensor, context and
    pipeline parallelism) share its tokens.
    base: sum over the GPUs in scope
    covers: {_ALL}; of a whole run, the ranks of the job
    places: overview headline, throughput headline, live headline, runs run_tokens_per_s

tokens/s per GPU | tok/s | analyses.step_times.token_rate
    tokens/s over the GPUs.
    base: per GPU
    places: throughput tokens_per_s, throughput headline, runs tokens_per_s, whatif tokens_per_s

token time | s | analyses.step_times.tokens_in
    Step time over the tokens of a GPU: one over tokens/s per GPU.
    base: per GPU
    places: throughput headline, throughput per_token_ns

token energy | J | analyses.step_energy.StepEnergy
    step energy over the tokens of a step, which GPUs of one replica share.
    base: all GPUs in scope over all their tokens; of a GPU in a row
    covers: as step energy
    places: power headline, power token_energy_mj, runs j_per_token

MFU | % | analyses.time_parts.parts_of
    Model FLOPs utilization: the time that the model's FLOPs take at the GPU's peak, in % of
    step time. The model's FLOPs are those of forward and backward once:
    recomputation is a loss. "ideal %", the part of the charged time, is less while two kernels
    compute at once.
    base: a ratio of sums
    covers: the GPUs whose FLOPs are known, marked 2/8 where these are some
    places: overview headline, live headline, overheads mfu_pct, runs mfu_pct

exposed communication | s | columns.METRICS (exposed_comm_ns)
    Time in which communication runs and no compute, charged to the communication.
    covers: {_ALL}; a finding about usual steps says so
    places: overview bar, throughput exposed_comm_ns, findings sentence, tree exposed_comm_ns,
        comms exposed_comm_ns

exposed | % | analyses.time_parts.parts_of
    exposed communication in % of step time.
    base: a ratio of sums
    covers: as exposed communication
    places: overview headline, live headline, overheads exposed_comm_pct, findings sentence,
        runs exposed_comm_pct

idle | s | columns.METRICS (idle_ns)
    Time in which nothing runs on a GPU, charged to the activity that starts next; "launch" in the
    parts of throughput.
    places: overview bar, tree idle_ns, overheads idle_ns, launch idle_ns, throughput idle_ns

low clock | s | columns.METRICS (frequency_ns)
    Compute time that a clock below the nominal one costs; "low clock" among the losses.
    covers: the GPUs whose clock is known
    places: overview bar, overheads frequency_ns, findings sentence

power | W | analyses.samples.powers_of
    Mean power over the time in scope, idle time too: step energy over step time. Of a GPU whose
    telemetry covers only a part of that time, the mean of its samples.
    base: sum over the GPUs in scope; of a GPU in a row; of a run the mean of its GPUs
    covers: GPUs with telemetry of power, those without a trace too; no sum where one has none
    places: overview headline, overview mean_power_w, live headline, power headline,
        power mean_power_w, runs gpu_power_w

busy power | W | columns.METRICS (power_w)
    Mean power while activities run: over their durations, so that idle time doesn't count.
    base: mean over time
    covers: activities with telemetry of power
    places: tree power_w

step energy | J | columns.METRICS (energy_j)
    Energy of the GPUs in a complete step: from the energy counter, else from power. Of a GPU
    that telemetry alone has, its mean power while the others are in it, for their mean time.
    base: per step, sum over the GPUs in scope
    covers: {_ALL}, those without a trace too; no sum where telemetry covers only a part of one, but
        for up to a sampling period at its ends, marked ~
    places: power headline, power iteration_energy_j, runs j_per_step

clock while busy | MHz | columns.METRICS (gfx_mhz)
    Mean clock of the compute units over the durations of activities: "gfx MHz".
    base: mean over time
    covers: activities with telemetry of the clock
    places: overview gfx_mhz, tree gfx_mhz

mean clock | MHz | analyses.samples.sampled
    Mean clock of the compute units over the time in scope, idle time too: "mean gfx MHz".
    base: mean over time, of a GPU; of a run the mean of its GPUs
    covers: GPUs with telemetry of the clock
    places: power mean_gfx_mhz, runs gpu_mhz

low MHz | MHz | analyses.samples.clock_while_busy
    5th percentile of a GPU's clock while it is busy: by its activities, without a trace by a
    utilization of 90 % or more.
    base: over time; of a run that of its slowest GPU
    covers: GPUs with telemetry of the clock
    places: power busy_p05_mhz, runs low_mhz

utilization | % | columns.METRICS (gfx_util_pct)
    Utilization of the compute units as the driver reports it, over the durations of activities.
    base: mean over time
    covers: activities with telemetry of it
    places: overview gfx_util_pct, tree gfx_util_pct

busy | % | columns.METRICS (busy_pct)
    Part of the time in which anything runs on a GPU, by the trace.
    base: a ratio of sums
    places: tree busy_pct

lag | s | analyses.leads.RankLeads
    How much later than the earliest GPU a GPU starts the same kernels.
    base: mean over the kernels that all GPUs run in complete steps
    covers: GPUs that run the same kernels
    places: overview lag_ns

waiting | s | graph.collectives.collectives_in
    Time that GPUs spend in collectives before the last rank arrives: "own wait" of the GPU that
    waits, "caused wait" of the one that it waits for.
    covers: collectives of which the traces have all ranks
    places: comms wait_ns, comms headline, ranks wait_ns, ranks caused_ns

kernels | | columns.METRICS (kernels)
    Kernels that run on a GPU, without copies and memsets.
    places: tree kernels, kernels kernels, icicle kernels

communication kernels | | columns.METRICS (collectives)
    Communication kernels of a GPU.
    places: comms collectives, comms headline

kernel time | s | columns.METRICS (kernel_ns)
    Sum of the durations of activities, however many run at a time.
    places: tree kernel_ns, kernels kernel_ns, roofline kernel_ns

bus bandwidth | GB/s | columns.METRICS (bus_gbps)
    Message size over transfer time, times nccl-tests' factor of the collective; waiting is no part.
    base: a ratio of sums
    covers: collectives of which the traces have all ranks and the size
    places: comms bus_gbps

saving | s | views.findings.answer
    How much shorter a step is without a finding, by replay, with its range.
    base: per step
    places: findings saving_ns, overview cards
"""
QUANTITIES: Final = {each.name: each for each in map(Quantity.of, _TEXT.strip().split("\n\n"))}
