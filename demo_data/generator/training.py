"""The FSDP2 training loop of one rank, as a program of its host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from generator import constants as c
from generator.host import Host, Program
from generator.kernels import BF16, FP32, Kernel, elementwise, memory_bound, multi_tensor
from generator.model import (
    DATA,
    EMBEDDING,
    HEAD,
    LAYER,
    LOSS_GRADIENT,
    LOSS_VALUE,
    RECOMPUTED,
    Call,
    Node,
)
from generator.records import (
    ALL_GATHER_STREAM,
    ALL_REDUCE_STREAM,
    COMPUTE_STREAM,
    COPY_IN_STREAM,
    REDUCE_SCATTER_STREAM,
    Activity,
    Label,
)

ROOT: int | None = None
POST_BACKWARD = Node("RegisterPostBackwardFunctionBackward")
REGISTER_POST_BACKWARD = Call("RegisterPostBackwardFunction", node=POST_BACKWARD)
OPTIMIZER_CHUNKS = 8


def _copy_out(elements: int) -> Kernel:
    return memory_bound(
        "void at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel"
        "(char**, char**, long*, long*, long*, long, long, long)",
        2 * elements * BF16,
        2048,
        512,
    )


def _chunk_cat(elements: int) -> Kernel:
    return memory_bound(
        "void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>"
        "(c10::BFloat16**, float*, long*, long*, long*, long*, long*, long, long, long, long)",
        elements * (BF16 + FP32),
        2048,
        512,
    )


class Training:
    """FSDP2 around Llama-3-8B on one rank: parameters gathered ahead, gradients scattered."""

    views = REGISTER_POST_BACKWARD
    """The call whose node is the last of a layer's backward."""
    before_backward = "FSDP::pre_backward"
    after_backward = "FSDP::root_post_backward_callback"

    def __init__(self, host: Host) -> None:
        self.host = host
        self.config = host.config
        self._gathered: dict[int | None, Activity] = {}
        self._copied_out: tuple[Activity, ...] = ()
        self._reduced: tuple[Activity, ...] = ()
        self._copied_in: dict[int | None, Activity] = {}
        self._loss: Activity
        self.group = host.world
        """The ranks that parameters are sharded over."""
        self.layers = range(self.config.layers)
        self.root_params = c.ROOT_PARAMS

    def program(self) -> Program:
        """The iterations one after another, the first one up to the last."""
        for iteration in range(c.FIRST_ITERATION, self.config.last_iteration + 1):
            yield from self._iteration(iteration)

    def _iteration(self, iteration: int) -> Program:
        host = self.host
        label = Label(iteration)
        if not self.config.has_cut and iteration == c.FIRST_ITERATION + 1:
            host.profiler_start_ns = host.now_ns
        with (
            host.annotation(f"ProfilerStep#{iteration}"),
            host.annotation(f"Iteration{iteration}", shown=self.config.annotations),
        ):
            with host.labelled(replace(label, phase="data")), self._range("dl"):
                for call in DATA:
                    host.run_plain(call)
            with host.labelled(replace(label, phase="forward")):
                yield from self._forward(iteration)
            with host.labelled(replace(label, phase="backward")):
                yield from self._backward(iteration)
            with host.labelled(replace(label, phase="optimizer")):
                self._optimize()
            yield from host.synchronise()

    @contextmanager
    def _range(self, operation: str) -> Iterator[None]:
        host = self.host
        shown = self.config.annotations
        label = host.label.at(operation, None)
        with host.annotation(operation, shown=shown), host.labelled(label):
            yield

    @contextmanager
    def _layer(self, layer: int) -> Iterator[None]:
        host = self.host
        with (
            host.annotation(f"Layer{layer}", shown=self.config.annotations),
            host.labelled(replace(host.label, layer=layer)),
        ):
            yield

    def _forward(self, iteration: int) -> Program:
        host = self.host
        with host.annotation("FSDP::root_pre_forward"):
            host.spend(15_000)
        with host.annotation("FSDP::pre_forward"):
            self._gather(ROOT)
            self._wait_for_gathered(ROOT)
            host.run(self.views)
        host.operate(EMBEDDING)
        for layer in range(self.config.layers):
            late = self.config.is_host_bound(host.rank, iteration, layer)
            if late and layer == self.config.host_bound_layers.start:
                yield from self._read_loss()
            with self._layer(layer):
                self._pre_forward(layer)
                for operation in LAYER:
                    host.operate(operation, stall_ns=c.STALL_NS if late else 0)
                with host.annotation(f"FSDP::post_forward (layers.{layer})"):
                    host.spend(8_000)
        for operation in HEAD:
            host.operate(operation)
        self._loss = host.activities[-1]
        with host.annotation("FSDP::post_forward"):
            host.spend(5_000)

    def _read_loss(self) -> Program:
        """Reads a value back, for which the host has to wait until the GPU has caught up."""
        host = self.host
        with host.op("aten::item"), host.op("aten::_local_scalar_dense"):
            copy = host.launch(LOSS_VALUE)
            yield [copy]
            copy.call.end_ns = host.now_ns

    def _pre_forward(self, layer: int) -> None:
        host = self.host
        with host.annotation(f"FSDP::pre_forward (layers.{layer})"):
            if layer not in self._gathered:
                self._gather(layer)
            self._wait_for_gathered(layer)
            if layer + 1 < self.config.layers:
                with host.annotation(f"FSDP::forward_prefetch for layers.{layer + 1}"):
                    self._gather(layer + 1)
            host.run(self.views)

    def _backward(self, iteration: int) -> Program:
        host = self.host
        with self._range("l"):
            host.run_plain(LOSS_GRADIENT)
            with host.on_thread(host.autograd_thread):
                with host.annotation(self.before_backward):
                    host.spend(9_000)
                current = self.config.layers
                while host.tape:
                    forward, node, label = host.tape.pop()
                    layer = label.layer
                    if layer is not None and layer < current:
                        current = layer
                        cut = self.config.has_cut and iteration == c.FIRST_ITERATION
                        if cut and layer == self.config.cut_layer:
                            yield from self._start_profiler()
                        self._pre_backward(layer)
                    with (
                        host.labelled(replace(label, phase="backward")),
                        host.evaluate(forward, node),
                    ):
                        if node is self.views.node and layer is not None:
                            self._post_backward(layer)
                        elif label.operation == "mlp_dp" and node.name == "MmBackward0":
                            self._recompute(layer)
                with host.annotation(self.after_backward):
                    self._post_backward(ROOT)
                    host.call_runtime("hipStreamWaitEvent", 2_000)

    def _start_profiler(self) -> Program:
        """Starts recording; that takes so long that the GPU catches up to two layers behind."""
        behind = self.config.cut_layer + 2
        yield [self._copied_in.get(behind, self._loss)]
        self.host.profiler_start_ns = self.host.now_ns

    def _recompute(self, layer: int | None) -> None:
        if self.config.recompute:
            label = replace(self.host.label, layer=layer, recompute=True)
            with self.host.labelled(label):
                for operation in RECOMPUTED:
                    self.host.operate(operation, taped=False)

    def _pre_backward(self, layer: int) -> None:
        host = self.host
        with host.annotation(f"FSDP::pre_backward (layers.{layer})"):
            if layer not in self._gathered:
                self._gather(layer)
            self._wait_for_gathered(layer)
            if layer > 0:
                with host.annotation(f"FSDP::backward_prefetch for layers.{layer - 1}"):
                    self._gather(layer - 1)

    def _post_backward(self, layer: int | None) -> None:
        host = self.host
        suffix = self._suffix(layer)
        for name in ("accumulate", "reshard"):
            with host.annotation(f"FSDP::post_backward_{name}{suffix}"):
                host.spend(4_000)
        with host.annotation(f"FSDP::post_backward_reduce{suffix}"):
            elements = self._elements(layer)
            with (
                host.labelled(host.label.at("fsdp_copy_in", layer)),
                host.op("fsdp::chunk_cat"),
                host.op("aten::_chunk_cat"),
            ):
                # The previous reduce-scatter's input is freed before this one's is made.
                copied = host.launch(_chunk_cat(elements), after=self._reduced)
            self._copied_in[layer] = copied
            with host.labelled(host.label.at("reduce_scatter", layer)):
                shard = self._shard(layer)
                stream = REDUCE_SCATTER_STREAM
                reduced = host.communicate("reduce_scatter", stream, shard, "Float", (copied,))
            self._reduced = (reduced,)

    def _elements(self, layer: int | None) -> int:
        return self._shard(layer) * len(self.group.ranks)

    def _shard(self, layer: int | None) -> int:
        params = self.root_params if layer is None else c.LAYER_PARAMS
        return -(-params // len(self.group.ranks))

    def _suffix(self, layer: int | None) -> str:
        return "" if layer is None else f" (layers.{layer})"

    def _gather(self, layer: int | None) -> None:
        """Starts the all-gather of a layer once the last one's output has been copied out."""
        host = self.host
        shard = self._shard(layer)
        suffix = self._suffix(layer)
        with (
            host.annotation(f"FSDP::all_gather_copy_in{suffix}"),
            host.labelled(host.label.at("fsdp_copy_in", layer)),
            host.op("fsdp::all_gather_copy_in"),
            host.op("aten::_foreach_copy_"),
        ):
            kernel = multi_tensor("copy", shard, BF16 + FP32)
            copied = host.launch(kernel, COPY_IN_STREAM, after=self._copied_out)
        with (
            host.annotation(f"FSDP::all_gather{suffix}"),
            host.labelled(host.label.at("all_gather", layer)),
        ):
            self._gathered[layer] = host.communicate(
                "all_gather", ALL_GATHER_STREAM, shard, "BFloat16", (copied,)
            )

    def _wait_for_gathered(self, layer: int | None) -> None:
        host = self.host
        gathered = self._gathered.pop(layer)
        with (
            host.annotation(f"FSDP::all_gather_copy_out{self._suffix(layer)}"),
            host.labelled(host.label.at("fsdp_copy_out", layer)),
            host.op("fsdp::split_with_sizes_copy"),
        ):
            kernel = _copy_out(self._elements(layer))
            self._copied_out = (host.launch(kernel, after=(gathered,)),)

    def _optimize(self) -> None:
        host = self.host
        chunk = self._own_params() // OPTIMIZER_CHUNKS
        with self._range("opt_gc"):
            self._clip(chunk)
        with self._range("opt_step"), host.annotation("Optimizer.step#AdamW.step"):
            self._begin_step()
            host.run_plain(_chunked("aten::_foreach_add_", "step", 4096, 2 * FP32, 1))
            host.run_plain(_chunked("aten::_fused_adamw_", "adamw", chunk, 7 * FP32))
        with self._range("opt_lr"):
            host.spend(20_000)
        with self._range("opt_zg"), host.annotation("Optimizer.zero_grad#AdamW.zero_grad"):
            host.spend(150_000)

    def _begin_step(self) -> None:
        """What the host does before it launches the optimizer's kernels."""

    def _own_params(self) -> int:
        """The parameters that this rank updates."""
        return (self.root_params + len(self.layers) * c.LAYER_PARAMS) // len(self.group.ranks)

    def _clip(self, chunk: int) -> None:
        """Clips the gradients by their norm over all ranks."""
        host = self.host
        cleanup = memory_bound(
            "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float>"
            "(float const*, at::native::TensorListAddresses, int)",
            64 * 1024,
            291,
            512,
        )
        norms = _chunked("aten::_foreach_norm", "norm", chunk, FP32)
        # The optimizer reads gradients that the last reduce-scatter has written.
        with host.op(norms.name):
            for kernel in (*norms.kernels, cleanup):
                host.launch(kernel, after=self._reduced)
                self._reduced = ()
        total = memory_bound(
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
            "at::native::NormTwoOps<float, float, float>, unsigned int, float, 4, 4> >"
            "(at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float>, "
            "unsigned int, float, 4, 4>)",
            4096,
            1,
            512,
        )
        host.run_plain(Call("aten::linalg_vector_norm", (total,)))
        with host.labelled(host.label.at("all_reduce", None)):
            summed = host.communicate(
                "all_reduce", ALL_REDUCE_STREAM, 1, "Float", (host.activities[-1],)
            )
        with host.op("aten::clamp"):
            host.launch(elementwise("clamp", 1, 8), COMPUTE_STREAM, after=(summed,))
        host.run_plain(_chunked("aten::_foreach_mul_", "scale", chunk, 2 * FP32))


def _chunked(
    name: str, functor: str, elements: int, bytes_per_element: float, chunks: int = OPTIMIZER_CHUNKS
) -> Call:
    return Call(name, (multi_tensor(functor, elements, bytes_per_element),) * chunks)
