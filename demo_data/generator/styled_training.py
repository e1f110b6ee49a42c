"""A small training in a chosen style: annotations, sharding, parallelism, micro-steps.

The same operations as in the demonstration runs, fewer of them, and the planted causes of a
`Planted` configuration acted out where they belong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random

from generator import constants as c
from generator.causes import SMALL_VOCAB, Cause, Style
from generator.host import Host, Program
from generator.kernels import BF16, FP32, elementwise, memcpy
from generator.model import (
    DATA,
    LOSS_GRADIENT,
    Call,
    Node,
    Operation,
    embedding,
    head,
    layer_operations,
    recomputed,
    with_repeated_heads,
)
from generator.records import ALL_REDUCE_STREAM, Activity, HostRange, Label
from generator.training import ROOT, Training

TENSOR_STREAM = 20
"""Stages pass activations on this stream and the next, gradients on the two after."""
STAGE_STREAM = 21

_LEFT_OUT = frozenset({"qkv_t", "qkv_re", "attn_or"})
"""Operations that are mostly many small kernels, without which a run is generated sooner."""
_MODULES: dict[str, tuple[str, ...]] = {
    "attn_n": ("RMSNorm",),
    "q_ip": ("Attention", "Linear"),
    "k_ip": ("Attention", "Linear"),
    "v_ip": ("Attention", "Linear"),
    "attn_fa": ("Attention",),
    "attn_op": ("Attention", "Linear"),
    "mlp_n": ("RMSNorm",),
    "mlp_gp": ("FeedForward", "Linear"),
    "mlp_gs": ("FeedForward", "SiLU"),
    "mlp_up": ("FeedForward", "Linear"),
    "mlp_gu": ("FeedForward",),
    "mlp_dp": ("FeedForward", "Linear"),
    "ie": ("Embedding",),
    "ln": ("RMSNorm",),
    "lp": ("Linear",),
}
"""Operation → the classes of the modules around it, the outermost first."""
_PER_LAYER = {"RMSNorm": 2, "Linear": 7}
"""Instances of a class in a layer, where there are several."""
_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_WAKE_HOST_NS = 60_000
"""What the host does between a value that it has read back and the next launch."""


def _is_expert(operation: str) -> bool:
    """Whether experts would run an operation: all of the feed-forward part but for its norm."""
    return operation.startswith("mlp_") and operation != "mlp_n"


class StyledTraining(Training):
    """One rank's training loop, as its configuration says."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        config = host.config
        assert isinstance(config, Style)
        self.style = config
        self.group = config.data_group(host.rank)
        self.stage = config.stage_of(host.rank)
        self.layers = config.layers_of(self.stage)
        self._resize(c.FIRST_ITERATION)
        self.root_params = 2 * SMALL_VOCAB * c.HIDDEN + c.HIDDEN
        self._reductions: tuple[Activity, ...] = ()

    def _resize(self, iteration: int) -> None:
        config = self.style
        self.sizes = config.sizes_of(self.host.rank, iteration)
        operations = with_repeated_heads(self.sizes, layer_operations(self.sizes))
        left_out = _LEFT_OUT - {"qkv_re"} if config.rotates else _LEFT_OUT | {"attn_i"}
        self._layer_operations = tuple(each for each in operations if each.name not in left_out)
        self._expert_operations: dict[int, tuple[Operation, ...]] = {}
        for layer in self.layers if self._acts("experts", iteration) else ():
            own = config.expert_sizes_of(self.host.rank, layer, self.sizes)
            larger = {each.name: each for each in layer_operations(own) if _is_expert(each.name)}
            chosen = (larger.get(each.name, each) for each in self._layer_operations)
            self._expert_operations[layer] = tuple(chosen)
        self._recomputed = recomputed(self._layer_operations)
        self._embedding, self._head = embedding(self.sizes), head(self.sizes)

    # The iteration

    def _iteration(self, iteration: int) -> Program:
        host, style = self.host, self.style
        self._resize(iteration)
        if iteration == c.FIRST_ITERATION + 1:
            host.profiler_start_ns = host.now_ns
        with (
            host.annotation(f"ProfilerStep#{iteration}"),
            host.annotation(f"Iteration{iteration}", shown=style.is_annotated),
        ):
            tapes = []
            for step in range(style.microsteps):
                with host.labelled(Label(iteration, "data")), self._range("dl"):
                    yield from self._load(iteration, step)
                with host.labelled(Label(iteration, "forward")):
                    yield from self._forward_of(iteration, step)
                if style.stages > 1:
                    tapes.append(host.tape)
                    host.tape = []
                    continue
                with host.labelled(Label(iteration, "backward")):
                    yield from self._backward_of(iteration, step)
            for step, tape in enumerate(tapes):
                host.tape = tape
                with host.labelled(Label(iteration, "backward")):
                    yield from self._backward_of(iteration, step)
            with host.labelled(Label(iteration, "optimizer")):
                yield from self._step(iteration)
            with host.labelled(Label(iteration, "other")):
                yield from self._finish(iteration)
        yield from self._evaluate_between(iteration)

    def _load(self, iteration: int, step: int) -> Program:
        host = self.host
        with host.annotation(_LOADER):
            host.spend(60_000)
            if step == 0 and self._acts("data", iteration):
                host.sleep(self._pause_ns("data", iteration))
            if step == 0 and self._acts("growing_data", iteration):
                # On average over the iterations, the amount.
                part = (iteration - c.FIRST_ITERATION) / self.style.iterations
                host.sleep(2 * part * self._pause_ns("growing_data", iteration))
        for call in DATA:
            host.run_plain(call)
        if step == 0 and self._acts("copies", iteration):
            size = round(self._pause_ns("copies", iteration) * 48)
            copy = host.launch(memcpy("HtoD", size, "hipMemcpyWithStream"))
            yield [copy]
            copy.call.end_ns = host.now_ns

    def _step(self, iteration: int) -> Program:
        self._reduced = (*self._reduced, *self._reductions)
        self._reductions = ()
        if self._acts("optimizer_host", iteration):
            # As a norm of gradients that is checked on the host does.
            yield from self._read_loss()
        self._optimize()

    def _begin_step(self) -> None:
        iteration = self.host.label.iteration
        if self._acts("optimizer_host", iteration):
            self.host.sleep(self._pause_ns("optimizer_host", iteration))

    def _finish(self, iteration: int) -> Program:
        """Reads the loss back as any loop does, logs, and saves what the cause says."""
        host = self.host
        yield from host.synchronise()
        if self._acts("end_stall", iteration):
            host.sleep(self._pause_ns("end_stall", iteration))
        if self._acts("logging", iteration):
            with self._activity("logging", "logging/__init__.py(1477): info"):
                yield from self._read_loss()
                host.sleep(self._pause_ns("logging", iteration))
        if self._acts("checkpoint", iteration):
            with self._activity("save_checkpoint", "torch/serialization.py(943): save"):
                whole = self._pause_ns("checkpoint", iteration)
                for _ in range(8):
                    size = round(whole / 16 * 48)
                    copy = host.launch(memcpy("DtoH", size, "hipMemcpyWithStream"))
                    yield [copy]
                    copy.call.end_ns = host.now_ns
                    host.sleep(whole / 16)

    def _evaluate_between(self, iteration: int) -> Program:
        """Forward passes between two steps, of as many layers as take the time."""
        host = self.host
        cause = self._acts("evaluation", iteration)
        if cause is None:
            return
        with self._activity("evaluation", "trainer.py(3012): evaluate"):
            for number in range(round(cause.amount)):
                with host.labelled(Label(iteration, "other")):
                    for operation in self._layer_operations:
                        self._operate(operation, number % self.style.layers, taped=False)
            yield from host.synchronise()

    # Forward and backward

    def _forward_of(self, iteration: int, step: int) -> Program:
        host, style = self.host, self.style
        with ExitStack() as stack:
            if style.has_modules:
                stack.enter_context(host.frame("nn.Module: Transformer_0"))
            if style.shards:
                with host.annotation("FSDP::pre_forward"):
                    self._gather(ROOT)
                    self._wait_for_gathered(ROOT)
            if self.stage == 0:
                self._operate(self._embedding, 0)
            else:
                self._receive(-1)
            for layer in self.layers:
                yield from self._pause_in_layer(iteration, step, layer)
                with self._layer(layer):
                    self._open_layer(layer)
                    for operation in self._expert_operations.get(layer, self._layer_operations):
                        self._operate(operation, layer)
                        self._extra(operation, layer)
                        if operation.name in ("attn_op", "mlp_dp"):
                            self._reduce_tensor()
                    if style.shards:
                        with host.annotation(f"FSDP::post_forward (layers.{layer})"):
                            host.spend(8_000)
                yield from self._items(iteration)
                yield from self._synchronise_in_layer(iteration)
            if self.stage == style.stages - 1:
                for operation in self._head:
                    self._operate(operation, self.style.layers)
            else:
                self._send(+1)
        self._loss = host.activities[-1]

    def _backward_of(self, iteration: int, step: int) -> Program:
        host, style = self.host, self.style
        is_last = step == style.microsteps - 1
        with self._range("l"):
            if self.stage == style.stages - 1:
                host.run_plain(LOSS_GRADIENT)
            with host.on_thread(host.autograd_thread):
                if self.stage < style.stages - 1:
                    self._receive(+1)
                current: int | None = None
                while host.tape:
                    forward, node, label = host.tape.pop()
                    yield from self._evaluate(forward, node, label, current, step)
                    current = current if label.layer is None else label.layer
                    ends = node.name == "FusedRmsNormBackward0" and label.operation == "attn_n"
                    if ends and label.layer is not None and is_last:
                        self._reduce_layer(label.layer)
                if is_last and style.shards:
                    with host.annotation(self.after_backward):
                        self._post_backward(ROOT)
                if self.stage > 0:
                    self._send(-1)

    def _evaluate(
        self, forward: HostRange, node: Node, label: Label, current: int | None, step: int
    ) -> Program:
        host, style, layer = self.host, self.style, label.layer
        if layer is not None and layer != current:
            if style.shards:
                self._pre_backward(layer)
            if style.recompute:
                self._recompute_layer(layer)
            if current is None and step == 0 and self._acts("gc", label.iteration):
                with self._activity("gc", "<built-in function collect>"):
                    yield from host.synchronise()
                    host.sleep(self._pause_ns("gc", label.iteration))
        if node.name == "FusedRmsNormBackward0" and label.operation in ("attn_n", "mlp_n"):
            self._reduce_tensor()
        with host.labelled(replace(label, phase="backward")), host.evaluate(forward, node):
            pass
        if node.reaches_parameter and step > 0 and label.operation in _MODULES:
            # Gradients of later micro-steps are added to those that are there.
            with (
                host.labelled(replace(label, phase="backward")),
                host.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
                host.op("torch::autograd::AccumulateGrad"),
            ):
                elements = c.HIDDEN * c.HIDDEN // style.tensor
                add = elementwise("add", elements, 3 * elements * BF16)
                host.run_plain(Call("aten::add_", (add,)))

    def _open_layer(self, layer: int) -> None:
        host, style = self.host, self.style
        if not style.shards:
            return
        with host.annotation(f"FSDP::pre_forward (layers.{layer})"):
            if layer not in self._gathered:
                self._gather(layer)
            self._wait_for_gathered(layer)
            if layer + 1 in self.layers and style.prefetches(layer + 1):
                with host.annotation(f"FSDP::forward_prefetch for layers.{layer + 1}"):
                    self._gather(layer + 1)

    def _pre_backward(self, layer: int) -> None:
        host, style = self.host, self.style
        with host.annotation(f"FSDP::pre_backward (layers.{layer})"):
            if layer not in self._gathered:
                self._gather(layer)
            self._wait_for_gathered(layer)
            if layer - 1 in self.layers and style.prefetches(layer - 1):
                with host.annotation(f"FSDP::backward_prefetch for layers.{layer - 1}"):
                    self._gather(layer - 1)

    def _gather(self, layer: int | None) -> None:
        if layer is not None and not self.style.prefetches(layer) and self.host.activities:
            # Not before what ran last: nothing is left to hide it.
            self._copied_out = (*self._copied_out, self.host.activities[-1])
        super()._gather(layer)

    def _reduce_layer(self, layer: int) -> None:
        if self.style.shards:
            self._post_backward(layer)
            return
        host = self.host
        with host.labelled(host.label.at("all_reduce", layer)):
            after = (host.activities[-1],)
            reduced = host.communicate(
                "all_reduce", ALL_REDUCE_STREAM, c.LAYER_PARAMS // self.style.tensor,
                "BFloat16", after, self.group,
            )  # fmt: skip
        self._reductions = (*self._reductions, reduced)

    def _recompute_layer(self, layer: int) -> None:
        host = self.host
        label = replace(host.label, layer=layer, recompute=True)
        frame = "torch/utils/checkpoint.py(1124): recompute_fn"
        with host.labelled(label), host.frame(frame, shown=self.style.has_modules):
            for operation in self._recomputed:
                self._operate(operation, layer, taped=False)

    def _operate(self, operation: Operation, layer: int, *, taped: bool = True) -> None:
        """Runs an operation below its modules' frames, or under its annotation."""
        host, style = self.host, self.style
        label = host.label.at(operation.name, host.label.layer)
        with ExitStack() as stack:
            if style.has_modules:
                for name in _MODULES.get(operation.name, ()):
                    frame = f"nn.Module: {name}_{self._number(name, operation.name, layer)}"
                    stack.enter_context(host.frame(frame))
            stack.enter_context(host.annotation(operation.name, shown=style.is_annotated))
            stack.enter_context(host.labelled(label))
            for call in operation.calls:
                host.run(call, taped=taped)

    def _number(self, name: str, operation: str, layer: int) -> int:
        """The number of a module among those of its class."""
        if name not in _PER_LAYER:
            return layer if operation not in ("ie", "ln", "lp") else 0
        linears = [each for each, path in _MODULES.items() if path[-1] == name]
        return _PER_LAYER[name] * layer + linears.index(operation) % _PER_LAYER[name]

    @contextmanager
    def _layer(self, layer: int) -> Iterator[None]:
        host, style = self.host, self.style
        with (
            host.annotation(f"Layer{layer}", shown=style.is_annotated),
            host.frame(f"nn.Module: TransformerBlock_{layer}", shown=style.has_modules),
            host.labelled(replace(host.label, layer=layer)),
        ):
            yield

    @contextmanager
    def _range(self, operation: str) -> Iterator[None]:
        host = self.host
        with (
            host.annotation(operation, shown=self.style.is_annotated),
            host.labelled(host.label.at(operation, None)),
        ):
            yield

    @contextmanager
    def _activity(self, annotation: str, frame: str) -> Iterator[None]:
        """What the host does besides training, as far as the style shows it."""
        host, style = self.host, self.style
        with (
            host.annotation(annotation, shown=style.is_annotated),
            host.frame(frame, shown=style.has_modules),
        ):
            yield

    # Communication of tensor and pipeline parallelism

    def _reduce_tensor(self) -> None:
        if self.style.tensor == 1:
            return
        host = self.host
        group = self.style.tensor_group(host.rank)
        with host.labelled(host.label.at("all_reduce", host.label.layer)):
            summed = host.communicate(
                "all_reduce", TENSOR_STREAM, self.sizes.tokens * c.HIDDEN, "BFloat16",
                (host.activities[-1],), group,
            )  # fmt: skip
        host.compute_after = (*host.compute_after, summed)

    def _receive(self, step: int) -> None:
        host = self.host
        received = self._pass("recv", step, ())
        host.compute_after = (*host.compute_after, received)

    def _send(self, step: int) -> None:
        self._pass("send", step, (self.host.activities[-1],))

    def _pass(self, kind: str, step: int, after: tuple[Activity, ...]) -> Activity:
        """A transfer with the stage before or behind; activations go on, gradients back."""
        host = self.host
        forwards = (kind == "send") == (step > 0)
        group = self.style.stage_group(host.rank, step, forwards=forwards)
        stream = STAGE_STREAM + 2 * (not forwards) + (step > 0)
        with host.labelled(host.label.at("send_recv", None)):
            return host.communicate(
                kind, stream, self.sizes.tokens * c.HIDDEN, "BFloat16", after, group
            )

    # The causes

    def _acts(self, kind: str, iteration: int) -> Cause | None:
        """The cause of this kind that acts on this rank in this iteration."""
        return self.style.cause_of(kind, self.host.rank, iteration)

    def _pause_ns(self, kind: str, iteration: int) -> float:
        cause = self._acts(kind, iteration)
        assert cause is not None
        random = Random(f"{self.style.seed}:pause:{iteration}")
        return cause.amount * (0.97 + 0.06 * random.random())

    def _pause_in_layer(self, iteration: int, step: int, layer: int) -> Program:
        """What the host does at a layer of the first forward, with the GPU run dry."""
        host = self.host

        def pauses(kind: str) -> bool:
            cause = None if step else self._acts(kind, iteration)
            return cause is not None and layer == self._paused_layer(cause, iteration)

        if pauses("hip_malloc"):
            # The queue has run dry, as it does where a shape is new.
            yield from self._read_loss()
            allocated = host.call_runtime("hipMalloc", 1_500)
            host.sleep(self._pause_ns("hip_malloc", iteration))
            allocated.end_ns = host.now_ns
        if pauses("compile"):
            frame = "torch/_dynamo/convert_frame.py(1133): _compile"
            with self._activity("torch.compile", frame):
                yield from host.synchronise()
                host.sleep(self._pause_ns("compile", iteration))
        if pauses("jitter"):
            yield from self._read_loss()
            host.sleep(self._pause_ns("jitter", iteration))
        for kind in ("hip_free", "retries"):
            if pauses(kind):
                freed = host.call_runtime("hipFree", 1_500)
                yield list(host.activities)
                host.sleep(self._pause_ns(kind, iteration))
                freed.end_ns = host.now_ns
                host.call_runtime("hipMalloc", 30_000)
        if pauses("late_host"):
            yield from self._read_loss()
            host.sleep(self._pause_ns("late_host", iteration))

    def _paused_layer(self, cause: Cause, iteration: int) -> int | None:
        """The layer of the pause; of an allocator that retries, one of one rank at random."""
        if cause.kind == "jitter":
            return Random(f"{self.style.seed}:jitter:{iteration}").choice(self.layers)
        if cause.kind != "retries":
            return cause.layer
        random = Random(f"{self.style.seed}:retry:{iteration}")
        ranks = range(self.style.ranks // self.style.stages)
        return random.choice(self.layers) if random.choice(ranks) == self.host.rank else None

    def _items(self, iteration: int) -> Program:
        """Reads values back after a layer."""
        cause = self._acts("items", iteration)
        if cause is None:
            return
        for _ in range(max(1, round(cause.amount / _WAKE_HOST_NS))):
            yield from self._read_loss()
            self.host.sleep(_WAKE_HOST_NS)

    def _synchronise_in_layer(self, iteration: int) -> Program:
        """Waits for the whole device after a layer, and prints something."""
        if self._acts("synchronises", iteration):
            yield from self.host.synchronise()
            self.host.sleep(self._pause_ns("synchronises", iteration))

    def _extra(self, operation: Operation, layer: int) -> None:
        """One operation more, that other layers, or GPUs, lack: in single precision and back."""
        cause = self._acts("extra", self.host.label.iteration)
        if cause is None:
            return
        if operation.name != cause.operation or cause.layer not in (None, layer):
            return
        host = self.host
        bytes_moved = cause.amount * c.HBM_BYTES_PER_S / 1e9
        elements = round(bytes_moved / (BF16 + FP32) / 2)
        for functor in ("to_float", "to_bf16"):
            kernel = elementwise(functor, elements, elements * (BF16 + FP32))
            host.run_plain(Call("aten::_to_copy", (kernel,)))

    def _own_params(self) -> int:
        if self.style.shards:
            return super()._own_params()
        return self.root_params + len(self.layers) * c.LAYER_PARAMS // self.style.tensor
