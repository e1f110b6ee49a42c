"""The operations of Llama-3-8B as PyTorch calls, with the autograd nodes they leave behind."""

from __future__ import annotations

from dataclasses import dataclass

from generator import config as c
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

HIDDEN_BYTES = c.TOKENS * c.HIDDEN * BF16
FFN_BYTES = c.TOKENS * c.FFN * BF16
LOGITS = c.TOKENS * c.VOCAB


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


SUM_HIDDEN = Call("aten::add", (elementwise("add", c.TOKENS * c.HIDDEN, 3 * HIDDEN_BYTES),))


def _linear(name: str, out: int, width: int, summed_with: Call | None = None) -> Operation:
    tokens = c.TOKENS
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


def _norm(name: str, summed_with: Call | None) -> Operation:
    template = "void at::native::(anonymous namespace)::{}(int, {}c10::BFloat16*, float const*)"
    forward = memory_bound(
        template.format(
            "vectorized_layer_norm_kernel<c10::BFloat16, float, true>",
            "float, c10::BFloat16 const*, ",
        ),
        2 * HIDDEN_BYTES,
        c.TOKENS,
    )
    grad_input = memory_bound(
        template.format(
            "layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, true>",
            "c10::BFloat16 const*, c10::BFloat16 const*, ",
        ),
        3 * HIDDEN_BYTES,
        c.TOKENS,
    )
    grad_weight = memory_bound(
        template.format(
            "cuComputePartGradGammaBeta<c10::BFloat16, float, true>",
            "int, c10::BFloat16 const*, c10::BFloat16 const*, ",
        ),
        2.4 * HIDDEN_BYTES,
        2048,
    )
    backward = Call("aten::_fused_rms_norm_backward", (grad_input, grad_weight))
    node = Node("FusedRmsNormBackward0", (backward,), summed_with, reaches_parameter=True)
    shapes = _inputs((c.BATCH, c.SEQUENCE, c.HIDDEN))
    return Operation(name, (Call("aten::_fused_rms_norm", (forward,), inputs=shapes, node=node),))


def _rotate(heads: int) -> tuple[Call, ...]:
    elements = c.TOKENS * heads * c.HEAD_DIM
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


def _attention() -> Operation:
    # The causal mask leaves half of the products.
    flops = 2 * c.BATCH * c.HEADS * c.SEQUENCE**2 * c.HEAD_DIM
    grid = c.BATCH * c.HEADS * c.SEQUENCE // 128
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
        3 * HIDDEN_BYTES,
    )
    dot = memory_bound(
        "void ck_tile::kentry<64, 2, ck_tile::FmhaBwdOGradDotOKernel<"
        "ck_tile::BlockFmhaBwdOGradDotO<ck_tile::bf16_t, 64, 128> > >"
        "(ck_tile::FmhaBwdOGradDotOKernel::Kargs)",
        2 * HIDDEN_BYTES,
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
        8 * HIDDEN_BYTES,
    )
    convert = memory_bound(
        "void ck_tile::kentry<256, 2, ck_tile::FmhaBwdConvertQGradKernel<"
        "ck_tile::bf16_t, 64, 128> >(ck_tile::FmhaBwdConvertQGradKernel::Kargs)",
        3 * HIDDEN_BYTES,
        grid,
    )
    backward = Call(
        "aten::_scaled_dot_product_flash_attention_backward",
        children=(Call("aten::_flash_attention_backward", (dot, main, convert)),),
    )
    shapes = (
        (c.BATCH, c.HEADS, c.SEQUENCE, c.HEAD_DIM),
        (c.BATCH, c.KV_HEADS, c.SEQUENCE, c.HEAD_DIM),
        (c.BATCH, c.KV_HEADS, c.SEQUENCE, c.HEAD_DIM),
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


def _residual(name: str) -> Operation:
    return Operation(name, (Call("aten::add", SUM_HIDDEN.kernels, node=Node("AddBackward0")),))


def _gate() -> tuple[Operation, Operation]:
    elements = c.TOKENS * c.FFN
    silu_backward = Call(
        "aten::silu_backward", (elementwise("silu_backward", elements, 3 * FFN_BYTES),)
    )
    silu = Call(
        "aten::silu",
        (elementwise("silu", elements, 2 * FFN_BYTES),),
        node=Node("SiluBackward0", (silu_backward,)),
    )
    product = Call("aten::mul", (elementwise("mul", elements, 3 * FFN_BYTES),))
    multiply = Call("aten::mul", product.kernels, node=Node("MulBackward0", (product, product)))
    return Operation("mlp_gs", (silu,)), Operation("mlp_gu", (multiply,))


def _layer() -> tuple[Operation, ...]:
    silu, multiply = _gate()
    views = tuple(_view("view", "ViewBackward0") for _ in range(3))
    reshape = (_view("transpose", "TransposeBackward0"), _view("view", "ViewBackward0"))
    return (
        _norm("attn_n", SUM_HIDDEN),
        _linear("q_ip", c.HIDDEN, c.HIDDEN, SUM_HIDDEN),
        _linear("k_ip", c.KV_WIDTH, c.HIDDEN, SUM_HIDDEN),
        _linear("v_ip", c.KV_WIDTH, c.HIDDEN),
        Operation("qkv_t", views),
        Operation("qkv_re", _rotate(c.HEADS) + _rotate(c.KV_HEADS)),
        _attention(),
        Operation("attn_or", reshape),
        _linear("attn_op", c.HIDDEN, c.HIDDEN),
        _residual("attn_ra"),
        _norm("mlp_n", SUM_HIDDEN),
        _linear("mlp_gp", c.FFN, c.HIDDEN, SUM_HIDDEN),
        silu,
        _linear("mlp_up", c.FFN, c.HIDDEN),
        multiply,
        _linear("mlp_dp", c.HIDDEN, c.FFN),
        _residual("mlp_ra"),
    )


def _embedding() -> Operation:
    gather = memory_bound(
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, "
        "unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>)",
        2 * HIDDEN_BYTES,
        2432,
    )
    scatter = memory_bound(
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<c10::BFloat16, "
        "float, long>(long const*, c10::BFloat16 const*, c10::BFloat16*, int, long, int)",
        5 * HIDDEN_BYTES,
        1024,
    )
    zeros = Call("aten::zero_", (memset(c.VOCAB * c.HIDDEN * BF16),))
    backward = Call("aten::embedding_dense_backward", (scatter,), (zeros,))
    node = Node("EmbeddingBackward0", (backward,), reaches_parameter=True)
    return Operation("ie", (Call("aten::embedding", (gather,), node=node),))


def _loss() -> Operation:
    softmax = "void at::native::(anonymous namespace)::cunn_SoftMax{}<4, float, float, float, {}>"
    log_softmax = memory_bound(
        softmax.format("Forward", "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue")
        + "(float*, float const*, int)",
        2 * LOGITS * FP32,
        c.TOKENS,
        1024,
    )
    log_softmax_backward = memory_bound(
        softmax.format("Backward", "at::native::(anonymous namespace)::LogSoftMaxBackwardEpilogue")
        + "(float*, float const*, float const*, long)",
        3 * LOGITS * FP32,
        c.TOKENS,
        1024,
    )
    nll = "void at::native::(anonymous namespace)::nll_loss_{}_reduce_cuda_kernel_2d<float, {}>"
    picked = memory_bound(
        nll.format("forward", "float, long") + "(float*, float*, float const*, long const*)",
        c.TOKENS * 64,
        1,
        32,
    )
    spread = memory_bound(
        nll.format("backward", "long") + "(float*, float const*, long const*, float const*)",
        LOGITS * FP32 / 4,
        1,
        32,
    )
    widen = elementwise("to_float", LOGITS, LOGITS * (BF16 + FP32))
    narrow = elementwise("to_bf16", LOGITS, LOGITS * (BF16 + FP32))
    zeros = Call("aten::zero_", (memset(LOGITS * FP32),))
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
        inputs=_inputs((c.TOKENS, c.VOCAB), (c.TOKENS,), dtype="float"),
    )
    return Operation("cel", (to_float, entropy))


LAYER = _layer()
# Non-reentrant checkpointing stops at the last saved tensor, the input of the down projection.
RECOMPUTED = LAYER[: [operation.name for operation in LAYER].index("mlp_dp")]
EMBEDDING = _embedding()
HEAD = (_norm("ln", None), _linear("lp", c.VOCAB, c.HIDDEN), _loss())
DATA = tuple(
    Call(
        "aten::to",
        children=(Call("aten::_to_copy", (memcpy("HtoD", c.TOKENS * 8, "hipMemcpyAsync"),)),),
    )
    for _ in ("tokens", "labels")
)
LOSS_GRADIENT = Call("aten::ones_like", (elementwise("fill", 1, 4),))
LOSS_VALUE = memcpy("DtoH", 4, "hipMemcpyWithStream")
