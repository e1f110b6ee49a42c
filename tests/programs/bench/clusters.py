"""Causes as engineers know them from clusters, planted event by event like the incidents.

    python -m tests.programs.bench.clusters OUT [--seed N] [--only ID,ID] [--report FILE]

None is an option of a generator, and none is among the incidents (`incidents.py`, which plants,
replays and judges them).
"""

from __future__ import annotations

import json
import random
from typing import Final

from tests.programs.bench.incidents import (
    LOADING,
    OPTIMIZER,
    Act,
    Incident,
    Meeting,
    Rank,
    Run,
    main,
    steps_of,
    window,
    within,
)


def computes(rank: Rank, step: int, pattern: str = "") -> list[Act]:
    """The kernels of a step that compute, in their order."""
    begin, end = window(rank, step)
    own = (a for a in rank.acts if a.is_compute and begin <= a.start < end and not a.added)
    return [a for a in own if pattern in a.name]


def meet(run: Run, behind: list[Act], model: Act, us: float, op: str) -> None:
    """A collective like another one on all ranks, behind a kernel of each."""
    meeting = Meeting(extra=us)
    for rank, before in zip(run.ranks, behind, strict=True):
        act = rank.kernel(before, model.name, us, op)
        own = {k: v for k, v in model.event["args"].items() if "id" not in k and k != "correlation"}
        place = {k: act.event["args"][k] for k in ("External id", "correlation", "device")}
        act.event["args"] = own | place
        act.event["tid"] = model.event["tid"]
        act.meeting = meeting
        meeting.acts.append(act)


def collectives(rank: Rank, step: int, kind: str) -> list[Act]:
    """The collectives of a kind in a step, in their order."""
    begin, end = window(rank, step)
    found = [a for a in rank.acts if a.meeting is not None and begin <= a.start < end]
    return [a for a in found if kind in str(a.event["args"].get("Collective name", ""))]


# --- one GPU --------------------------------------------------------------------------------------


def remapped(run: Run, rng: random.Random) -> None:
    rank = run[2]
    for step in range(len(rank.steps())):
        for act in rng.sample(computes(rank, step), 3):
            act.took += 5_000


def shared(run: Run, _: random.Random) -> None:
    """Another process gets slices of GPU 1: whatever runs then takes longer."""
    for act in run.acts("", [1]):
        if act.is_compute:
            act.took += 2_500 * (int(act.end // 25_000) - int(act.start // 25_000))


def tuned_otherwise(run: Run, _: random.Random) -> None:
    """The autotuner of rank 1 chose another kernel for attention."""
    for act in run.acts("flash_bwd", [1]):
        act.event["name"] = act.name.replace("<128, 64, 128", "<128, 32, 64")
        act.took *= 1.6


# --- hosts ----------------------------------------------------------------------------------------


def slow_workers(run: Run, _: random.Random) -> None:
    """Each rank has four workers that load data, one of them slow: late at every fourth step."""
    for rank, step in steps_of(run):
        if step % 4 == rank.number % 4:
            rank.host(within(rank, step, 0.0), LOADING, 18_000, "user_annotation")


def powersave(run: Run, _: random.Random) -> None:
    """The governor keeps the processors at a low clock: all that hosts do takes longer."""
    for rank, step in steps_of(run):
        for op in rank.outermost(*window(rank, step)):
            if op["dur"] < 2_000:
                rank.pause(op["ts"] + 0.6 * op["dur"], 2 * op["dur"])


def locked_driver(run: Run, rng: random.Random) -> None:
    """An agent that watches GPU 1 holds the driver's lock: some launches wait for it."""
    rank = run[1]
    for step in range(len(rank.steps())):
        for act in rng.sample(computes(rank, step), 8):
            if act.call is not None:
                rank.pause(act.call["ts"] + 1.0, 12_000)


def flushed(run: Run, _: random.Random) -> None:
    """Rank 2 empties its cache at the end of each step, and allocates again in the next."""
    rank = run[2]
    for step in range(len(rank.steps())):
        at = within(rank, step, 1.0)
        for _n in range(6):
            rank.free(at, 700)
        for share in (0.03, 0.06, 0.09, 0.12, 0.15, 0.18):
            rank.call(within(rank, step, share), "Malloc", 900)


def blocking(run: Run, _: random.Random) -> None:
    """CUDA_LAUNCH_BLOCKING=1 is still set: each launch returns when its kernel has ended."""
    for rank in run.ranks:
        for act in list(rank.acts):
            if act.call is not None and act.meeting is None:
                rank.pause(act.call["ts"] + act.call["dur"] - 0.1, 12, wait=act)


def masked(run: Run, _: random.Random) -> None:
    """The mask of each attention is made by the host and copied from pageable memory."""
    for rank in run.ranks:
        for op in rank.ops("aten::scaled_dot_product_attention"):
            at = op["ts"] - 0.5
            rank.host(at, "aten::tril", 350)
            rank.copy(at, "HtoD", 700, 16_777_216, "aten::_to_copy")


def offloaded(run: Run, _: random.Random) -> None:
    """The optimizer runs on the hosts: gradients come, parameters go back."""
    for rank in run.ranks:
        for note in [e for e in rank.events if OPTIMIZER.match(str(e.get("name")))]:
            at = note["ts"] + 0.5
            rank.copy(at, "DtoH", 9_000, 220_000_000)
            name = "deepspeed/ops/adam/cpu_adam.py(154): step"
            rank.host(at, name, 25_000, "python_function")
            rank.copy(at, "HtoD", 9_000, 220_000_000)
        for act in rank.acts:
            if "Adam" in act.name:
                act.took = 3.0


# --- first steps ----------------------------------------------------------------------------------


def autotuned(run: Run, _: random.Random) -> None:
    """In the first step a compiler tries kernels for three products, and waits for each."""
    for rank in run.ranks:
        for act in computes(rank, 0, "gemm")[2:5]:
            for n in range(12):
                rank.kernel(act, f"triton_tem_fused_mm_{n}", act.took * (1 + n / 12), "aten::mm")
            op = rank.op_of(act)
            assert op is not None
            rank.synchronize(op["ts"] + op["dur"] + 0.01)


def loaded_late(run: Run, _: random.Random) -> None:
    """A new shape needs kernels that no step has launched before: hosts load them meanwhile."""
    for rank in run.ranks:
        for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
            name = "hipModuleLoadData" if rank.is_hip else "cuModuleLoadData"
            rank.host(within(rank, 3, share), name, 12_000, "cuda_driver")


# --- communication --------------------------------------------------------------------------------


def not_prefetched(run: Run, _: random.Random) -> None:
    """The parameters of two layers are gathered when they are needed, in each step's forward."""
    for step in range(len(run[0].steps())):
        gathers = [collectives(rank, step, "allgather")[2:4] for rank in run.ranks]
        for old in zip(*gathers, strict=True):
            behind = [_drop(gather) for gather in old]
            us = min(a.end for a in old) - max(a.start for a in old)
            meet(run, behind, old[0], us, "nccl:_all_gather_base")


def _drop(gather: Act) -> Act:
    """Take a collective out of the run; returns the last kernel before what waited for it."""
    rank = gather.rank
    users = [a for a in rank.acts if gather in a.after]
    first = min(users, key=lambda a: a.start)
    for act in users:
        act.after.remove(gather)
    rank.acts.remove(gather)
    rank.events.remove(gather.event)
    rank.events.remove(gather.call or gather.event)
    if gather.meeting is not None:
        gather.meeting.acts.remove(gather)
    return max(
        (a for a in rank.acts if a.is_compute and a.start < first.start), key=lambda a: a.start
    )


def reduced_metrics(run: Run, _: random.Random) -> None:
    """Four metrics are averaged over all ranks and read back at the end of each step."""
    for step in range(len(run[0].steps())):
        model = collectives(run[0], step, "allreduce")[0]
        losses = []
        for rank in run.ranks:
            begin, end = window(rank, step)
            own = [a for a in rank.acts if begin <= a.start < end and "DtoH" in a.name]
            losses.append(own[-1])
        for _n in range(4):
            meet(run, losses, model, 60.0, "nccl:all_reduce")
            for rank in run.ranks:
                at = window(rank, step)[1] - 20
                rank.copy(at, "DtoH", 3, 4, "aten::item", 40)
                rank.pause(at, 600)


def in_full_precision(run: Run, _: random.Random) -> None:
    """Gradients are reduced in fp32: twice the bytes."""
    for meeting in run.meetings:
        meeting.extra = meeting.took
        for act in meeting.acts:
            act.event["args"]["dtype"] = "Float"


def one_way(run: Run, _: random.Random) -> None:
    """What rank 10 sends to the stage before it takes longer, the other way is fine."""
    for act in run.acts("nccl", [10]):
        args = act.event["args"]
        group = json.loads(args.get("Process Group Ranks", "[]"))
        if args.get("Collective name") == "send" and act.call and act.call["tid"] != 100 and group:
            act.took += 1_500


CLUSTERS: Final = [
    Incident(
        "remapped",
        "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html",
        "fsdp2b",
        "three kernels a step of GPU 2 stall for 5 ms while rows of its memory are remapped",
        remapped,
        r"longer|slower|stall|irregular|straggl",
        r"GPU 2\b",
    ),
    Incident(
        "shared",
        "https://docs.nvidia.com/deploy/mps/index.html",
        "ddp",
        "another process gets 2.5 ms of each 25 ms of GPU 1",
        shared,
        r"longer|slower|stall|irregular|straggl",
        r"GPU 1\b",
    ),
    Incident(
        "tuned_otherwise",
        "https://pytorch.org/docs/stable/notes/randomness.html",
        "ddp",
        "rank 1 runs another kernel for the attention's backward, which takes 1.6 times as long",
        tuned_otherwise,
        r"longer|slower|straggl",
        r"GPU 1\b.*(attention|flash)",
    ),
    Incident(
        "slow_workers",
        "https://github.com/pytorch/pytorch/issues/13246",
        "styled module",
        "each rank's data are 18 ms late at every fourth step, at other ones on each",
        slow_workers,
        r"data",
        r"in turn|GPU [0-3]|every four",
    ),
    Incident(
        "powersave",
        "https://docs.kernel.org/admin-guide/pm/cpufreq.html",
        "small",
        "the processors' clock is low: all that hosts do takes 3 times as long",
        powersave,
        r"host|launch",
        r"host|launch|CPU",
    ),
    Incident(
        "locked_driver",
        "https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/index.html",
        "tp",
        "eight launches a step of rank 1 wait 12 ms for the driver",
        locked_driver,
        r"host|[Ll]aunch",
        r"GPU 1\b",
    ),
    Incident(
        "flushed",
        "https://pytorch.org/docs/stable/notes/cuda.html",
        "styled module",
        "rank 2 empties its cache at each step's end",
        flushed,
        r"Free|Malloc|allocat",
        r"GPU 2\b",
    ),
    Incident(
        "blocking",
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html",
        "ddp",
        "launches return when their kernel has ended (CUDA_LAUNCH_BLOCKING)",
        blocking,
        r"host|[Ll]aunch|block|[Ss]ynchron",
        r"host|[Ll]aunch|LaunchKernel",
    ),
    Incident(
        "masked",
        "https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "ddp",
        "each attention waits for a mask that the host makes and copies",
        masked,
        r"cop(y|ies)|Memcpy",
        r"attention|tril|Memcpy|to_copy|layer",
    ),
    Incident(
        "offloaded",
        "https://arxiv.org/abs/2101.06840",
        "ddp",
        "the optimizer runs on the hosts",
        offloaded,
        r"host|cop(y|ies)|cpu_adam",
        r"optimizer|cpu_adam|cop(y|ies)",
    ),
    Incident(
        "autotuned",
        "https://pytorch.org/docs/stable/torch.compiler.html",
        "ddp six",
        "in the first step 36 kernels are tried out",
        autotuned,
        r"longer|more (work|kernels)|autotun|compil",
        r"step 10|first step",
    ),
    Incident(
        "loaded_late",
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#lazy-loading",
        "styled module",
        "in step 14 a new shape's kernels are loaded, 96 ms on each host",
        loaded_late,
        r"ModuleLoad|host|longer",
        r"step 14",
    ),
    Incident(
        "not_prefetched",
        "https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
        "styled busy",
        "two layers' parameters are gathered only when they are needed",
        not_prefetched,
        r"exposed|communication|gather",
        r"layer|gather",
    ),
    Incident(
        "reduced_metrics",
        "https://lightning.ai/docs/pytorch/stable/visualize/logging_advanced.html",
        "ddp",
        "four metrics are averaged over all ranks and read back at each step's end",
        reduced_metrics,
        r"item|read|sync|Memcpy|DtoH|untraced",
        r"item|end|after the last|optimizer|data|Memcpy",
    ),
    Incident(
        "in_full_precision",
        "https://pytorch.org/docs/stable/ddp_comm_hooks.html",
        "slow_link",
        "gradients are reduced in fp32",
        in_full_precision,
        r"exposed|communication|reduce",
        r"reduce|communication|link",
    ),
    Incident(
        "one_way",
        "https://arxiv.org/abs/2505.05713",
        "pipeline",
        "what rank 10 sends to the stage before it takes 1.5 ms longer",
        one_way,
        r"transfer|link|slow|send|communication",
        r"\b10\b",
    ),
]

if __name__ == "__main__":
    main(incidents=CLUSTERS)
