"""The FSDP1 training loop of one rank: flat parameters, and memory that is freed by chance.

The annotations are those of PyTorch's FullyShardedDataParallel. Gradients come back together by
`cat`, are widened and divided, and leave through a reduce-scatter.
"""

from __future__ import annotations

from generator import constants as c
from generator.host import Program
from generator.kernels import BF16, FP32, Kernel, elementwise, memory_bound, multi_tensor
from generator.model import EMBEDDING, HEAD, LAYER, Call, Node
from generator.records import (
    ALL_GATHER_STREAM,
    COPY_IN_STREAM,
    POST_BACKWARD_STREAM,
    REDUCE_SCATTER_STREAM,
    Place,
)
from generator.training import ROOT, Training

FSDP = "FullyShardedDataParallel"


class FlatTraining(Training):
    """FSDP1 around Llama-3-8B on one rank."""

    views = Call("aten::split_with_sizes", node=Node("SplitWithSizesBackward0"))
    before_backward = f"{FSDP}._pre_backward_hook"
    after_backward = f"{FSDP}._post_backward_final_callback"

    def _forward(self, iteration: int) -> Program:
        host = self.host
        retries = self.config.retries(host.rank, iteration)
        with host.annotation(f"{FSDP}.forward"):
            with host.annotation(f"{FSDP}._root_pre_forward"):
                host.spend(15_000)
            with host.annotation(f"{FSDP}._pre_forward"):
                self._gather(ROOT, "_pre_forward")
                self._wait_for_gathered(ROOT)
                host.run(self.views)
            host.operate(EMBEDDING)
            for layer in range(self.config.layers):
                with self._layer(layer), host.annotation(f"{FSDP}.forward"):
                    if layer in retries:
                        yield from self._retry(Place(iteration, layer))
                    self._pre_forward(layer)
                    for operation in LAYER:
                        host.operate(operation)
                    with host.annotation(f"{FSDP}._post_forward"):
                        host.spend(8_000)
            for operation in HEAD:
                host.operate(operation)
            with host.annotation(f"{FSDP}._post_forward"):
                host.spend(5_000)

    def _retry(self, place: Place) -> Program:
        """Gives cached memory back, for which the GPU has to be done, and asks for more."""
        host = self.host
        host.retries[len(host.activities)] = place
        freed = host.call_runtime("hipFree", 1_500)
        yield list(host.activities)
        host.spend(c.HIP_FREE_NS)
        freed.end_ns = host.now_ns
        host.call_runtime("hipMalloc", c.HIP_MALLOC_NS)

    def _pre_forward(self, layer: int) -> None:
        host = self.host
        with host.annotation(f"{FSDP}._pre_forward"):
            if layer not in self._gathered:
                self._gather(layer, "_pre_forward")
            self._wait_for_gathered(layer)
            if layer + 1 < self.config.layers:
                with host.annotation(f"{FSDP}._pre_forward_prefetch"):
                    self._gather(layer + 1, "_pre_forward_prefetch")
            host.run(self.views)

    def _pre_backward(self, layer: int) -> None:
        host = self.host
        with host.annotation(f"{FSDP}._pre_backward_hook"):
            if layer not in self._gathered:
                self._gather(layer, "_pre_backward_hook")
            self._wait_for_gathered(layer)
            if layer > 0:
                with host.annotation(f"{FSDP}._pre_backward_prefetch"):
                    self._gather(layer - 1, "_pre_backward_prefetch")

    def _post_backward(self, layer: int | None) -> None:
        host = self.host
        elements = self._elements(layer)
        with host.labelled(host.label.at("split_with_sizes", layer)), host.op("aten::cat"):
            # The last reduce-scatter's input is freed before this one's is made.
            joined = host.launch(_cat(elements), after=self._reduced)
        with host.annotation(f"{FSDP}._post_backward_hook"):
            stream = POST_BACKWARD_STREAM
            with host.labelled(host.label.at(f"{FSDP}._post_backward_hook", layer)):
                with host.op("aten::_to_copy"):
                    widen = elementwise("to_float", elements, elements * (BF16 + FP32))
                    host.launch(widen, stream, after=(joined,))
                with host.op("aten::div_"):
                    divide = elementwise("divide", elements, 2 * elements * FP32)
                    divided = host.launch(divide, stream)
            self._copied_in[layer] = divided
            with host.labelled(host.label.at("reduce_scatter", layer)):
                shard = self._shard(layer)
                reduced = host.communicate(
                    "reduce_scatter", REDUCE_SCATTER_STREAM, shard, "Float", (divided,)
                )
            self._reduced = (reduced,)

    def _gather(self, layer: int | None, where: str = "_pre_forward") -> None:
        """Narrows the shard of a layer and starts its all-gather."""
        host = self.host
        shard = self._shard(layer)
        with host.labelled(host.label.at(f"{FSDP}.{where}", layer)), host.op("aten::_to_copy"):
            narrowed = host.launch(multi_tensor("copy", shard, BF16 + FP32), COPY_IN_STREAM)
        with host.labelled(host.label.at("all_gather", layer)):
            self._gathered[layer] = host.communicate(
                "all_gather", ALL_GATHER_STREAM, shard, "BFloat16", (narrowed,)
            )

    def _wait_for_gathered(self, layer: int | None) -> None:
        """Lets compute wait; the parameters are views of what was gathered."""
        self.host.compute_after = (*self.host.compute_after, self._gathered.pop(layer))


def _cat(elements: int) -> Kernel:
    return memory_bound(
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<"
        "at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 1, 128, 1>"
        "(at::native::(anonymous namespace)::OpaqueType<2u>*, "
        "at::native::(anonymous namespace)::CatArrInputTensorMetadata<"
        "at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 128, 1>, "
        "at::native::(anonymous namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)",
        2 * elements * BF16,
        1216,
        512,
        written=1 / 2,
    )
