"""What to do about a finding: a table of sentences, each with the condition under which it holds.

A row is given only where its condition is seen in the run; the first ones are the most likely.
What PyTorch, its distributed wrappers and Python offer is as their documentation has it for
PyTorch 2.x and Python 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.host_causes import (
    ALLOCATOR,
    NEEDLESS,
    READ_BACK,
    UNSEEN,
    HostCharges,
    host_charges,
)
from chopper_core.analyses.why_late import MoreWorkAt, more_work_at
from chopper_core.findings.parts import Worth, group_of
from chopper_core.findings.rule import (
    Cost,
    Finding,
    FindingRule,
    FindingsContext,
    Group,
)
from chopper_core.findings.titles import shortened
from chopper_core.graph.collectives import comm_rows
from chopper_core.model.phrases import by_number, percent, time
from chopper_core.model.side_table import HostState
from chopper_core.model.table import NO_LABEL, NO_LABEL_TEXT, Kind, Phase
from chopper_core.model.units import Unit, scaled_text
from chopper_core.util import plugins
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import combined, distinct, run_sizes, run_starts, sums_of

MAX_ADVICE: Final = 3
MANY_LAUNCHES: Final = 200
"""Launches of a step and GPU from which on their own cost counts."""
SHORT_GAP_NS: Final = 20_000
"""Between launches of a host that does nothing else."""
LARGE_SHARE: Final = 0.1
"""Of the step, which idle time before many launches takes at least."""
MUCH_COMM: Final = 0.2
"""Of exposed communication: a kind with less is not the one to change first."""
MANY_BUCKETS: Final = 16
SMALL_BUCKET: Final = 20 << 20
"""Bytes: less than the default of bucket_cap_mb, 25 MiB."""
_MICROSTEP: Final = 0.2
"""Of the longest run of kernels of a phase: another forward has as many at least."""
_AT_LIMIT: Final = 0.95
"""Of the power that compute may draw: only then a higher limit is a higher clock."""
_HOST_LEFT: Final = re.compile(r"\bhost x(0\.\d+)")
_LEAST_GAIN: Final = 0.001
"""Of the step: a smaller gain of a change isn't named."""


class AdviceCase(Struct, frozen=True, eq=False, dict=True):
    """A finding, and what conditions ask of its run."""

    context: FindingsContext
    rule: FindingRule
    finding: Finding

    @cached_property
    def cells(self) -> Index:
        return self.context.cells_about(self.finding)

    @cached_property
    def rows(self) -> Index:
        """The activities that it is about."""
        table, every = self.context.table, self.context.node.rows
        own = np.isin(table.gpu[every], distinct(self.context.codes("gpu")[self.cells]))
        own &= np.isin(table.phase[every], distinct(self.context.codes("phase")[self.cells]))
        return np.asarray(every[own], np.intp)

    @cached_property
    def charges(self) -> HostCharges:
        """What hosts do while the GPUs that it is about are idle."""
        return self._charges(HostState.LATE)

    @cached_property
    def launched(self) -> HostCharges:
        """What hosts do while work that they have launched waits."""
        return self._charges(HostState.LAUNCHED)

    def _charges(self, state: HostState) -> HostCharges:
        charges, table = host_charges(self.context.run), self.context.table
        own = charges.state == state
        for level in ("gpu", "iteration", "phase", "operation"):
            here = distinct(self.context.codes(level)[self.cells])
            own &= np.isin(table.column(level)[charges.row], here)
        return charges.take(own)

    @cached_property
    def host_cause(self) -> tuple[str, str]:
        """The main thing that hosts do by then and its name in the trace; empty where several
        share the time, or where the finding isn't about hosts."""
        if self.finding.kind not in (Cost.HOST, Cost.LAUNCH):
            return "", ""
        main = self.charges.main(self.charges.by_cause)
        return ("", "") if main is None else (main.what, main.name)

    @cached_property
    def more_work(self) -> MoreWorkAt | None:
        """Where the one GPU of the finding has more work than its peers; None for others."""
        leads = self.context.leads
        if self.finding.kind != Cost.WORK or self.rule.name != "straggler" or leads is None:
            return None
        late = (*leads.stragglers, *leads.hidden_stragglers)
        own = [each for each in late if leads.gpus[each.place] == self.finding.gpu]
        # Of several GPUs, each in its turn, it is everywhere.
        return more_work_at(leads, own[0]) if own else MoreWorkAt()

    @cached_property
    def launches(self) -> float:
        """Activities per GPU and step."""
        return len(self.context.node.rows) / max(self.context.spots, 1)

    @cached_property
    def mean_idle_ns(self) -> float:
        """Idle time before launch calls, per launch."""
        idle = self.context.table.idle_host_ns[self.rows]
        return float(idle.sum()) / max(len(self.rows), 1)

    @cached_property
    def exposed_comm(self) -> list[tuple[str, int, float]]:
        """The operations of exposed communication with their phase and their part of it, the
        longest first."""
        table = self.context.table
        rows = comm_rows(table, self.context.compared)
        rows = rows[self.context.node.holds(rows)]
        exposed = table.exposed_comm_ns[rows].astype(np.float64)
        if not exposed.any():
            return []
        known, place = combined([table.operation[rows], table.phase[rows]])
        parts = sums_of(exposed, place, len(known)) / exposed.sum()
        return [
            (table.text_of("operation", known[at, 0]), int(known[at, 1]), float(parts[at]))
            for at in np.argsort(-parts, kind="stable").tolist()
        ]


Condition = Callable[[AdviceCase], Mapping[str, str] | None]
"""Whether advice holds: the names in its sentence, or None."""


class Advice(Struct, frozen=True):
    """A row of the table."""

    rules: tuple[str, ...]
    """The rules whose findings it is for; none: those of any rule."""
    sentence: str
    """What to try, with names of the run in braces."""
    holds: Condition
    question: str = ""
    """What `chopper what-if` asks to predict it, with the same names; empty: no replay can."""


def advice_for(
    context: FindingsContext, rule: FindingRule, finding: Finding, worth: Worth | None
) -> tuple[str, ...]:
    """What to try about a finding, at most `MAX_ADVICE` sentences, the most likely first."""
    case, found = AdviceCase(context, rule, finding), list[str]()
    if group_of(rule, finding) == Group.UNKNOWN and finding.cost_ns is None:
        return ()
    saves_nothing = finding.is_replayed and context.share(finding.worth_ns or 0.0) < _LEAST_GAIN
    if saves_nothing and finding.together_ns is None:
        return ()
    for advice in (*ADVICE, *_plugin_advice()):
        if advice.rules and rule.name not in advice.rules:
            continue
        names = advice.holds(case)
        if names is None:
            continue
        text = advice.sentence.format(**names)
        if advice.question and worth is not None:
            text += _gain(context, worth, advice.question.format(**names))
        found.append(text)
        if len(found) == MAX_ADVICE:
            break
    return tuple(found)


def _gain(context: FindingsContext, worth: Worth, question: str) -> str:
    """What a change would bring, as a sentence that follows."""
    answer = worth.answer(question)
    if answer is None or context.share(answer.saving_ns) < _LEAST_GAIN:
        return ""
    left = _HOST_LEFT.search(question)
    assumed = f", if that leaves {percent(float(left[1]))} of the host's time there" if left else ""
    less = f"{time(answer.saving_ns)} less{assumed} ({question})"
    return f" By replay, {context.a_whole} takes about {less}."


@cache
def _plugin_advice() -> tuple[Advice, ...]:
    """The rows of plugins; one that fails never holds, and is a problem to report."""

    def guarded(plugin: plugins.Plugin, advice: Advice) -> Advice:
        def holds(case: AdviceCase) -> Mapping[str, str] | None:
            names: Mapping[str, str] | None = plugin.attempt(lambda: advice.holds(case), None)
            return names

        return Advice(advice.rules, advice.sentence, holds, advice.question)

    found = plugins.loaded("advice", Advice.__struct_fields__)
    return tuple(guarded(plugin, advice) for plugin, advice in found)


# Conditions


def does(*causes: str) -> Condition:
    """Hosts do one of some things, by `HostCause.what`."""

    def holds(case: AdviceCase) -> Mapping[str, str] | None:
        what, name = case.host_cause
        named = f" ({shortened(name)})" if name else ""
        return {"what": what, "name": named} if what in causes else None

    return holds


def calls(pattern: str, *causes: str) -> Condition:
    """Hosts do one of some things, and the trace names it so."""
    known, wanted = does(*causes), re.compile(pattern)

    def holds(case: AdviceCase) -> Mapping[str, str] | None:
        return known(case) if wanted.search(case.host_cause[1]) else None

    return holds


def many_small(case: AdviceCase) -> Mapping[str, str] | None:
    """Hosts launch many activities one by one, with short gaps, and do nothing else."""
    is_many = case.launches > MANY_LAUNCHES and case.mean_idle_ns < SHORT_GAP_NS
    is_many &= case.context.share(case.finding.cost_ns or 0.0) >= LARGE_SHARE
    what, _ = case.host_cause
    if not is_many or (what and what != "launch calls" and not what.startswith("aten::")):
        return None
    phases = distinct(case.context.codes("phase")[case.cells])
    is_all = len(phases) == len(distinct(case.context.codes("phase"))) or NO_LABEL in phases
    names = ",".join(case.context.text("phase", phase) for phase in phases.tolist())
    where = "" if is_all else f"phase:{names} "
    return {"launches": f"{case.launches:,.0f}", "where": where}


_FUSED: Final = re.compile(r"fused_?(?:adam|sgd|optim)|FusedAdam|multi_tensor|foreach", re.I)


def unfused_optimizer(case: AdviceCase) -> Mapping[str, str] | None:
    """Many kernels of the optimizer, none of them fused."""
    context, table = case.context, case.context.table
    rows = context.node.rows
    own = rows[(table.phase[rows] == Phase.OPTIMIZER) & (table.kind[rows] == Kind.COMPUTE)]
    own = own[np.isin(table.gpu[own], distinct(context.codes("gpu")[case.cells]))]
    each = len(own) / max(context.spots, 1)
    if Phase.OPTIMIZER not in context.codes("phase")[case.cells] or each < MANY_LAUNCHES / 4:
        return None
    names = (table.names[code] for code in distinct(table.kernel[own]).tolist())
    return None if any(map(_FUSED.search, names)) else {"kernels": f"{each:,.0f}"}


def pageable_copies(case: AdviceCase) -> Mapping[str, str] | None:
    """Copies to the GPU that nothing hides, from memory that no trace calls pinned: on AMD none
    says so."""
    if case.finding.kind != Cost.COPIES:
        return None
    table, rows = case.context.table, case.rows
    own = rows[(table.kind[rows] == Kind.COPY) & (table.exposed_copy_ns[rows] > 0)]
    codes, code = combined([table.kernel[own]])
    if not len(codes):
        return None
    # Copies of another kind may be most of it.
    most = int(sums_of(table.exposed_copy_ns[own], code, len(codes)).argmax())
    name = table.names[int(codes[most, 0])]
    return {"name": shortened(name)} if re.search(r"HtoD(?!.*pinned)", name, re.I) else None


def one_gpu(case: AdviceCase) -> Mapping[str, str] | None:
    """It is about one GPU of several."""
    is_one = case.finding.gpu is not None and len(case.context.gpus) > 1
    return {"gpu": str(case.finding.gpu)} if is_one else None


def one_gpu_of_kind(*kinds: Cost) -> Condition:
    """It is about one GPU of several, and costs this kind of time."""
    return lambda case: one_gpu(case) if case.finding.kind in kinds else None


def one_hot_gpu(case: AdviceCase) -> Mapping[str, str] | None:
    """It is about one GPU, at a lower clock than its peers'."""
    is_clock = case.finding.kind == Cost.CLOCK and case.rule.name in ("straggler", "throttled")
    return one_gpu(case) if is_clock else None


def at_power_limit(case: AdviceCase) -> Mapping[str, str] | None:
    """Compute draws nearly all of the power that it may: of the cap, else as specified."""
    power, cap = (case.context.by_gpu(name) for name in ("power_w", "power_cap_w"))
    chip = case.context.run.hardware
    if chip is not None:
        cap = np.where(np.isfinite(cap), cap, chip.tdp_w)
    share = float(np.nanmean(power / cap)) if np.isfinite(power / cap).any() else np.nan
    return {"share": f"{100 * share:.0f} %"} if share >= _AT_LIMIT else None


def comm_is(pattern: str, *phases: Phase) -> Condition:
    """Much exposed communication is of a kind, in one of some phases (none: in any)."""
    wanted = re.compile(pattern, re.I)

    def holds(case: AdviceCase) -> Mapping[str, str] | None:
        for name, phase, part in case.exposed_comm:
            is_there = wanted.search(name) and (not phases or phase in phases)
            if is_there and part >= MUCH_COMM:
                return {"name": shortened(name)}
        return None

    return holds


def _by_wrapper(case: AdviceCase, of_second: str, of_first: str, of_ddp: str = "") -> str:
    """What fits the wrapper that the trace names: fully_shard (FSDP 2), FSDP 1, or DDP, if one is
    given; all where it names none."""
    names = (*case.context.table.operations, *case.context.table.names)
    ways = {"FSDP::": of_second, "FullyShardedDataParallel.": of_first}
    ways |= {"DistributedDataParallel.": of_ddp} if of_ddp else {}
    known = [way for name, way in ways.items() if any(each.startswith(name) for each in names)]
    return ", or ".join(known or ways.values())


def gathers_of_fsdp(phase: Phase, of_second: str, of_first: str) -> Condition:
    """Much exposed communication gathers parameters in a phase, and gradients are scattered."""

    def holds(case: AdviceCase) -> Mapping[str, str] | None:
        operations = " ".join(case.context.table.operations)
        has_both = re.search(r"reduce_?scatter", operations, re.I)
        if not has_both or comm_is(r"all_?gather", phase)(case) is None:
            return None
        return {"how": _by_wrapper(case, of_second, of_first)}

    return holds


def several_reductions(case: AdviceCase) -> Mapping[str, str] | None:
    """Gradients of each parameter are reduced several times a step."""
    name, phase, _ = next(iter(case.exposed_comm), ("", NO_LABEL, 0.0))
    if not re.search(r"reduce", name, re.I) or phase != Phase.BACKWARD:
        return None
    if not _microsteps(case):
        return None
    ways = (
        "set_requires_gradient_sync(False) of fully_shard",
        "no_sync() in FSDP",
        "no_sync() in DDP",
    )
    return {"name": shortened(name), "how": _by_wrapper(case, *ways)}


def small_buckets(case: AdviceCase) -> Mapping[str, str] | None:
    """Gradients go in many all-reduces of a few MB, as buckets are far below DDP's 25 MB."""
    if comm_is(r"all_?reduce", Phase.BACKWARD)(case) is None:
        return None
    table = case.context.table
    rows = comm_rows(table, case.context.compared)
    rows = rows[case.context.node.holds(rows) & (table.phase[rows] == Phase.BACKWARD)]
    rows = rows[table.bytes[rows] > 0]
    number = len(rows) / max(case.context.spots, 1)
    if number < MANY_BUCKETS or not table.bytes[rows].mean() < SMALL_BUCKET:
        return None
    size = scaled_text(float(table.bytes[rows].mean()), Unit.BYTES)
    return {"number": f"{number:,.0f}", "size": size}


def _microsteps(case: AdviceCase) -> bool:
    """Whether a step has several forwards, each after a backward."""
    table, rows = case.context.table, case.context.node.rows
    first = case.context.iterations[0]
    own = rows[(table.iteration[rows] == first) & (table.gpu[rows] == case.context.gpus[0])]
    own = own[np.isin(table.phase[own], (Phase.FORWARD, Phase.BACKWARD))]
    phase = table.phase[own[np.argsort(table.start_ns[own], kind="stable")]]
    starts = run_starts(phase)
    sizes = run_sizes(starts, len(phase))
    # A few kernels of one phase among those of the other are no micro-step.
    is_forward = phase[starts] == Phase.FORWARD
    return int((is_forward & (sizes >= _MICROSTEP * sizes.max(initial=0))).sum()) > 1


def advise_more_work(case: AdviceCase) -> Mapping[str, str] | None:
    """One GPU has more to do in all of its layers."""
    known = case.more_work
    return None if known is None or known.operations else {}


def more_in_layers(case: AdviceCase) -> Mapping[str, str] | None:
    """One GPU has more to do in some layers, as longer sequences have in none."""
    known = case.more_work
    if known is None or not known.layers:
        return None
    return {"gpu": str(case.finding.gpu), "layers": by_number("layer", known.layers)}


def more_of_one_operation(case: AdviceCase) -> Mapping[str, str] | None:
    """One GPU runs more of one operation, in no layer alone."""
    known = case.more_work
    if known is None or len(known.operations) != 1 or known.layers:
        return None
    return {"gpu": str(case.finding.gpu), "name": shortened(known.operations[0])}


def compiles(case: AdviceCase) -> Mapping[str, str] | None:
    """Hosts compile in a step."""
    what, name = case.host_cause
    is_it = re.search(r"compile_fx|_compile_inner|convert_frame|_dynamo|inductor", f"{what} {name}")
    return {"name": shortened(name or what)} if is_it else None


def stalls_anywhere(case: AdviceCase) -> Mapping[str, str] | None:
    """Hosts of several GPUs stall at places that have nothing in common."""
    is_known = case.host_cause[0] in NEEDLESS | {UNSEEN} or case.finding.gpu is not None
    is_known |= "host as peers" not in case.finding.remedy
    return None if is_known or len(case.context.gpus) < 2 else {}


def lacks_ranks(case: AdviceCase) -> Mapping[str, str] | None:
    """Ranks that communicate with those of the traces are missing from these."""
    context = case.context
    known, world = context.run.ranks, context.run.world
    if not len(comm_rows(context.table, ())):
        return None
    if world > len(known):
        return {"ranks": f"all {world} ranks"}
    chosen = context.collectives
    is_cut = chosen is not None and not chosen.complete.all()
    return {"ranks": "all ranks"} if is_cut else None


def blocking_copy(case: AdviceCase) -> Mapping[str, str] | None:
    """Hosts block in a copy call for most of the time in which launched work waits, and there are
    copies that no trace calls pinned."""
    own = case.launched
    main = own.main(own.by_cause)
    if main is None or main.what != "copy calls":
        return None
    table = case.context.table
    names = (table.names[code] for code in distinct(table.kernel[table.kind == Kind.COPY]).tolist())
    pageable = [name for name in names if re.search(r"(?:HtoD|DtoH)(?!.*pinned)", name, re.I)]
    # A copy to the host waits for all work before it; one to the GPU only for its own.
    to_host = [name for name in pageable if "DtoH" in name] or pageable
    if not to_host:
        return None
    return {"name": shortened(main.name), "copy": shortened(to_host[0])}


def longest_wait(case: AdviceCase) -> Mapping[str, str] | None:
    """Where launched work waits longest."""
    table, rows = case.context.table, case.rows
    waits = table.idle_launch_ns[rows]
    if not len(rows) or not waits.max() > 0:
        return None
    row = rows[int(waits.argmax())]
    step = int(table.iteration[row])
    operation = case.context.text("operation", table.operation[row])
    kernel = table.names[int(table.kernel[row])]
    return {
        "kernel": shortened(kernel if operation == NO_LABEL_TEXT else operation),
        "gpu": str(int(table.gpu[row])),
        "step": "" if step == NO_LABEL else f" in step {step}",
        "wait": time(int(waits.max())),
    }


def long_stage(*, is_last: bool) -> Condition:
    """A stage that is too long is, or isn't, the last one of its pipeline."""

    def holds(case: AdviceCase) -> Mapping[str, str] | None:
        context = case.context
        own = distinct(context.stage[context.place("gpu")[case.cells]])
        is_own = len(own) == 1 and (own[0] == context.stage.max()) == is_last
        return {"stage": str(own[0])} if is_own else None

    return holds


def always(case: AdviceCase) -> Mapping[str, str] | None:
    """The rule's own condition is enough."""
    return {"title": case.finding.title}


ADVICE: Final = (
    Advice(
        (),
        "Keep the value on the GPU, or read it back only every so many steps{name}.",
        does(READ_BACK),
    ),
    Advice(
        (),
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which keeps the allocator from "
        "asking the driver again{name}.",
        calls(r"^cuda|^cu[A-Z]", ALLOCATOR),
    ),
    Advice(
        (),
        "Look for torch.cuda.empty_cache() in the step, and whether memory is nearly full: an "
        "allocator without room gives its cache back to the driver and waits for the GPU{name}.",
        calls(r"Free|Unmap", ALLOCATOR),
    ),
    Advice(
        (),
        "Lower the peak of memory, or run the largest shapes first: the allocator asks the driver "
        "during the step{name}.",
        calls(r"^(?!.*(?:Free|Unmap))", ALLOCATOR),
    ),
    Advice(
        (),
        "Call gc.freeze() after warm-up, then gc.disable() and gc.collect() at the same step on "
        "all ranks.",
        does("garbage collection"),
    ),
    Advice(
        (),
        "Set num_workers of the DataLoader: it has none, and loads in the main process.",
        calls(r"SingleProcessDataLoader", "data loading"),
    ),
    Advice(
        (),
        "Raise num_workers and prefetch_factor of the DataLoader, with persistent_workers=True.",
        calls(r"^(?!.*SingleProcessDataLoader)", "data loading"),
    ),
    Advice(
        ("straggler", "late-host"),
        "Only GPU {gpu} waits for data: check its node's storage and CPUs.",
        lambda case: one_gpu(case) if does("data loading")(case) else None,
    ),
    Advice(
        (),
        "Save checkpoints with torch.distributed.checkpoint.async_save: the step then only waits "
        "for the copy to the host.",
        does("saving a checkpoint"),
    ),
    Advice((), "Log every so many steps, and from values that are already on the host.",
           does("logging")),
    Advice(
        (),
        "Mark changing dimensions with torch._dynamo.mark_dynamic, and run each shape before the "
        "timed steps: {name} compiles within a step.",
        compiles,
    ),
    Advice(
        (),
        "Run with TORCH_LOGS=recompiles, which says what changed.",
        compiles,
    ),
    Advice(
        ("late-host", "straggler"),
        "Rule out garbage collection, which stalls each interpreter when it likes: call "
        "gc.freeze() after warm-up, then gc.disable() and gc.collect() at the same step on all "
        "ranks.",
        stalls_anywhere,
    ),
    Advice(
        ("host-bound", "straggler", "late-host"),
        "Record with with_stack=True: its Python frames name what the hosts do in untraced code.",
        does(UNSEEN),
    ),
    Advice(
        ("copies", "straggler"),
        "Copy from pinned memory (pin_memory=True) with non_blocking=True: {name}.",
        pageable_copies,
    ),
    Advice(
        (),
        "Copy with pinned memory and non_blocking=True, and wait for an event only where the value "
        "is used{name}.",
        does("copy calls"),
    ),
    Advice(
        (),
        "Remove the synchronisation from the step, or wait for an event that is recorded after the "
        "work that is needed{name}.",
        does("synchronisation"),
    ),
    Advice(
        ("host-bound", "launch-bound"),
        "Compile the model with torch.compile(mode=\"reduce-overhead\"), which replays launches "
        "as graphs: each GPU gets {launches} launches a step.",
        many_small,
        "{where}host x0.3",
    ),
    Advice(
        ("host-bound", "launch-bound"),
        "Raise the batch per GPU: the host's work per step stays the same.",
        many_small,
    ),
    Advice(
        ("host-bound", "straggler", "late-host"),
        "Construct the optimizer with fused=True (or foreach=True): it runs {kernels} kernels a "
        "step.",
        unfused_optimizer,
        "phase:optimizer host x0.1",
    ),
    Advice(
        ("straggler",),
        "Bind each process to its GPU's NUMA node (numactl), and look for other jobs on its CPUs.",
        lambda case: one_gpu(case) if not case.host_cause[0] and case.finding.kind == Cost.HOST
        else None,
    ),
    Advice(
        ("straggler", "throttled"),
        "Check the cooling, airflow and power cap of GPU {gpu}'s slot.",
        one_hot_gpu,
    ),
    Advice(
        ("straggler", "throttled", "gpu-operation"),
        "Swap GPU {gpu} or its node if it stays slow after a reset.",
        one_gpu_of_kind(Cost.CLOCK, Cost.KERNELS),
    ),
    Advice(
        ("low-clock", "overhead"),
        "Raise the power cap, if the GPUs allow it, and check the cooling: compute draws {share} "
        "of the power that it may.",
        lambda case: at_power_limit(case) if case.finding.kind == Cost.CLOCK else None,
    ),
    Advice(
        ("straggler",),
        "Pack or balance sequences by length, so that all GPUs get as many tokens.",
        advise_more_work,
    ),
    Advice(
        ("straggler",),
        "If layers have experts, lower the router's capacity factor or raise its auxiliary loss: "
        "GPU {gpu} gets more tokens in {layers}.",
        more_in_layers,
    ),
    Advice(
        ("straggler",),
        "Look for work that only GPU {gpu} does, such as checks or logging of one rank: {name}.",
        more_of_one_operation,
    ),
    Advice(
        ("exposed",),
        "Gather parameters earlier in forward, where modules run in a fixed order: {how}; or wrap "
        "larger units.",
        gathers_of_fsdp(
            Phase.FORWARD,
            "set_modules_to_forward_prefetch of fully_shard",
            "forward_prefetch=True in FSDP if the host is late",
        ),
    ),
    Advice(
        ("exposed",),
        "Gather parameters earlier in backward: {how}; or wrap larger units.",
        gathers_of_fsdp(
            Phase.BACKWARD,
            "set_modules_to_backward_prefetch of fully_shard",
            "backward_prefetch=BackwardPrefetch.BACKWARD_PRE in FSDP",
        ),
    ),
    Advice(
        ("exposed",),
        "Skip {name} until the last micro-step: {how}.",
        several_reductions,
    ),
    Advice(
        ("exposed",),
        "Raise bucket_cap_mb of DistributedDataParallel: gradients go in {number} all-reduces a "
        "step of {size} on average.",
        small_buckets,
    ),
    Advice(
        ("exposed",),
        "Tune bucket_cap_mb of DistributedDataParallel, with gradient_as_bucket_view=True and, "
        "where the graph doesn't change, static_graph=True.",
        lambda case: None if small_buckets(case) else comm_is(r"all_?reduce", Phase.BACKWARD)(case),
    ),
    Advice(
        ("contention",),
        "Give communication fewer channels (NCCL_MAX_NCHANNELS), or let it run next to other "
        "operations than this one.",
        always,
    ),
    Advice(
        ("exposed", "queue-bound"),
        "Record {ranks}: work may wait for ranks that the traces lack.",
        lacks_ranks,
    ),
    Advice(
        ("queue-bound",),
        "Use pinned memory and non_blocking=True for {copy}, so that {name} returns at "
        "once.",
        blocking_copy,
    ),
    Advice(
        ("queue-bound",),
        "Look at the timeline before {kernel} on GPU {gpu}{step}: it begins after the longest of "
        "these waits, {wait}.",
        longest_wait,
    ),
    Advice(
        ("memory-growth",),
        "Look for tensors that a list keeps, such as losses with their graph: store loss.item().",
        always,
    ),
    Advice(
        ("slow-link", "slow-transfer"),
        "Test the link between these GPUs alone (rccl-tests or nccl-tests), and check its cable, "
        "port and PCIe or xGMI state.",
        always,
    ),
    Advice(
        ("long-stage",),
        "Give stage {stage} fewer layers: as the last one, it also has the output head and the "
        "loss.",
        long_stage(is_last=True),
    ),
    Advice(
        ("long-stage",),
        "Give stage {stage} fewer layers.",
        long_stage(is_last=False),
    ),
    Advice(
        ("wide-type",),
        "Run it under torch.autocast, or cast its inputs to the type of the other products, unless "
        "it needs the precision.",
        always,
    ),
    Advice(
        ("unfused-attention",),
        "Call torch.nn.functional.scaled_dot_product_attention with inputs that its fused kernels "
        "take: half precision, no mask or only a causal one.",
        always,
    ),
    Advice(
        ("moved-data",),
        "Keep one memory layout: look for .contiguous(), .to() and permute() at these operations.",
        always,
    ),
    Advice(
        ("small-kernels",),
        "Construct the optimizer with fused=True or foreach=True, and look for loops over "
        "parameters that are yours.",
        always,
    ),
    Advice(
        ("slow-start",),
        "Fix the clocks (nvidia-smi --lock-gpu-clocks, rocm-smi --setperfdeterminism), or shorten "
        "the wait before the step, after which they have to rise.",
        always,
    ),
    Advice(
        ("memory-roof",),
        "Try another memory format (channels_last), or a compiled or library version of these "
        "kernels.",
        always,
    ),
    Advice(
        ("products",),
        "Let PyTorch tune its matrix products for these shapes (PYTORCH_TUNABLEOP_ENABLED=1). Or "
        "choose batch sizes and token counts that are multiples of the kernel's tile, such as 128.",
        always,
    ),
)  # fmt: skip
"""What to do, by rule and condition, the most likely first."""
