"""The clockwork: all ranks' GPUs and hosts in lockstep, as a discrete-event simulation.

A kernel's speed changes whenever a collective starts, begins to transfer or ends on its GPU, and
with the GPU's clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from math import ceil

from generator import constants as c
from generator.clocks import TICK_NS, Clock
from generator.config import Config
from generator.flat_training import FlatTraining
from generator.host import Exchange, Host, Program
from generator.records import Activity, Collective, GpuHistory, Group
from generator.training import Training

LAUNCH_LATENCY_NS = 3_500
HOST_WAKE_NS = 11_000


class Gpu:
    """One GPU's streams, what runs on them, and the host program that feeds them."""

    def __init__(self, host: Host, clock: Clock, program: Program) -> None:
        self.host = host
        self.clock = clock
        self.program = program
        self.queues: dict[int, deque[Activity]] = {}
        self.busy: set[int] = set()
        self.running: dict[int, Running] = {}
        self.collectives: list[Activity] = []
        self.done: Counter[Group] = Counter()
        self.launched = 0
        self.awaited: list[Activity] = []

    def active(self) -> list[Activity]:
        """What is on the GPU now."""
        return [*(running.activity for running in self.running.values()), *self.collectives]

    def history(self) -> GpuHistory:
        """What the GPU did, once the simulation has ended."""
        activities = tuple(self.host.activities)
        return GpuHistory(
            self.host.rank,
            self.clock.base_mhz,
            self.clock.history,
            activities,
            self.host.retries,
        )


class Running:
    """An activity on the GPU with the work that is left of it."""

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        self.left_cycles = activity.cycles
        self.since_ns = activity.start_ns
        self.cycles_per_ns = 0.0
        self.version = 0


class Cluster:
    """Runs the training of all ranks to its end."""

    def __init__(self, config: Config, training: type[Training] | None = None) -> None:
        exchange = Exchange(config)
        hosts = [Host(config, rank, exchange) for rank in range(config.ranks)]
        self.collectives = exchange.collectives
        self._config = config
        training = training or (FlatTraining if config.strategy == c.FSDP1 else Training)
        self.gpus = [
            Gpu(host, Clock(config, host.rank), training(host).program()) for host in hosts
        ]
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._now_ns = 0
        self._tick_ns = TICK_NS

    def run(self) -> None:
        """Simulates until every program has ended and every GPU is idle."""
        for gpu in self.gpus:
            self._run_host(gpu)
        while self._events:
            if self._tick_ns <= self._events[0][0]:
                self._tick()
                continue
            self._now_ns, _, happen = heappop(self._events)
            happen()
        if stuck := [gpu.host.rank for gpu in self.gpus if gpu.awaited or any(gpu.queues.values())]:
            raise RuntimeError(f"Ranks {stuck} wait for work that never ends.")

    def _tick(self) -> None:
        """Moves every GPU's clock on."""
        self._now_ns = self._tick_ns
        self._tick_ns += TICK_NS
        for gpu in self.gpus:
            gpu.clock.advance(self._now_ns, gpu.active())
            self._set_speed(gpu)

    def _at(self, time_ns: int, happen: Callable[[], None]) -> None:
        self._scheduled += 1
        heappush(self._events, (time_ns, self._scheduled, happen))

    def _run_host(self, gpu: Gpu) -> None:
        """Lets a host run until it waits for its GPU, and hands over what it launched.

        A wait for what has ended already is none.
        """
        gpu.awaited = list(next(gpu.program, ()))
        while gpu.awaited and all(activity.end_ns >= 0 for activity in gpu.awaited):
            gpu.awaited = list(next(gpu.program, ()))
        for activity in gpu.host.activities[gpu.launched :]:
            gpu.queues.setdefault(activity.stream, deque()).append(activity)
        gpu.launched = len(gpu.host.activities)
        self._poll(gpu)

    def _poll(self, gpu: Gpu) -> None:
        """Schedules the start of every stream's next activity that need not wait any more."""
        for stream, queue in gpu.queues.items():
            if stream in gpu.busy or not queue:
                continue
            head = queue[0]
            if any(other.end_ns < 0 for other in head.after):
                continue
            if head.collective and head.collective.index != gpu.done[head.collective.group]:
                continue
            queue.popleft()
            gpu.busy.add(stream)
            ready_ns = max(self._now_ns, head.call.start_ns + LAUNCH_LATENCY_NS)
            self._at(ready_ns + head.gap_ns, partial(self._start, gpu, head))

    def _start(self, gpu: Gpu, activity: Activity) -> None:
        activity.start_ns = self._now_ns
        if activity.collective is None:
            gpu.running[activity.stream] = Running(activity)
            self._set_speed(gpu)
            return
        collective = activity.collective
        gpu.collectives.append(activity)
        collective.starts_ns[gpu.host.rank] = self._now_ns
        ranks = collective.group.ranks
        if len(collective.starts_ns) < len(ranks):
            self._set_speed(gpu)
            return
        collective.end_ns = self._now_ns + collective.transfer_ns
        self._at(collective.end_ns, partial(self._end_collective, collective))
        for rank in ranks:
            self._set_speed(self.gpus[rank])

    def _end_collective(self, collective: Collective) -> None:
        for rank in collective.group.ranks:
            gpu = self.gpus[rank]
            (activity,) = (each for each in gpu.collectives if each.collective is collective)
            gpu.collectives.remove(activity)
            gpu.done[collective.group] += 1
            self._set_speed(gpu)
            self._end(gpu, activity)

    def _set_speed(self, gpu: Gpu) -> None:
        """Accounts for the work done so far and plans the ends anew."""
        for running in gpu.running.values():
            cycles_per_ns = self._cycles_per_ns(gpu, running.activity)
            if cycles_per_ns == running.cycles_per_ns:
                continue
            running.left_cycles -= (self._now_ns - running.since_ns) * running.cycles_per_ns
            running.since_ns = self._now_ns
            running.cycles_per_ns = cycles_per_ns
            running.version += 1
            end_ns = self._now_ns + max(1, ceil(running.left_cycles / cycles_per_ns))
            self._at(end_ns, partial(self._finish, gpu, running, running.version))

    def _cycles_per_ns(self, gpu: Gpu, activity: Activity) -> float:
        """How fast the activity's work is done now; a copy does not feel the gfx clock."""
        is_copy = activity.kernel.category == "gpu_memcpy"
        mhz = c.NOMINAL_MHZ if is_copy else gpu.clock.mhz
        return mhz / 1e3 / self._slowdown(gpu, activity)

    def _slowdown(self, gpu: Gpu, activity: Activity) -> float:
        if not gpu.collectives or not activity.is_compute:
            return 1.0
        if activity.sensitive:
            return self._config.sensitive_slowdown
        transfers = any(
            each.collective is not None and each.collective.end_ns >= 0 for each in gpu.collectives
        )
        return c.TRANSFER_SLOWDOWN if transfers else c.SPIN_SLOWDOWN

    def _finish(self, gpu: Gpu, running: Running, version: int) -> None:
        if version == running.version:
            del gpu.running[running.activity.stream]
            self._end(gpu, running.activity)

    def _end(self, gpu: Gpu, activity: Activity) -> None:
        activity.end_ns = self._now_ns
        gpu.busy.discard(activity.stream)
        if gpu.awaited:
            while gpu.awaited and gpu.awaited[-1].end_ns >= 0:
                gpu.awaited.pop()
            if not gpu.awaited:
                host = gpu.host
                host.now_ns = max(host.now_ns, self._now_ns) + HOST_WAKE_NS
                self._run_host(gpu)
                return
        self._poll(gpu)
