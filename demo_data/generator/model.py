"""The operations of Llama-3-8B as PyTorch calls, with the autograd nodes they leave behind."""

from __future__ import annotations

from dataclasses import dataclass

from generator import constants as c
from generator.kernels import (
    BF16,
    FP32,
    Kernel,
    attention,
    elementwise,
    gemm,
    memcpy,
    memory_bound,
    memset,
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model on one rank: its batch, and its part of the heads and of the FFN."""

    batch: int = c.BATCH
    sequence: int = c.SEQUENCE
    heads: int = c.HEADS
    kv_heads: int = c.KV_HEADS
    ffn: int = c.FFN
    vocab: int = c.VOCAB

    @property
    def tokens(self) -> int:
        """The tokens of a forward pass."""
        return self.batch * self.sequence

    @property
    def hidden_bytes(self) -> int:
        """The size of a layer's input."""
        return self.tokens * c.HIDDEN * BF16

    @property
    def width(self) -> int:
        """The width of this rank's queries."""
        return self.heads * c.HEAD_DIM


@dataclass(frozen=True, slots=True)
class Call:
    """A cpu_op: its kernels, then the calls below it, and the autograd node it creates."""

    name: str
    kernels: tuple[Kernel, ...] = ()
    children: tuple[Call, ...] = ()
    inputs: str = ""
    node: Node | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """An autograd node: what it calls, and what the engine does right after it."""

    name: str
    calls: tuple[Call, ...] = ()
    summed_with: Call | None = None
    reaches_parameter: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the vocabulary and its calls in forward."""

    name: str
    calls: tuple[Call, ...]


def _inputs(
    *shapes: tuple[int, ...], dtype: str = "c10::BFloat16", scalars: tuple[str, ...] = ()
) -> str:
    """Tensors (one that isn't given has no shape), then scalars, as the profiler records them."""
    tensors = [f'"{dtype}"' if shape else '""' for shape in shapes]
    types = ", ".join(tensors + ['"Scalar"'] * len(scalars))
    dims = ", ".join([str(list(shape)) for shape in shapes] + ["[]"] * len(scalars))
    values = ", ".join(f'"{value}"' for value in ("",) * len(shapes) + scalars)
    concrete = f'"Concrete Inputs": [{values}], ' if scalars else ""
    return f'{concrete}"Input type": [{types}], "Input Dims": [{dims}]'


def _sum_hidden(sizes: Sizes) -> Call:
    return Call("aten::add", (elementwise("add", sizes.tokens * c.HIDDEN, 3 * sizes.hidden_bytes),))


def _linear(
    sizes: Sizes, name: str, out: int, width: int, summed_with: Call | None = None
) -> Operation:
    tokens = sizes.tokens
    dgrad = Call(
        "aten::mm",
        (gemm("dgrad", tokens, width, out),),
        inputs=_inputs((tokens, out), (out, width)),
    )
    wgrad = Call(
        "aten::mm",
        (gemm("wgrad", out, width, tokens),),
        inputs=_inputs((out, tokens), (tokens, width)),
    )
    transpose = Call("aten::t", node=Node("TBackward0", (Call("aten::t"),), reaches_parameter=True))
    product = Call(
        "aten::mm",
        (gemm("forward", tokens, out, width),),
        inputs=_inputs((tokens, width), (width, out)),
        node=Node("MmBackward0", (wgrad, dgrad), summed_with),
    )
    linear = Call(
        "aten::linear",
        children=(transpose, Call("aten::matmul", children=(product,))),
        inputs=_inputs((tokens, width), (out, width)),
    )
    return Operation(name, (linear,))


def _norm(sizes: Sizes, name: str, summed_with: Call | None) -> Operation:
    template = "void at::native::(anonymous namespace)::{}(int, {}c10::BFloat16*, float const*)"
    forward = memory_bound(
        template.format(
            "vectorized_layer_norm_kernel<c10::BFloat16, float, true>",
            "float, c10::BFloat16 const*, ",
        ),
        2 * sizes.hidden_bytes,
        sizes.tokens,
    )
    grad_input = memory_bound(
        template.format(
            "layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, true>",
            "c10::BFloat16 const*, c10::BFloat16 const*, ",
        ),
        3 * sizes.hidden_bytes,
        sizes.tokens,
    )
    grad_weight = memory_bound(
        template.format(
            "cuComputePartGradGammaBeta<c10::BFloat16, float, true>",
            "int, c10::BFloat16 const*, c10::BFloat16 const*, ",
        ),
        2.4 * sizes.hidden_bytes,
        2048,
    )
    backward = Call("aten::_fused_rms_norm_backward", (grad_input, grad_weight))
    node = Node("FusedRmsNormBackward0", (backward,), summed_with, reaches_parameter=True)
    shapes = _inputs((sizes.batch, sizes.sequence, c.HIDDEN))
    return Operation(name, (Call("aten::_fused_rms_norm", (forward,), inputs=shapes, node=node),))


def _rotate(sizes: Sizes, heads: int) -> tuple[Call, ...]:
    elements = sizes.tokens * heads * c.HEAD_DIM
    widen = elementwise("to_float", elements, elements * (BF16 + FP32))
    narrow = elementwise("to_bf16", elements, elements * (BF16 + FP32))
    multiply = elementwise("complex_mul", elements // 2, 2 * elements * FP32)
    to_float = Node("ToCopyBackward0", (Call("aten::_to_copy", (narrow,)),))
    product = Node("MulBackward0", (Call("aten::mul", (multiply,)),))
    to_bf16 = Node("ToCopyBackward0", (Call("aten::_to_copy", (widen,)),))
    return (
        Call("aten::_to_copy", (widen,), node=to_float),
        Call("aten::mul", (multiply,), node=product),
        Call("aten::_to_copy", (narrow,), node=to_bf16),
    )


def _view(name: str, node: str) -> Call:
    return Call(f"aten::{name}", node=Node(node, (Call(f"aten::{name}"),)))


def _attention(sizes: Sizes) -> Operation:
    own_bytes = sizes.tokens * sizes.width * BF16
    # The causal mask leaves half of the products.
    flops = 2 * sizes.batch * sizes.heads * sizes.sequence**2 * c.HEAD_DIM
    grid = sizes.batch * sizes.heads * sizes.sequence // 128
    tile = "ck_tile::TileFmhaShape<ck_tile::sequence<128, 128, 32, 128, 32, 128>"
    traits = "ck_tile::TileFmhaTraits<true, true, true, true, 0, false, true> >"
    forward = attention(
        "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsync<"
        f"ck_tile::bf16_t, {tile}, ck_tile::SimplifiedGenericAttentionMask<true>, {traits} > >"
        "(ck_tile::FmhaFwdKernel::FmhaFwdGroupModeKargs)",
        flops,
        0.42,
        0.15,
        grid,
        3 * own_bytes,
    )
    dot = memory_bound(
        "void ck_tile::kentry<64, 2, ck_tile::FmhaBwdOGradDotOKernel<"
        "ck_tile::BlockFmhaBwdOGradDotO<ck_tile::bf16_t, 64, 128> > >"
        "(ck_tile::FmhaBwdOGradDotOKernel::Kargs)",
        2 * own_bytes,
        grid,
        64,
    )
    main = attention(
        "void ck_tile::kentry<256, 1, ck_tile::FmhaBwdDQDKDVKernel<"
        f"ck_tile::BlockFmhaBwdDQDKDVPipelineKRKTRVRIGLP<ck_tile::bf16_t, {tile}, {traits} > >"
        "(ck_tile::FmhaBwdDQDKDVKernel::FmhaBwdCommonKargs)",
        flops * 5 // 2,
        0.36,
        0.12,
        grid,
        8 * own_bytes,
    )
    convert = memory_bound(
        "void ck_tile::kentry<256, 2, ck_tile::FmhaBwdConvertQGradKernel<"
        "ck_tile::bf16_t, 64, 128> >(ck_tile::FmhaBwdConvertQGradKernel::Kargs)",
        3 * own_bytes,
        grid,
    )
    backward = Call(
        "aten::_scaled_dot_product_flash_attention_backward",
        children=(Call("aten::_flash_attention_backward", (dot, main, convert)),),
    )
    shapes = (
        (sizes.batch, sizes.heads, sizes.sequence, c.HEAD_DIM),
        (sizes.batch, sizes.kv_heads, sizes.sequence, c.HEAD_DIM),
        (sizes.batch, sizes.kv_heads, sizes.sequence, c.HEAD_DIM),
    )
    # Dropout, is_causal, return_debug_mask; dropout, is_causal.
    given = _inputs(*shapes, scalars=("0.", "True", "False"))
    asked = _inputs(*shapes, (), scalars=("0.", "True"))
    flash = Call(
        "aten::_scaled_dot_product_flash_attention",
        children=(Call("aten::_flash_attention_forward", (forward,), inputs=given),),
        inputs=given,
        node=Node("ScaledDotProductFlashAttentionBackward0", (backward,)),
    )
    return Operation(
        "attn_fa", (Call("aten::scaled_dot_product_attention", children=(flash,), inputs=asked),)
    )


def _residual(sizes: Sizes, name: str) -> Operation:
    return Operation(
        name, (Call("aten::add", _sum_hidden(sizes).kernels, node=Node("AddBackward0")),)
    )


def _gate(sizes: Sizes) -> tuple[Operation, Operation]:
    elements = sizes.tokens * sizes.ffn
    ffn_bytes = elements * BF16
    silu_backward = Call(
        "aten::silu_backward", (elementwise("silu_backward", elements, 3 * ffn_bytes),)
    )
    silu = Call(
        "aten::silu",
        (elementwise("silu", elements, 2 * ffn_bytes),),
        node=Node("SiluBackward0", (silu_backward,)),
    )
    product = Call("aten::mul", (elementwise("mul", elements, 3 * ffn_bytes),))
    multiply = Call("aten::mul", product.kernels, node=Node("MulBackward0", (product, product)))
    return Operation("mlp_gs", (silu,)), Operation("mlp_gu", (multiply,))


def layer_operations(sizes: Sizes) -> tuple[Operation, ...]:
    """The operations of a layer, in order."""
    silu, multiply = _gate(sizes)
    views = tuple(_view("view", "ViewBackward0") for _ in range(3))
    reshape = (_view("transpose", "TransposeBackward0"), _view("view", "ViewBackward0"))
    return (
        _norm(sizes, "attn_n", _sum_hidden(sizes)),
        _linear(sizes, "q_ip", sizes.width, c.HIDDEN, _sum_hidden(sizes)),
        _linear(sizes, "k_ip", sizes.kv_heads * c.HEAD_DIM, c.HIDDEN, _sum_hidden(sizes)),
        _linear(sizes, "v_ip", sizes.kv_heads * c.HEAD_DIM, c.HIDDEN),
        Operation("qkv_t", views),
        Operation("qkv_re", _rotate(sizes, sizes.heads) + _rotate(sizes, sizes.kv_heads)),
        _attention(sizes),
        Operation("attn_or", reshape),
        _linear(sizes, "attn_op", c.HIDDEN, sizes.width),
        _residual(sizes, "attn_ra"),
        _norm(sizes, "mlp_n", _sum_hidden(sizes)),
        _linear(sizes, "mlp_gp", sizes.ffn, c.HIDDEN, _sum_hidden(sizes)),
        silu,
        _linear(sizes, "mlp_up", sizes.ffn, c.HIDDEN),
        multiply,
        _linear(sizes, "mlp_dp", c.HIDDEN, sizes.ffn),
        _residual(sizes, "mlp_ra"),
    )


def with_repeated_heads(sizes: Sizes, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """A layer's operations with keys and values repeated for each head of the queries."""
    elements = sizes.tokens * sizes.width
    copy = elementwise("fill", elements, 2 * elements * BF16)
    total = elementwise("add", elements, 2 * elements * BF16)
    gradient = Node("ExpandBackward0", (Call("aten::sum", (total,)),))
    one = Call(
        "aten::reshape",
        children=(Call("aten::clone", children=(Call("aten::copy_", (copy,)),)),),
        node=gradient,
    )
    place = [each.name for each in operations].index("attn_fa")
    repeated = Operation("attn_i", (one, one))
    return (*operations[:place], repeated, *operations[place:])


def embedding(sizes: Sizes) -> Operation:
    """The embedding of the tokens."""
    gather = memory_bound(
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, "
        "unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>)",
        2 * sizes.hidden_bytes,
        2432,
    )
    scatter = memory_bound(
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<c10::BFloat16, "
        "float, long>(long const*, c10::BFloat16 const*, c10::BFloat16*, int, long, int)",
        5 * sizes.hidden_bytes,
        1024,
    )
    zeros = Call("aten::zero_", (memset(sizes.vocab * c.HIDDEN * BF16),))
    backward = Call("aten::embedding_dense_backward", (scatter,), (zeros,))
    node = Node("EmbeddingBackward0", (backward,), reaches_parameter=True)
    return Operation("ie", (Call("aten::embedding", (gather,), node=node),))


def _loss(sizes: Sizes) -> Operation:
    logits = sizes.tokens * sizes.vocab
    softmax = "void at::native::(anonymous namespace)::cunn_SoftMax{}<4, float, float, float, {}>"
    log_softmax = memory_bound(
        softmax.format("Forward", "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue")
        + "(float*, float const*, int)",
        2 * logits * FP32,
        sizes.tokens,
        1024,
    )
    log_softmax_backward = memory_bound(
        softmax.format("Backward", "at::native::(anonymous namespace)::LogSoftMaxBackwardEpilogue")
        + "(float*, float const*, float const*, long)",
        3 * logits * FP32,
        sizes.tokens,
        1024,
    )
    nll = "void at::native::(anonymous namespace)::nll_loss_{}_reduce_cuda_kernel_2d<float, {}>"
    picked = memory_bound(
        nll.format("forward", "float, long") + "(float*, float*, float const*, long const*)",
        sizes.tokens * 64,
        1,
        32,
    )
    spread = memory_bound(
        nll.format("backward", "long") + "(float*, float const*, long const*, float const*)",
        logits * FP32 / 4,
        1,
        32,
    )
    widen = elementwise("to_float", logits, logits * (BF16 + FP32))
    narrow = elementwise("to_bf16", logits, logits * (BF16 + FP32))
    zeros = Call("aten::zero_", (memset(logits * FP32),))
    to_float = Call(
        "aten::_to_copy",
        (widen,),
        node=Node("ToCopyBackward0", (Call("aten::_to_copy", (narrow,)),)),
    )
    softmax_call = Call(
        "aten::_log_softmax",
        (log_softmax,),
        node=Node(
            "LogSoftmaxBackward0",
            (Call("aten::_log_softmax_backward_data", (log_softmax_backward,)),),
        ),
    )
    nll_call = Call(
        "aten::nll_loss_forward",
        (picked,),
        node=Node("NllLossBackward0", (Call("aten::nll_loss_backward", (spread,), (zeros,)),)),
    )
    entropy = Call(
        "aten::cross_entropy_loss",
        children=(
            Call("aten::log_softmax", children=(softmax_call,)),
            Call("aten::nll_loss_nd", children=(nll_call,)),
        ),
        inputs=_inputs((sizes.tokens, sizes.vocab), (sizes.tokens,), dtype="float"),
    )
    return Operation("cel", (to_float, entropy))


def head(sizes: Sizes) -> tuple[Operation, ...]:
    """The last norm, the projection to the vocabulary, and the loss."""
    projection = _linear(sizes, "lp", sizes.vocab, c.HIDDEN)
    return (_norm(sizes, "ln", None), projection, _loss(sizes))


def recomputed(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """The operations of a layer that checkpointing runs again.

    Non-reentrant checkpointing stops at the last saved tensor, the input of the down projection.
    """
    return operations[: [operation.name for operation in operations].index("mlp_dp")]


SIZES = Sizes()
LAYER = layer_operations(SIZES)
RECOMPUTED = recomputed(LAYER)
EMBEDDING = embedding(SIZES)
HEAD = head(SIZES)
DATA = tuple(
    Call(
        "aten::to",
        children=(Call("aten::_to_copy", (memcpy("HtoD", c.TOKENS * 8, "hipMemcpyAsync"),)),),
    )
    for _ in ("tokens", "labels")
)
LOSS_GRADIENT = Call("aten::ones_like", (elementwise("fill", 1, 4),))
LOSS_VALUE = memcpy("DtoH", 4, "hipMemcpyWithStream")
