"""The rules: what each looks for, and what its time at stake is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from chopper_core.views.findings.clocks import throttled, unsteady_clocks
from chopper_core.views.findings.contention import contention
from chopper_core.views.findings.context import Case
from chopper_core.views.findings.exposed import exposed
from chopper_core.views.findings.finding import Finding
from chopper_core.views.findings.host import host_bound, late_host, launch_bound
from chopper_core.views.findings.imbalance import imbalance
from chopper_core.views.findings.iterations import differing_iterations
from chopper_core.views.findings.missing import missing_data
from chopper_core.views.findings.operations import slow_in_a_layer, slow_in_an_iteration
from chopper_core.views.findings.overhead import largest_overhead
from chopper_core.views.findings.products import poor_products
from chopper_core.views.findings.straggler import straggler
from chopper_core.views.findings.thresholds import SMALLEST_STAKE


class Rule(Struct, frozen=True):
    """A way to find something: a pure function over the case."""

    name: str
    asks: str
    """What it looks for, in a sentence."""
    stake: str
    """What its time at stake is."""
    find: Callable[[Case], list[Finding]]


RULES: Final = (
    Rule(
        "straggler",
        "Which GPU do the others wait for, and why is it late?",
        "what it needs beyond the others' median, or what they stand waiting for it if that is "
        "more",
        straggler,
    ),
    Rule(
        "overhead",
        "Which loss of compute is the largest, by far?",
        "that part of the breakdown, on GPUs whose time can be taken apart",
        largest_overhead,
    ),
    Rule(
        "exposed",
        "What communication does no compute hide?",
        "communication without compute less what of it is waiting for later GPUs, mean over GPUs",
        exposed,
    ),
    Rule(
        "host-bound",
        "In which phases does the GPU wait for launch calls?",
        "idle time before the launch calls of these phases, mean over GPUs",
        host_bound,
    ),
    Rule(
        "launch-bound",
        "In which phases does the GPU wait after launch calls?",
        "idle time from the launch calls on, mean over GPUs",
        launch_bound,
    ),
    Rule(
        "late-host",
        "Where is one host late that elsewhere isn't?",
        "idle time before launch calls there, less what is usual at the same place on other GPUs "
        "and in other iterations; the largest of the GPUs of each iteration",
        late_host,
    ),
    Rule(
        "clock",
        "Which clocks deviate under the same load?",
        "what compute loses while the clock is below its mean in the same operation and phase; of "
        "the memory's clock nobody can say",
        unsteady_clocks,
    ),
    Rule(
        "throttled",
        "Which GPUs does a limiter hold down?",
        "what the clock below the nominal one costs them beyond the GPUs that aren't throttled",
        throttled,
    ),
    Rule(
        "layer",
        "Which operations take longer in one layer than in the others?",
        "kernel time there beyond the median of the other layers, mean over GPUs",
        slow_in_a_layer,
    ),
    Rule(
        "operation",
        "Which operations take longer in one iteration than in the others?",
        "kernel time there beyond the median of the other iterations, mean over GPUs, spread over "
        "all iterations",
        slow_in_an_iteration,
    ),
    Rule(
        "iteration",
        "Which iterations take longer than the others?",
        "their time beyond the median, spread over all iterations",
        differing_iterations,
    ),
    Rule(
        "contention",
        "Which operations does communication beside them slow down?",
        "what instances with much overlap take beyond those with little, mean over GPUs",
        contention,
    ),
    Rule(
        "products",
        "Which large matrix products leave the matrix units unused?",
        "kernel time beyond what they would take at the threshold, mean over GPUs",
        poor_products,
    ),
    Rule(
        "imbalance",
        "Which GPU has more to compute than the others?",
        "its compute beyond the mean of the GPUs",
        imbalance,
    ),
    Rule(
        "missing",
        "What isn't in the run, and what can't be said therefore?",
        "none that anybody knows",
        missing_data,
    ),
)
"""All rules; a run in which none finds anything is quiet."""


def find(case: Case) -> list[tuple[Rule, Finding]]:
    """What all rules find, the largest stake first; what nobody can put a time to comes last."""
    least = SMALLEST_STAKE.value / 100
    found = [
        (rule, finding)
        for rule in RULES
        for finding in rule.find(case)
        if finding.stake_ns is None or case.share(finding.stake_ns) >= least
    ]
    return sorted(found, key=lambda each: -1.0 if (s := each[1].stake_ns) is None else s)[::-1]
