"""GPU kernels: their names, launch shapes and undisturbed durations on an MI300X."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from generator.constants import (
    FLOPS_PER_CU_CYCLE,
    HBM_BYTES_PER_S,
    NOMINAL_MHZ,
    PEAK_FLOPS_PER_NS,
    SIMDS_PER_CU,
)

MIN_KERNEL_NS = 2_400.0
BF16 = 2
FP32 = 4

_TENSILE = (
    "_BBS_BH_Bias_HA_S_SAV_UserArgs_{tile}_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0"
    "_EPS0_FDSI0_GRPM1_GRVWA8_GRVWB8_GSUAMB_GLS0_ISA942_{tuning}_WS64_WG32_8_1"
)
_TENSILE_OPERANDS = {
    "forward": "Cijk_Alik_Bljk",
    "dgrad": "Cijk_Ailk_Bljk",
    "wgrad": "Cijk_Ailk_Bjlk",
}
_TENSILE_TUNING = {
    "forward": "LRVW8_MIWT8_8_NTn1_PGR2_PLR1_SK0_TLDS1_VWA8_VWB8",
    "dgrad": "LRVW8_MIWT8_8_NTn1_PGR2_PLR1_SK3_TLDS1_VWA4_VWB8",
    "wgrad": "LRVW8_MIWT8_8_NT0_PGR2_PLR1_SK3_TLDS2_VWA4_VWB4",
}

# Matrix instructions beyond the theoretical ones: edges of tiles, padding, masked-out products
_GEMM_EXTRA = {"forward": 0.02, "dgrad": 0.05, "wgrad": 0.08}
_SMALL_TILE_EXTRA = 0.04
# How often a GEMM reads its operands through the fabric
_GEMM_READS = 3
MFMA_FLOPS_PER_SIMD_CYCLE = FLOPS_PER_CU_CYCLE // SIMDS_PER_CU

_VECTORIZED = "void at::native::vectorized_elementwise_kernel<{width}, {functor}, {arrays} >(int, "
_MUL = (
    "at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
    "at::native::binary_internal::MulFunctor<float> >"
)
_COMPLEX_MUL = (
    "at::native::BinaryFunctor<c10::complex<float>, c10::complex<float>, c10::complex<float>, "
    "at::native::binary_internal::MulFunctor<c10::complex<float> > >"
)
_FUNCTORS = {
    "add": ("8", "at::native::CUDAFunctor_add<c10::BFloat16>", 3),
    "mul": ("8", _MUL, 3),
    "complex_mul": ("4", _COMPLEX_MUL, 3),
    "silu": ("8", "at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)", 2),
    "silu_backward": (
        "8",
        "at::native::(anonymous namespace)::silu_backward_kernel(at::TensorIteratorBase&)",
        3,
    ),
    "to_float": ("4", "at::native::float_copy_kernel_cuda(at::TensorIteratorBase&)", 2),
    "to_bf16": ("4", "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)", 2),
    "fill": ("4", "at::native::FillFunctor<float>", 1),
    "divide": ("4", "at::native::BinaryFunctor<float, float, float, DivFunctor<float> >", 2),
    "clamp": ("4", "at::native::(anonymous namespace)::launch_clamp_scalar(float)", 2),
}
_DEPTH_1 = "at::native::(anonymous namespace)::TensorListMetadata<1>"
_MULTI_TENSOR = {
    "norm": (_DEPTH_1, "at::native::(anonymous namespace)::LpNormFunctor<float, (NormType)1>", 0.0),
    "scale": (
        _DEPTH_1,
        "at::native::(anonymous namespace)::BinaryOpScalarTensorFunctor<float>",
        1 / 2,
    ),
    "step": (_DEPTH_1, "at::native::(anonymous namespace)::BinaryOpScalarFunctor<float>", 1 / 2),
    "copy": (
        "at::native::(anonymous namespace)::TensorListMetadata<2>",
        "at::native::(anonymous namespace)::CopyFunctor<c10::BFloat16, float, 2>",
        1 / 3,
    ),
    "adamw": (
        "at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>",
        "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (ADAM_MODE)1, false>",
        3 / 7,
    ),
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kind of GPU activity, with the time it takes on an undisturbed nominal GPU."""

    name: str
    base_ns: float
    grid: int = 1
    block: int = 256
    launcher: str = "hipLaunchKernel"
    category: str = "kernel"
    copy_kind: str = ""
    size_bytes: int = 0
    flops: int = 0
    executed_flops: int = 0
    read_bytes: float = 0.0
    written_bytes: float = 0.0

    @property
    def nominal_cycles(self) -> float:
        """The gfx cycles of that time."""
        return self.base_ns * NOMINAL_MHZ / 1e3

    @property
    def mfma_busy_cycles(self) -> int:
        """The cycles in which matrix cores work, summed over the SIMDs."""
        return self.executed_flops // MFMA_FLOPS_PER_SIMD_CYCLE


def _executed(flops: int, extra: float) -> int:
    """Whole matrix instructions' worth of operations."""
    return round(flops * (1 + extra) / MFMA_FLOPS_PER_SIMD_CYCLE) * MFMA_FLOPS_PER_SIMD_CYCLE


def _memory_ns(size_bytes: float) -> float:
    return max(MIN_KERNEL_NS, size_bytes / HBM_BYTES_PER_S * 1e9)


def gemm(role: str, m: int, n: int, k: int) -> Kernel:
    """A Tensile GEMM (role: forward, dgrad or wgrad) of an (m, k) by a (k, n) matrix."""
    flops = 2 * m * n * k
    tile_m, tile_n = (256, 256) if min(m, n) >= 4096 else (256, 128)
    # Larger problems fill the 304 compute units more evenly; the weight gradient's long reduction
    # over the tokens costs a little.
    efficiency = {"forward": 0.63, "dgrad": 0.61, "wgrad": 0.58}[role]
    efficiency -= 0.03 if tile_n == 128 else 0.0
    extra = _GEMM_EXTRA[role] + (_SMALL_TILE_EXTRA if tile_n == 128 else 0.0)
    tile = f"MT{tile_m}x{tile_n}x64"
    body = _TENSILE.format(tile=tile, tuning=_TENSILE_TUNING[role])
    return Kernel(
        name=_TENSILE_OPERANDS[role] + body,
        base_ns=flops / (PEAK_FLOPS_PER_NS * efficiency),
        grid=ceil(m / tile_m) * ceil(n / tile_n),
        launcher="hipExtModuleLaunchKernel",
        flops=flops,
        executed_flops=_executed(flops, extra),
        read_bytes=float(_GEMM_READS * BF16 * (m * k + k * n)),
        written_bytes=float(BF16 * m * n),
    )


def elementwise(functor: str, elements: int, size_bytes: float) -> Kernel:
    """A PyTorch element-wise kernel that moves `size_bytes` through memory."""
    width, name, tensors = _FUNCTORS[functor]
    arrays = f"std::array<char*, {tensors}ul>"
    head = _VECTORIZED.format(width=width, functor=name, arrays=arrays)
    grid = max(1, elements // 2048)
    return memory_bound(f"{head}{name}, {arrays})", size_bytes, grid, written=1 / tensors)


def multi_tensor(functor: str, elements: int, bytes_per_element: float) -> Kernel:
    """A PyTorch multi-tensor kernel over `elements` parameters."""
    metadata, name, written = _MULTI_TENSOR[functor]
    return memory_bound(
        f"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{metadata}, {name} >"
        f"({metadata}, {name})",
        elements * bytes_per_element,
        grid=320,
        block=512,
        written=written,
    )


def memory_bound(
    name: str, size_bytes: float, grid: int, block: int = 256, *, written: float = 1 / 3
) -> Kernel:
    """Any kernel whose time is that of moving `size_bytes`, a share of them to memory."""
    return Kernel(
        name,
        _memory_ns(size_bytes),
        grid,
        block,
        read_bytes=size_bytes * (1 - written),
        written_bytes=size_bytes * written,
    )


def attention(
    name: str, flops: int, efficiency: float, extra: float, grid: int, size_bytes: float
) -> Kernel:
    """A Composable Kernel flash-attention kernel."""
    return Kernel(
        name,
        flops / (PEAK_FLOPS_PER_NS * efficiency),
        grid,
        flops=flops,
        executed_flops=_executed(flops, extra),
        read_bytes=size_bytes * 0.75,
        written_bytes=size_bytes * 0.25,
    )


def memcpy(direction: str, size_bytes: int, launcher: str) -> Kernel:
    """A copy between host and device (direction: HtoD or DtoH) over the PCIe link."""
    ends = {"H": "Host", "D": "Device"}
    name = f"Memcpy {direction} ({ends[direction[0]]} -> {ends[direction[-1]]})"
    return Kernel(
        name,
        MIN_KERNEL_NS + size_bytes / 48e9 * 1e9,
        launcher=launcher,
        category="gpu_memcpy",
        copy_kind=direction,
        size_bytes=size_bytes,
    )


def memset(size_bytes: int) -> Kernel:
    """A fill of device memory with zeros."""
    return Kernel(
        "Memset (Device)",
        _memory_ns(size_bytes),
        launcher="hipMemsetAsync",
        category="gpu_memset",
        copy_kind="Device",
        size_bytes=size_bytes,
        written_bytes=float(size_bytes),
    )


RCCL = Kernel(
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    base_ns=0.0,
    grid=56,
    block=512,
    launcher="hipExtLaunchKernel",
)
