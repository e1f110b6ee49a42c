"""One rank's host: a clock that PyTorch calls move on, and a record of what they did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from random import Random

from generator import constants as c
from generator.config import Config
from generator.kernels import RCCL, Kernel
from generator.model import Call, Node, Operation
from generator.records import (
    COMPUTE_STREAM,
    Activity,
    Collective,
    Group,
    HostRange,
    Label,
    Place,
    RuntimeCall,
)

FIRST_PROCESS = 21_504
# What the profiler calls the main thread in "Fwd thread id"
MAIN_THREAD_INDEX = 1

_SHARDED = ("all_gather", "reduce_scatter")

# A program yields what its host waits for; it goes on once these activities have ended.
Wait = list[Activity]
Program = Generator[Wait, None, None]


class Exchange:
    """The communicators that ranks share: their n-th collectives in one are the same one."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.collectives: list[Collective] = []
        self._of_group: dict[Group, list[Collective]] = {}

    def join(
        self, group: Group, index: int, kind: str, label: Label, shard_elements: int, dtype: str
    ) -> Collective:
        """The group's collective number `index`, which the first rank that gets there defines."""
        own = self._of_group.setdefault(group, [])
        if index == len(own):
            own.append(self._define(group, index, kind, label, shard_elements, dtype))
            self.collectives.append(own[-1])
        return own[index]

    def _define(
        self, group: Group, index: int, kind: str, label: Label, shard_elements: int, dtype: str
    ) -> Collective:
        ranks = len(group.ranks)
        full = shard_elements * ranks if kind in _SHARDED else shard_elements
        elements_in, elements_out = {
            "all_gather": (shard_elements, full),
            "reduce_scatter": (full, shard_elements),
            "all_reduce": (full, full),
            "send": (full, full),
            "recv": (full, full),
        }[kind]
        size_bytes = full * (2 if dtype == "BFloat16" else 4)
        rounds = 2 if kind == "all_reduce" else 1
        seconds = rounds * size_bytes * (ranks - 1) / ranks / c.BUS_BYTES_PER_S
        seconds *= self._config.link_factor(group, label, kind)
        where = "" if group.name == c.WORLD_NAME else f"{group.name}:"
        noise = Random(f"{self._config.seed}:collective:{where}{index}").random()
        transfer_ns = round((seconds * 1e9 + 18_000) * (0.99 + 0.02 * noise))
        return Collective(index, kind, label, elements_in, elements_out, dtype, transfer_ns, group)


class Host:
    """The clock, the threads and the records of one rank's process."""

    def __init__(self, config: Config, rank: int, exchange: Exchange) -> None:
        self.config = config
        self.rank = rank
        self.main_thread = FIRST_PROCESS + 113 * rank
        self.autograd_thread = self.main_thread + 97
        self.thread = self.main_thread
        self.label = Label(c.FIRST_ITERATION)
        self.profiler_start_ns = 0
        self.ranges: list[HostRange] = []
        self.calls: list[RuntimeCall] = []
        self.activities: list[Activity] = []
        self.retries: dict[int, Place] = {}
        self.tape: list[tuple[HostRange, Node, Label]] = []
        self.world = Group(c.WORLD_NAME, tuple(range(config.ranks)))
        self._exchange = exchange
        self._collectives: Counter[Group] = Counter()
        self._random = Random(f"{config.seed}:rank:{rank}")
        self._deviations: list[float] = []
        self._place = 0
        self._placed_iteration = c.FIRST_ITERATION
        self.now_ns = round(1_000_000 + 40_000 * self._random.random())
        self._external_ids = 0
        self._correlations = 0
        self._flows = 0
        self._sequence = {self.main_thread: 2_115, self.autograd_thread: 1}
        self._enclosing_op: HostRange | None = None
        self._chance = config.chance
        self._factor = config.host_factor(rank)
        self.compute_after: tuple[Activity, ...] = ()

    def spend(self, ns: float) -> None:
        """Lets the host's clock run on by about `ns`."""
        self.now_ns += round(ns * self._factor * (0.85 + 0.3 * self._random.random()))

    def sleep(self, ns: float) -> None:
        """Lets exactly that time go by."""
        self.now_ns += round(ns)

    @contextmanager
    def annotation(self, name: str, *, shown: bool = True) -> Iterator[HostRange]:
        """A user_annotation around the block; one that is not shown costs the same time."""
        record = self._open("user_annotation", name, record=shown)
        yield record
        self._close(record)

    @contextmanager
    def frame(self, name: str, *, shown: bool = True) -> Iterator[HostRange]:
        """A Python frame around the block."""
        record = self._open("python_function", name, record=shown)
        yield record
        self._close(record)

    @contextmanager
    def op(self, name: str, args: str = "") -> Iterator[HostRange]:
        """A cpu_op around the block."""
        record = self._open("cpu_op", name, args)
        outer, self._enclosing_op = self._enclosing_op, record
        yield record
        self._enclosing_op = outer
        self._close(record)

    @contextmanager
    def labelled(self, label: Label) -> Iterator[None]:
        """Labels what is launched in the block."""
        outer, self.label = self.label, label
        yield
        self.label = outer

    @contextmanager
    def on_thread(self, thread: int) -> Iterator[None]:
        """Runs the block on another thread while this one waits for it."""
        outer, self.thread = self.thread, thread
        enclosing, self._enclosing_op = self._enclosing_op, None
        self.spend(12_000)
        yield
        self.spend(9_000)
        self.thread, self._enclosing_op = outer, enclosing

    def _open(self, category: str, name: str, args: str = "", *, record: bool = True) -> HostRange:
        self.spend(900)
        self._external_ids += record
        opened = HostRange(category, name, self.thread, self.now_ns, self._external_ids, args=args)
        if record:
            self.ranges.append(opened)
        self.spend(1_300)
        return opened

    def _close(self, record: HostRange) -> None:
        self.spend(700)
        record.end_ns = self.now_ns

    def run(self, call: Call, *, taped: bool = True) -> None:
        """Runs a forward call; those that create autograd nodes go on the tape if `taped`."""
        with self.op(call.name, call.inputs) as record:
            record.sequence = self._sequence[self.thread]
            for child in call.children:
                self.run(child, taped=taped)
            self._launch_all(call)
            if call.node:
                # The number of the node: children that create nodes come before it.
                record.sequence = self._sequence[self.thread]
                self._sequence[self.thread] += 1
                if taped:
                    self.tape.append((record, call.node, self.label))

    def run_plain(self, call: Call) -> None:
        """Runs a call that autograd does not see."""
        with self.op(call.name, call.inputs):
            for child in call.children:
                self.run_plain(child)
            self._launch_all(call)

    def _launch_all(self, call: Call) -> None:
        for kernel in call.kernels:
            self.launch(kernel)

    def operate(self, operation: Operation, *, taped: bool = True, stall_ns: int = 0) -> None:
        """Runs an operation under its annotation, after a stall of the host in it."""
        label = self.label.at(operation.name, self.label.layer)
        shown = self.config.annotations
        with self.annotation(operation.name, shown=shown), self.labelled(label):
            if stall_ns:
                self.spend(stall_ns)
            for call in operation.calls:
                self.run(call, taped=taped)

    @contextmanager
    def evaluate(self, forward: HostRange, node: Node) -> Iterator[None]:
        """Evaluates an autograd node; the block runs at its start, before its calls."""
        with self.op(f"autograd::engine::evaluate_function: {node.name}") as wrapper:
            with self.op(node.name) as inner:
                for record in (wrapper, inner):
                    record.sequence = forward.sequence
                    record.forward_thread = MAIN_THREAD_INDEX
                self._flows += 1
                forward.flow = inner.flow = self._flows
                inner.flow_ends = True
                yield
                for call in node.calls:
                    self.run_plain(call)
            if node.summed_with:
                self.run_plain(node.summed_with)
        if node.reaches_parameter:
            name = "torch::autograd::AccumulateGrad"
            with self.op(f"autograd::engine::evaluate_function: {name}"), self.op(name):
                pass

    def call_runtime(self, name: str, ns: float) -> RuntimeCall:
        """A HIP runtime call that takes about `ns`."""
        self._correlations += 1
        enclosing = self._enclosing_op.external_id if self._enclosing_op else None
        call = RuntimeCall(name, self.thread, self.now_ns, self._correlations, enclosing)
        self.calls.append(call)
        self.spend(ns)
        call.end_ns = self.now_ns
        return call

    def launch(
        self,
        kernel: Kernel,
        stream: int = COMPUTE_STREAM,
        *,
        after: tuple[Activity, ...] = (),
        collective: Collective | None = None,
    ) -> Activity:
        """Launches a kernel that starts once the activities `after` have ended.

        The next one on the compute stream also waits for `compute_after`.
        """
        if stream == COMPUTE_STREAM and self.compute_after:
            after, self.compute_after = (*after, *self.compute_after), ()
        if after:
            self.call_runtime("hipStreamWaitEvent", 2_000)
        call = self.call_runtime(kernel.launcher, 6_800)
        label = self.label
        activity = Activity(
            kernel,
            stream,
            label,
            call,
            self._cycles(kernel),
            round(700 + 800 * self._random.random()),
            sensitive=self.config.is_sensitive(label),
            after=after,
            collective=collective,
        )
        call.activity = activity
        self.activities.append(activity)
        return activity

    def _cycles(self, kernel: Kernel) -> float:
        factor = self.config.kernel_factor(self.rank, self.label, kernel)
        return kernel.nominal_cycles * factor * self._deviation()

    def _deviation(self) -> float:
        """A factor that returns at its place in every iteration, and a little of chance."""
        if self.label.iteration != self._placed_iteration:
            self._placed_iteration = self.label.iteration
            self._place = 0
        random = self._random.random
        if self._place == len(self._deviations):
            self._deviations.append(1 + 0.012 * (random() + random() - 1))
        own = self._deviations[self._place]
        self._place += 1
        return own * (1 + 2 * self._chance * (random() - 0.5))

    def communicate(
        self,
        kind: str,
        stream: int,
        shard_elements: int,
        dtype: str,
        after: tuple[Activity, ...],
        group: Group | None = None,
    ) -> Activity:
        """Enqueues this rank's part of the group's next collective, through c10d."""
        group = group or self.world
        number = self._collectives[group]
        collective = self._exchange.join(group, number, kind, self.label, shard_elements, dtype)
        self._collectives[group] += 1
        op_name, range_name = {
            "all_gather": ("c10d::_allgather_base_", "nccl:_all_gather_base"),
            "reduce_scatter": ("c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base"),
            "all_reduce": ("c10d::allreduce_", "nccl:all_reduce"),
            "send": ("c10d::send", "nccl:send"),
            "recv": ("c10d::recv_", "nccl:recv"),
        }[kind]
        with (
            self.op(op_name),
            self.op("record_param_comms", collective_args(collective)),
            self.annotation(range_name),
        ):
            return self.launch(RCCL, stream, after=after, collective=collective)

    def synchronise(self) -> Program:
        """Waits for all that was launched."""
        call = self.call_runtime("hipDeviceSynchronize", 1_500)
        yield list(self.activities)
        self.spend(9_000)
        call.end_ns = self.now_ns


def collective_args(collective: Collective) -> str:
    """A collective's arguments as PyTorch records them, on the host and on the kernel."""
    name = {
        "all_gather": "_allgather_base",
        "reduce_scatter": "_reduce_scatter_base",
        "all_reduce": "allreduce",
        "send": "send",
        "recv": "recv",
    }[collective.kind]
    group = collective.group
    return (
        f'"Collective name": "{name}", "In msg nelems": {collective.elements_in}, '
        f'"Out msg nelems": {collective.elements_out}, "Group size": {len(group.ranks)}, '
        f'"dtype": "{collective.dtype}", "In split size": "[]", "Out split size": "[]", '
        f'"Process Group Name": "{group.name}", '
        f'"Process Group Description": "{group.description}", '
        f'"Process Group Ranks": "{list(group.ranks)}"'
    )
