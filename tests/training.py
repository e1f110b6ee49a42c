"""Small training runs in lockstep, written event by event: ranks, operators, all-reduces, pauses.

Times are in µs. Every rank's host launches its kernels on a stream of compute; an all-reduce waits
for the compute before it on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from tests.align.traces import ADAM, ADD, FLASH, GEMM, RCCL, TinyTrace

BF16 = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}
WIDTH = 1024
US_PER_TOKEN = 0.5
"""Of a square product."""


class Rank(TinyTrace):
    """A rank's host and its GPU."""

    def __init__(self, rank: int, world: int, group: Sequence[int] = ()) -> None:
        about = {"rank": rank, "world_size": world, "backend": "nccl"}
        super().__init__(process=100 + rank, device=rank, members={"distributedInfo": about})
        self.rank, self.world = rank, world
        self.now, self.free = 0, 0
        self.slower = 1.0
        self.group = list(group or range(world))

    @contextmanager
    def note_around(self, name: str, category: str = "user_annotation") -> Iterator[None]:
        begin = self.now
        yield
        self.host(category, name, begin, self.now)

    def kernel(self, kernel: str, us: float, operator: str, **args: Any) -> None:
        begin = self.now
        start = max(self.now + 12, self.free)
        self.launch(kernel, self.now + 2, start=start, duration=round(us * self.slower))
        self.free = start + round(us * self.slower)
        self.now += 6
        self.op(operator, begin, self.now, **args)

    def product(self, operation: str, tokens: int, width: int = WIDTH) -> None:
        shapes = {"Input Dims": [[tokens, WIDTH], [WIDTH, width]], **BF16}
        us = US_PER_TOKEN * tokens * width / WIDTH
        with self.note_around(operation):
            self.kernel(GEMM, us, "aten::mm", **shapes)

    def embed(self, tokens: int) -> None:
        shapes = {"Input Dims": [[50_000, WIDTH], [1, tokens], [], [], []]}
        self.kernel("indexSelectLargeIndex", 20 + tokens / 100, "aten::embedding", **shapes)

    def sync(self) -> None:
        end = max(self.free, self.now) + 3
        self.host("cuda_runtime", "cudaDeviceSynchronize", self.now, end)
        self.now = end

    def read_back(self) -> None:
        """`loss.item()`: returns shortly after the GPU is idle."""
        end = max(self.free, self.now) + 11
        self.op("aten::item", self.now, end)
        self.host("cuda_runtime", "cudaStreamSynchronize", self.now + 1, end - 1)
        self.now = end

    def pause(self, us: int, name: str = "") -> None:
        if name:
            self.host("python_function", name, self.now, self.now + us)
        self.now += us


def all_reduce(ranks: Sequence[Rank], us: int, elements: int = 1 << 20) -> None:
    """An exposed all-reduce of some ranks."""
    starts = [max(each.now + 12, each.free) for each in ranks]
    end = max(starts) + us
    for each, start in zip(ranks, starts, strict=True):
        ids = [other.rank for other in ranks]
        each.op("nccl:all_reduce", each.now, each.now + 6)
        each.launch(
            RCCL, each.now + 2, start=start, duration=end - start, stream=20,
            **{"Collective name": "allreduce", "In msg nelems": elements,
               "Out msg nelems": elements, "dtype": "BFloat16", "Group size": len(ids),
               "Process Group Name": f"group{min(ids)}", "Process Group Ranks": str(ids)},
        )  # fmt: skip
        each.now += 6
        each.free = end


def step(ranks: Sequence[Rank], number: int, tokens: Sequence[int], layers: int = 4) -> None:
    """The work of an iteration, without its annotation: forward, backward, optimizer."""
    for each, own in zip(ranks, tokens, strict=True):
        with each.note_around("forward"):
            each.embed(own)
            for layer in range(layers):
                with each.note_around(f"Layer{layer}"):
                    each.product("q_ip", own)
                    with each.note_around("attn_fa"):
                        each.kernel(FLASH, own / 4, "aten::_scaled_dot_product_flash_attention",
                                    **{"Input Dims": [[1, 8, own, 128]] * 3, **BF16})  # fmt: skip
                    each.product("mlp_up", own, 2 * WIDTH)
        with each.note_around("backward"):
            for layer in reversed(range(layers)):
                with each.note_around(f"Layer{layer}"):
                    each.product("mlp_up", own, 2 * WIDTH)
                    each.product("q_ip", own)
    all_reduce(ranks, 300)
    for each in ranks:
        with each.note_around("optimizer"):
            each.kernel(ADAM, 200, "aten::_fused_adamw_")
            each.kernel(ADD, 40, "aten::add_")


def opened(ranks: Sequence[Rank], folder: Path) -> Run:
    """The run of all ranks."""
    for each in ranks:
        each.write(folder / f"rank{each.rank}.json")
    return open_run(str(folder), jobs=1)
