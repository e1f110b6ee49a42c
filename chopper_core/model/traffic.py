"""The bytes of operators that memory limits: a table of what each reads and writes.

A line has the operators' names, the tensors that they read, and those that they write. A tensor is
the position of an input, or `all`: its operands, broadcast. What may follow:

    /n -n   reduced along the dimensions in input n; with / a number there is the result's type
    xn      a row of the table n for each element      *n  as many rows as input n says
    ~n      the rows along dimension n that the index after it selects
    :n      with the sizes in input n as its last ones  ^n  pooled by windows of input n
    +n      with n more elements along its last dimension
    !n      only where input n is 0 (no reduction of a loss)
    @type   elements of another type: a name, the position that has it, `=n` the type that input n
            names, `?n` float where input n is true, `index` long where dimensions are reduced

Sources: the schemas in PyTorch's `native_functions.yaml`, vLLM's `torch_bindings.cpp`, SGLang's
`sgl-kernel`, AITER and FBGEMM.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from msgspec import Struct

_TENSOR: Final = re.compile(
    r"(?P<place>\d+|all)(?:(?P<how>[-+/x*~:^!])(?P<by>-?\d+))?(?:@(?P<type>[=?]?\w+))?"
)


class Tensor(Struct, frozen=True):
    """A tensor that an operator reads or writes."""

    place: int
    """-1: all operands, broadcast."""
    how: str
    by: int
    type: str


class Traffic(Struct, frozen=True):
    """What an operator reads and writes."""

    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    is_elementwise: bool
    """Operands without dimensions are scalars of the host, and don't count."""


def _tensors(text: str) -> tuple[Tensor, ...]:
    matches = [match for word in text.split() if (match := _TENSOR.fullmatch(word))]
    return tuple(
        Tensor(
            -1 if match["place"] == "all" else int(match["place"]),
            match["how"] or "",
            int(match["by"] or 0),
            match["type"] or "",
        )
        for match in matches
    )


def _table(text: str, prefix: str = "", *, is_elementwise: bool = False) -> dict[str, Traffic]:
    lines = (line.split("|") for line in re.sub(r"\n +", " ", text.strip()).splitlines())
    return {
        prefix + name: Traffic(_tensors(reads), _tensors(writes), is_elementwise)
        for names, reads, writes in lines
        for name in names.split()
    }


_ELEMENTWISE: Final = """
abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan sinh cosh asin acos
 atan tanh sigmoid logit silu gelu relu relu6 leaky_relu elu selu celu mish hardtanh hardswish
 hardsigmoid softplus log_sigmoid_forward erf erfc erfinv floor ceil round trunc frac sign sgn
 clamp_min clamp_max nan_to_num bitwise_not triu tril flip roll cumsum cumprod | 0 | 0
isnan isinf isposinf isneginf logical_not signbit | 0 | 0@bool
add sub rsub mul div pow maximum minimum fmax fmin atan2 remainder fmod bitwise_and bitwise_or
 bitwise_xor __and__ __or__ __xor__ floor_divide hypot xlogy copysign | 0 1 | all
eq ne lt le gt ge logical_and logical_or logical_xor | 0 1 | all@bool
addcmul addcdiv lerp clamp where | 0 1 2 | all
masked_fill | 0 1 | all@0
threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward hardtanh_backward
 hardswish_backward hardsigmoid_backward leaky_relu_backward elu_backward softplus_backward
 mish_backward log_sigmoid_backward native_dropout_backward _masked_scale | 0 1 | 0
copy_ | 1 | 0
fill_ zero_ normal_ uniform_ exponential_ random_ bernoulli_ cauchy_ log_normal_ geometric_ || 0
native_dropout | 0 | 0 0@bool
_fused_dropout | 0 | 0 0@byte
mse_loss smooth_l1_loss huber_loss binary_cross_entropy | 0 1 | 0!2
mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward
 | 1 2 | 1
cat | 0 | 0
_foreach_zero_ || 0
_foreach_norm | 0 |
_foreach_abs _foreach_neg _foreach_sqrt _foreach_rsqrt _foreach_exp _foreach_reciprocal
 _foreach_sign _foreach_clamp_min _foreach_clamp_max _amp_foreach_non_finite_check_and_unscale
 | 0 | 0
_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_maximum _foreach_minimum
 _foreach_pow _foreach_lerp | 0 1 | 0
_foreach_addcmul _foreach_addcdiv | 0 1 2 | 0
_fused_adam _fused_adamw | 0 1 2 3 4 | 0 2 3 4
_fused_sgd _fused_adagrad | 0 1 2 | 0 2
"""
_OTHERS: Final = """
_softmax _log_softmax | 0 | 0@?2
_safe_softmax | 0 | 0
_softmax_backward_data _log_softmax_backward_data | 0 1 | 1@=3
native_layer_norm | 0 2 3 | 0
native_layer_norm_backward | 0 1 3 4 5 6 | 1 5 6
_fused_rms_norm | 0 2 | 0
_fused_rms_norm_backward | 0 1 3 4 | 1 4
native_group_norm | 0 1 2 | 0
native_group_norm_backward | 0 1 2 3 4 | 1 4 4
native_batch_norm miopen_batch_norm cudnn_batch_norm _batch_norm_with_update | 0 1 2 3 4 | 0 3 4
batch_norm_stats | 0 |
batch_norm_elemt | 0 1 2 3 4 | 0
batch_norm_backward_reduce | 0 1 2 3 4 |
batch_norm_backward_elemt | 0 1 2 3 4 5 6 | 1
native_batch_norm_backward batch_norm_backward | 0 1 2 3 4 5 6 | 1 2 2
miopen_batch_norm_backward cudnn_batch_norm_backward | 0 1 2 3 4 5 6 | 0 2 2
embedding | 1 1x0@0 | 1x0@0
embedding_dense_backward | 0 1 | 0*2
_embedding_bag _embedding_bag_forward_only | 1 1x0@0 2 | 2x0@0
index_select | 2 0~1 | 0~1
gather | 2 2@0 | 2@0
scatter scatter_ | 2 3 | 2@0
scatter_add scatter_add_ | 2 3 2@0 | 2@0
index_add_ | 2 3 3@0 | 3@0
index_copy_ | 2 3 | 3@0
sum nansum mean amax amin | 0 | 0/1
logsumexp var std | 0 | 0-1
var_mean std_mean | 0 | 0-1 0-1
any all | 0 | 0-1@bool
argmax argmin | 0 | 0-1@long
max min median | 0 | 0-1 0-1@index
norm linalg_vector_norm | 0 | 0/2
nll_loss_forward nll_loss2d_forward | 1 1@0 | 1!3@0
nll_loss_backward nll_loss2d_backward | 2 | 1
max_pool2d_with_indices max_pool3d_with_indices | 0 | 0^1 0^1@long
max_pool2d_with_indices_backward | 0 7 | 1
avg_pool2d avg_pool3d | 0 | 0^1
avg_pool2d_backward _adaptive_avg_pool2d_backward | 0 | 1
_adaptive_avg_pool2d _adaptive_avg_pool3d upsample_nearest1d upsample_nearest2d upsample_nearest3d
 _upsample_nearest_exact2d upsample_linear1d upsample_bilinear2d upsample_bicubic2d
 upsample_trilinear3d | 0 | 0:1
upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
 _upsample_nearest_exact2d_backward upsample_linear1d_backward upsample_bilinear2d_backward
 upsample_bicubic2d_backward upsample_trilinear3d_backward | 0 | 0:2
sort | 0 | 0 0@long
"""
_OF_ENGINES: Final = """
_C::rms_norm sgl_kernel::rmsnorm aiter::rmsnorm | 1 2 | 0
_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm | 0 1 2 | 0 1
aiter::rms_norm aiter::rmsnorm2d_fwd aiter::rmsnorm2d_fwd_ck vllm::rocm_aiter_rms_norm | 0 1 | 0
aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add aiter::rmsnorm2d_fwd_with_add_ck | 1 2 4 | 0 3
vllm::rocm_aiter_rmsnorm2d_fwd_with_add | 0 1 2 | 0 1
_C::silu_and_mul _C::gelu_and_mul _C::gelu_tanh_and_mul _C::mul_and_silu aiter::silu_and_mul
 sgl_kernel::silu_and_mul sgl_kernel::gelu_and_mul sgl_kernel::gelu_tanh_and_mul | 1 | 0
_C::rotary_embedding sgl_kernel::rotary_embedding | 0 1 2 0x4@4 | 1 2
_C_cache_ops::reshape_and_cache _C_cache_ops::reshape_and_cache_flash sglang::store_cache
 | 0 1 4 | 0@2 1@3
_C::static_scaled_fp8_quant | 1 2 | 0
_C::dynamic_scaled_fp8_quant _C::dynamic_per_token_scaled_fp8_quant | 1 | 0 2
sgl_kernel::sgl_per_token_quant_fp8 sgl_kernel::sgl_per_token_group_quant_8bit | 0 | 1 2
_moe_C::topk_softmax | 3 | 0 1 2
sgl_kernel::topk_softmax | 2 | 0 1
_moe_C::moe_sum | 0 | 1
fbgemm::FloatToHFP8Quantized | 0 | 0@byte
fbgemm::HFP8QuantizedToFloat | 0 | 0@float
fbgemm::FloatToFP8RowwiseQuantized fbgemm::FloatToFused8BitRowwiseQuantized | 0 | 0+8@byte
fbgemm::FP8RowwiseQuantizedToFloat fbgemm::Fused8BitRowwiseQuantizedToFloat | 0 | 0+-8@float
fbgemm::asynchronous_complete_cumsum | 0 | 0+1
fbgemm::asynchronous_inclusive_cumsum fbgemm::asynchronous_exclusive_cumsum | 0 | 0
fbgemm::permute_pooled_embs_auto_grad | 0 1 2 3 4 | 0
fbgemm::bounds_check_indices | 0 1 2 |
"""


@cache
def _elementwise() -> dict[str, Traffic]:
    return _table(_ELEMENTWISE, "aten::", is_elementwise=True)


@cache
def _all() -> dict[str, Traffic]:
    return _elementwise() | _table(_OTHERS, "aten::") | _table(_OF_ENGINES)


def traffic_of(name: str) -> Traffic | None:
    """What the operator of a name reads and writes; those that end in `_` write in place."""
    found = _all().get(name)
    if found is None and name.endswith("_"):
        found = _elementwise().get(name[:-1])
        if found and not name.startswith("aten::_f"):
            found = Traffic(found.reads, _tensors("0"), is_elementwise=True)
    return found
