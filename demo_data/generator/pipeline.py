"""A step of 32 ranks, tp 2 x pp 4 x dp 4 in Megatron's order, with a one-forward-one-backward
schedule: a stage that is too long and a hot slot are planted.

Each rank has a Kineto trace, and telemetry in CharLLM-PPT's format. Times follow from the schedule
alone: a microbatch runs on a stage once the stage is free and its neighbour has sent it; both
tensor-parallel ranks meet in each layer, data-parallel ones at the end of the step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

START_S = 1_726_000_000
GEMM = "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float> >()"
NCCL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
EVALUATE = "autograd::engine::evaluate_function: MmBackward0"
MAIN, AUTOGRAD = 100, 101


@dataclass(frozen=True)
class Pipeline:
    """Sizes, times in µs, and what is planted."""

    tp: int = 2
    pp: int = 4
    dp: int = 4
    microbatches: int = 8
    steps: int = 3
    layers: int = 2
    forward_us: int = 400
    """Of a layer of a microbatch; backward takes twice as long."""
    reduce_us: int = 40
    send_us: int = 30
    long_stage: int = 2
    long_by: float = 1.3
    hot_rank: int = 13
    hot_by: float = 1.08
    ranks_per_node: int = 8
    sample_us: int = 5_000
    names_groups: bool = True
    """Whether the traces name their process groups."""
    names_microbatches: bool = False
    """Whether annotations name the microbatches."""
    recompute: bool = False
    """Whether backward runs the products of forward again."""
    overlap: bool = False
    """Whether gradients are reduced next to the last layer's backward, not after it."""
    gradients_us: int = 300

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.tp * self.pp * self.dp

    def rank(self, stage: int, replica: int, shard: int) -> int:
        """The rank at coordinates, in Megatron's order."""
        return shard + self.tp * (replica + self.dp * stage)

    def layer_us(self, rank: int, stage: int, backward: bool) -> int:
        """How long the products of a layer take on a rank."""
        long = self.long_by if stage == self.long_stage else 1.0
        hot = self.hot_by if rank == self.hot_rank else 1.0
        return round(self.forward_us * (1 + backward) * long * hot)


def fitting(config: Pipeline) -> Pipeline:
    """The settings with the long stage and the hot rank among those that there are."""
    long_stage = min(config.long_stage, config.pp - 1)
    return replace(config, long_stage=long_stage, hot_rank=min(config.hot_rank, config.ranks - 1))


def schedule(config: Pipeline, stage: int) -> list[tuple[bool, int]]:
    """The (is backward, microbatch) of a stage in order: one forward, one backward."""
    warmup = min(config.pp - stage - 1, config.microbatches)
    order = [(False, number) for number in range(warmup)]
    for number in range(config.microbatches - warmup):
        order += [(False, warmup + number), (True, number)]
    order += [(True, number) for number in range(config.microbatches - warmup, config.microbatches)]
    return order


class _Rank:
    """The events of one rank."""

    def __init__(self, config: Pipeline, rank: int) -> None:
        self.rank = rank
        self.stage = rank // (config.tp * config.dp)
        self.replica = rank // config.tp % config.dp
        self.shard = rank % config.tp
        self.free_us = 0
        self.last_layer_us = 0
        """When the last layer so far began."""
        self.events: list[dict[str, Any]] = []
        self._correlation = 0
        self._external = 0

    def host(self, category: str, name: str, begin: int, end: int, thread: int = MAIN) -> None:
        self._external += 1
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 100,
                "tid": thread,
                "ts": begin,
                "dur": end - begin,
                "args": {"External id": self._external},
            }
        )

    def launch(
        self,
        name: str,
        start: int,
        duration: int,
        stream: int = 7,
        op: str = "aten::mm",
        thread: int = MAIN,
        **args: Any,
    ) -> None:
        """A kernel, its launch 6 µs before, and the operator around that."""
        self._correlation += 1
        at = start - 6
        self.host("cpu_op", op, at - 1, at + 3, thread)
        base = {"ph": "X", "pid": 100, "args": {"correlation": self._correlation}}
        call = {"cat": "cuda_runtime", "name": "hipLaunchKernel", "tid": thread}
        self.events.append(base | call | {"ts": at, "dur": 2})
        place = {"device": self.rank % 8, "stream": stream, "correlation": self._correlation}
        kernel = {"cat": "kernel", "name": name, "pid": self.rank % 8, "tid": stream}
        self.events.append(
            {"ph": "X", **kernel, "ts": start, "dur": duration, "args": place | args}
        )


def write(folder: Path, config: Pipeline = Pipeline()) -> dict[str, Any]:
    """Write the run to a directory; returns what is true of it."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = [_Rank(config, rank) for rank in range(config.ranks)]
    groups = process_groups(config)
    at, steps = 1_000, []
    for step in range(config.steps):
        begin = at
        at = _step(config, ranks, groups, step, begin)
        steps.append((begin, at))
        at += 200
    for rank in ranks:
        _write_trace(folder, config, rank, groups)
    _write_telemetry(folder, config, at)
    ideal = (config.pp - 1) / (config.microbatches + config.pp - 1)
    return {
        "steps_us": steps,
        "ideal_bubble": ideal,
        "groups": groups,
        "long_stage": config.long_stage,
        "long_by": config.long_by,
        "hot_rank": config.hot_rank,
        "hot_by": config.hot_by,
    }


def process_groups(config: Pipeline) -> dict[str, list[list[int]]]:
    """Dimension → its groups of ranks."""
    stages, replicas, shards = range(config.pp), range(config.dp), range(config.tp)
    return {
        "tp": [[config.rank(p, d, t) for t in shards] for p in stages for d in replicas],
        "pp": [[config.rank(p, d, t) for p in stages] for d in replicas for t in shards],
        "dp": [[config.rank(p, d, t) for d in replicas] for p in stages for t in shards],
    }


_DESCRIPTIONS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
}


def _comm(groups: dict[str, list[list[int]]], kind: str, rank: int, name: str, size: int) -> Any:
    number, own = next((n, each) for n, each in enumerate(groups[kind]) if rank in each)
    return {
        "Collective name": name,
        "In msg nelems": size,
        "Out msg nelems": size,
        "dtype": "BFloat16",
        "Group size": len(own),
        "Process Group Name": f"{kind}{number}",
        "Process Group Description": _DESCRIPTIONS[kind],
        "Process Group Ranks": json.dumps(own),
    }


def _step(
    config: Pipeline,
    ranks: list[_Rank],
    groups: dict[str, list[list[int]]],
    step: int,
    begin: int,
) -> int:
    """One iteration from a time on; returns its end."""
    for rank in ranks:
        rank.free_us = begin
    sent: dict[tuple[bool, int, int, int], int] = {}
    left = {stage: schedule(config, stage) for stage in range(config.pp)}
    while any(left.values()):
        for stage, order in left.items():
            if not order:
                continue
            is_backward, number = order[0]
            source = stage + 1 if is_backward else stage - 1
            is_first = source in (-1, config.pp)
            if not is_first and (is_backward, number, source, 0) not in sent:
                continue
            order.pop(0)
            for replica in range(config.dp):
                came = 0 if is_first else sent[is_backward, number, source, replica]
                ends = _microbatch(config, ranks, groups, stage, replica, is_backward, number, came)
                sent[is_backward, number, stage, replica] = ends
    ends_at = begin
    for stage in range(config.pp):
        for shard in range(config.tp):
            own = [ranks[config.rank(stage, replica, shard)] for replica in range(config.dp)]
            ready = {r.rank: r.last_layer_us if config.overlap else r.free_us for r in own}
            ends = max(ready.values()) + 20 + config.gradients_us
            for rank in own:
                start = ready[rank.rank] + 20
                args = _comm(groups, "dp", rank.rank, "reduce_scatter", 4_000_000)
                rank.launch(NCCL, start, ends - start, 9, "nccl:reduce_scatter", **args)
                done = max(ends, rank.free_us)
                rank.host("user_annotation", "Optimizer.step#AdamW.step", done, done + 40)
                rank.launch(ADAM, done + 20, 150, op="aten::_fused_adamw_")
                rank.free_us = done + 180
                ends_at = max(ends_at, rank.free_us)
    for rank in ranks:
        rank.host("user_annotation", f"ProfilerStep#{step + 3}", begin - 50, ends_at + 20)
    return ends_at


def _microbatch(
    config: Pipeline,
    ranks: list[_Rank],
    groups: dict[str, list[list[int]]],
    stage: int,
    replica: int,
    is_backward: bool,
    number: int,
    came: int,
) -> int:
    """A microbatch on the ranks of a stage and replica; returns when the next stage has it."""
    own = [ranks[config.rank(stage, replica, shard)] for shard in range(config.tp)]
    thread, op = (AUTOGRAD, EVALUATE) if is_backward else (MAIN, "aten::mm")
    has_source = came > 0
    for rank in own:
        if has_source:
            start = rank.free_us + 10
            end = max(came, start + 10)
            args = _comm(groups, "pp", rank.rank, "recv", 1_000_000)
            rank.launch(NCCL, start, end - start, 11, "nccl:recv", thread, **args)
            rank.free_us = end
    began = min(rank.free_us for rank in own)
    for _ in range(config.layers):
        ends = []
        for rank in own:
            if is_backward and config.recompute:
                took = config.layer_us(rank.rank, stage, False)
                frame = "torch/utils/checkpoint.py(1124): recompute_fn"
                rank.host("python_function", frame, rank.free_us, rank.free_us + 8, thread)
                rank.launch(GEMM, rank.free_us + 10, took, thread=thread)
                rank.free_us += 10 + took
            rank.last_layer_us = rank.free_us
            took = config.layer_us(rank.rank, stage, is_backward)
            rank.launch(GEMM, rank.free_us + 10, took, op=op, thread=thread)
            ends.append(rank.free_us + 10 + took)
        meet = max(ends) + 4 + config.reduce_us
        for rank, end in zip(own, ends, strict=True):
            args = _comm(groups, "tp", rank.rank, "allreduce", 2_000_000)
            rank.launch(NCCL, end + 4, meet - end - 4, 8, "nccl:all_reduce", thread, **args)
            rank.free_us = meet
    meet = own[0].free_us
    if config.names_microbatches:
        name = f"{'backward' if is_backward else 'forward'} microbatch {number}"
        for rank in own:
            rank.host("user_annotation", name, began, meet - 20)
    target = stage - 1 if is_backward else stage + 1
    if 0 <= target < config.pp:
        for rank in own:
            args = _comm(groups, "pp", rank.rank, "send", 1_000_000)
            rank.launch(NCCL, meet + 4, config.send_us, 12, "nccl:send", thread, **args)
            rank.free_us = meet + 8
    return meet + 4 + config.send_us


def _write_trace(
    folder: Path, config: Pipeline, rank: _Rank, groups: dict[str, list[list[int]]]
) -> None:
    listed = [
        {"pg_name": f"{kind}{n}", "pg_desc": _DESCRIPTIONS[kind], "ranks": ranks}
        for kind, all_of_kind in groups.items()
        for n, ranks in enumerate(all_of_kind)
        if rank.rank in ranks
    ]
    about: dict[str, Any] = {"backend": "nccl", "rank": rank.rank, "world_size": config.ranks}
    if config.names_groups:
        about["pg_config"] = listed
    events = rank.events
    if not config.names_groups:
        for event in events:
            for key in ("Process Group Description", "Process Group Ranks", "Process Group Name"):
                event["args"].pop(key, None)
    document = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": START_S * 10**9,
        "distributedInfo": about,
        "deviceProperties": [{"name": "AMD Instinct MI300X"}],
        "chopper_generated": {"generator": "demo_data/generator/pipeline.py"},
        "traceEvents": events,
    }
    (folder / f"rank{rank.rank}.json").write_text(json.dumps(document))


def _write_telemetry(folder: Path, config: Pipeline, end_us: int) -> None:
    """Power, clock and temperature of every rank; the hot one is slower by as much as it runs."""
    for rank in range(config.ranks):
        is_hot = rank == config.hot_rank
        rear = rank % config.ranks_per_node >= config.ranks_per_node // 2
        clock = 1900 / (config.hot_by if is_hot else 1.0)
        heat = 62 + 6 * rear + 22 * is_hot
        rows: dict[str, list[str]] = {"gpu_power": [], "gpu_thermal": [], "sm_clock": []}
        for sample, at_us in enumerate(range(0, end_us, config.sample_us)):
            stamp = f"{START_S + at_us // 10**6}.{at_us % 10**6:06d}"
            rows["gpu_power"].append(f"{stamp},{600 + 10 * (sample % 3) - 40 * is_hot}\n")
            rows["gpu_thermal"].append(f"{stamp},{heat + sample % 2}\n")
            rows["sm_clock"].append(f"{stamp},{clock + (sample % 2):.1f}\n")
        for name, lines in rows.items():
            (folder / f"{name}_{rank}.csv").write_text("".join(lines))
