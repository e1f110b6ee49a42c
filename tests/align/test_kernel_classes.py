"""The table of kernel classes: names of many libraries, near misses, and all real names."""

from __future__ import annotations

import re
import string
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.ingest.open import open_run
from chopper_core.work import kernel_classes as module
from chopper_core.work.kernel_classes import (
    BLOCK,
    CLASSES,
    MASK_WORDS,
    MATRIX_CLASSES,
    OTHER_CLASS,
    PHASE_WORDS,
    TYPE_WORDS,
    UNKNOWN_COLLECTIVE,
    alternatives,
    class_table,
    communication_classes,
    grams_in,
    has_any,
    is_communication,
    kernel_class,
    kernel_classes,
    occurring,
)
from tests.realdata.conftest import FOLDER as REALDATA

COMMUNICATION = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": UNKNOWN_COLLECTIVE,
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWork)": "all_gather",
    "ncclSymDevKernel_ReduceScatter_LD_sum_bf16(ncclSymDevArgs)": "reduce_scatter",
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16": "all_reduce",
    "rcclKernel_Generic": UNKNOWN_COLLECTIVE,
    "void mscclpp::allreduce8<__half>(void*)": "all_reduce",
    "void dpsk::ep::internode::dispatch<false, 8, true, 24>(int4*, float*)": "dispatch",
    "void dpsk::ep::internode::combine<true, 8, __nv_bfloat16>(int4*)": "combine",
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)": "dispatch",
    "void deep_ep::intranode::notify_dispatch<8>(int const*)": "dispatch",
    "_ZN7deep_ep9intranode7combineI14__hip_bfloat16Li8ELi768EEEvPT_": "combine",
    "multimem_all_reduce_kernel<c10::BFloat16, 16>(void*)": "all_reduce",
    "void two_shot_all_reduce_kernel<c10::BFloat16>(void*)": "all_reduce",
    "void vllm::cross_device_reduce_2stage<__hip_bfloat16, 8>(vllm::RankData*)": "all_reduce",
    "void aiter::cross_device_reduce_1stage<__hip_bfloat16, 8>(aiter::RankData*)": "all_reduce",
    "void aiter::reduce_scatter_cross_device_store<float, 8>()": "reduce_scatter",
    "void quickreduce::allreduce_prototype_twoshot<CodecFP>()": "all_reduce",
    "void sglang::custom_all_reduce<half>()": "all_reduce",
    "flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_lamport<8>": "all_reduce",
    "nvshmemi_barrier_threadgroup_kernel": "barrier",
    "rocshmem_all_to_all_kernel": "all_to_all",
    "ucc_ec_cuda_reduce_kernel<float>": "reduce",
    "void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>()": "dispatch",
}
"""Kernels that communicate, with their collective."""

COMPUTE = {
    "void fbgemm_gpu::_block_bucketize_sparse_features_cuda_kernel2<false, int>(int)": "embedding",
    "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int, int)": "copy",
    "void bounds_check_indices_kernel<long, false>(at::GenericPackedTensorAccessor<long, 1ul, "
    "at::RestrictPtrTraits, int>, fbgemm_gpu::BoundsCheckMode)": "embedding",
    "void fbgemm_gpu::(anonymous namespace)::_compute_FP8_quantize_cuda_kernel()": "quantize",
    "void at::native::vectorized_elementwise_kernel<4, fbgemm_gpu::_hfp8_to_float_gpu>": "quantize",
    "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47Gridwise": (
        "convolution"
    ),
    "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 4, 16, 8, 2, 4>(int, int)": "gemm",
    "void wvSpltK_hf_<__half, 32, 2, 16, 8, 2, 1>(int)": "gemm",
    "void tensorrt_llm::kernels::finalizeMoeRoutingKernel<float>()": "moe",
    "void cutlass_kernels::moe::finalize_kernel<float>()": "moe",
    "void moe::dev::routing::routingMainKernel<float>()": "moe",
    "void fused_qknorm_warp<__nv_bfloat16>()": "norm",
    "void transformer_engine::detail::cast_transpose_fused_kernel<false>()": "quantize",
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<float>()": "norm",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512>()": "norm",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_64x128x128": "attention",
    "sm80_xmma_fprop_implicit_gemm_indexed_bf16bf16_bf16f32_nhwckrsc_nchw": "convolution",
    "void flashinfer::AppendPagedKVCacheKernel<128, 8>()": "kv_cache",
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<0>()": "attention",
    "input_reduce_fusion_12": "reduction",
    "loop_add_multiply_fusion": "elementwise",
    "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>": "embedding",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN": "gemm",
    "bmm_E4m3_E2m1E2m1_Fp32_t128x8x512u2_s6_et64x8_m256x8x64_cga2x1x1_sm100f": "gemm",
    "bmm_Bfloat16_E2m1E2m1_Fp32_t128x16x512_s5_tma_gmem_sm100a": "gemm",
    "nvjet_tst_128x256_64x4_2x1_v_bz_TNT": "gemm",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x1_tn>": "gemm",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1": "gemm",
    "fused_moe_kernel": "gemm",
    "void mul_mat_q<(ggml_type)12, 128, false>(char const*)": "gemm",
    "triton_tem_fused_addmm_4": "gemm",
    "igemm_wrw_gtcx3_nhwc_fp16_bx0_ex0_bt256x256x32_gkgs": "convolution",
    "sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc": "convolution",
    "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<int> >()": "attention",
    "kernel_unified_attention_2d": "attention",
    "sage_fwd": "attention",
    "bwd_kernel_fuse": "attention",
    "void paged_attention_ll4mi_QKV_mfma16_kernel<half>": "attention",
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<half>": "attention",
    "triton_red_fused__to_copy_add_addmm_mean_mul_pow_3": "reduction",
    "triton_per_fused_native_layer_norm_backward_7": "norm",
    "triton_red_fused__log_softmax_nll_loss_forward_9": "softmax",
    "triton_poi_fused__to_copy_1": "copy",
    "triton_poi_fused_cat_transpose_view_12": "copy",
    "triton_poi_fused_add_cos_sin_0": "elementwise",
    "triton_poi_fused_0": "elementwise",
    "triton_poi_fused_embedding_2": "embedding",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)": "rope",
    "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>()": "kv_cache",
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64E": "norm",
    "void at::native::(anonymous namespace)::cuComputeGradGammaBeta<float>": "norm",
    "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float> >()": "optimizer",
    "void split_embedding_backward_codegen_rowwise_adagrad_weighted_kernel": "embedding",
    "SubTensorOpWithScalar1d": "elementwise",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>": "copy",
    "quantize_q8_1(float const*, void*)": "quantize",
    "volta_scudnn_128x64_relu_interior_nn_v1": "convolution",
    "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1": "convolution",
    "cudnn_infer_ampere_scudnn_128x128_stridedB_splitK_small_nn_v1": "convolution",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x128>": (
        "convolution"
    ),
    "void cudnn::cnn::kern_precompute_indices<false>(int, int)": "convolution",
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)": "convolution",
    "void cudnn::detail::wgrad_alg0_engine<__half, 512, 6, 5>(int)": "convolution",
    "void dgrad2d_grouped_direct_kernel<float, float, float>": "convolution",
    "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*)": "convolution",
    "Im2d2Col": "convolution",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>()": "norm",
    "void cudnn::detail::bn_bw_1C11_kernel_new<__half, float, float2, 512>()": "norm",
    "void cudnn::batchnorm_bwtr_nhwc_semiPersist<__half, __half2>()": "norm",
    "void transformer_engine::normalization::ln_bwd_tuned_kernel<Kernel_traits>()": "norm",
    "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float>()": "copy",
    "CopyHostToDevice": "copy",
    "CopyDeviceToDevice2D": "copy",
    "MEMORY_COPY_DEVICE_TO_HOST": "copy",
    "FillBuffer": "copy",
}
"""Kernels that compute, with their class."""

NEAR_MISSES = (
    "triton_poi_fused_all_gather_into_tensor_wait_tensor_3",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>",
    "deep_ep::layout::get_dispatch_layout<256, 4, 8>",
    "void flash_attn_combine_results<256>(float const*)",
    "void at::native::(anonymous namespace)::all_elements_kernel<float>",
    "broadcast_tensor_elementwise",
    "splitKreduce_kernel<32, 16>",
    "dispatch_softmax_forward",
)
"""Kernels with a collective's word in the name that stay on their GPU."""


@pytest.mark.parametrize("name", COMMUNICATION)
def test_kernels_that_communicate(name: str) -> None:
    assert is_communication(name)
    assert kernel_class(name) == COMMUNICATION[name]


@pytest.mark.parametrize("name", COMPUTE)
def test_kernels_that_compute(name: str) -> None:
    assert not is_communication(name)
    assert kernel_class(name) == COMPUTE[name]


def test_names_of_many_libraries_have_their_class() -> None:
    lines = (Path(__file__).parent / "kernel_names.tsv").read_text().splitlines()
    assert len(lines) > 1000
    wanted = [line.partition("\t") for line in lines]
    wrong = {name: kernel_class(name) for known, _, name in wanted if kernel_class(name) != known}
    assert not wrong
    assert {known for known, _, _ in wanted} >= MATRIX_CLASSES


def test_only_kernels_that_communicate_have_the_classes_of_collectives() -> None:
    """Who communicates is told by the class."""
    words = {name for _, _, name in (*class_table(CLASSES), *class_table(module._INDUCTOR_OPS))}
    assert not communication_classes() & {*words, *module._INDUCTOR_KINDS.values(), OTHER_CLASS}
    assert {*COMMUNICATION.values()} <= communication_classes()


def test_no_word_that_tells_a_class_has_a_space() -> None:
    """Names are split there before their words are looked up together."""
    tables = map(class_table, (CLASSES, module._COMMUNICATION))
    words = {literal for table in tables for literal, _, _ in table}
    assert not [word for word in {*words, *PHASE_WORDS, *MASK_WORDS, *TYPE_WORDS} if " " in word]


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_collective_s_word_alone_is_no_communication(name: str) -> None:
    assert not is_communication(name)


@pytest.mark.parametrize(
    "name",
    [
        "kernel0",
        "my_kernel(float*)",
        "triton__0d1d2d3d",
        "conversion_table",
        "fusion_123",
        "CudaCodeGen::kernel1",
        "void regular_fft<256u, EPT<16u>, 8u>",
        "void trsm_left_kernel<double, 256, 4, true>",
    ],
)
def test_an_unknown_name_has_no_class(name: str) -> None:
    assert kernel_class(name) == OTHER_CLASS


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "name",
    [
        "mi300x_ddp4/rank0.json.gz",
        "mi300x_qwen05b.json.gz",
        "mi300x_sglang_prefill.json.gz",
        "vllm_decode_graph.json.gz",
        "mi300x_resnet_act_ckpt_rank0of8.json.gz",
        "mi300x_train_resnet18.json.gz",
        "traces_2of128",
        "v100_dlrm_8rank",
        "mi350x_aorta_rocprofv3",
        "rocprofv3_csv",
    ],
)
def test_nearly_all_time_of_real_traces_has_a_class(name: str) -> None:
    """The rest are the nameless kernels of early torch.compile (`triton__0d1d`) and few others."""
    if not (REALDATA / name).exists():
        pytest.skip(f"no {REALDATA / name}")
    table = open_run(str(REALDATA / name), jobs=1).table
    time = np.bincount(table.kernel, weights=table.duration_ns, minlength=len(table.names))
    unknown = np.array([kernel_class(each) == OTHER_CLASS for each in table.names])
    assert time[unknown].sum() <= 0.005 * time.sum()


@given(st.data(), st.sampled_from(class_table(CLASSES)))
def test_what_matches_a_pattern_has_its_literal(
    data: st.DataObject, entry: tuple[str, re.Pattern[str], str]
) -> None:
    literal, pattern, _ = entry
    assert literal in data.draw(st.from_regex(re.compile(pattern.pattern, re.ASCII)))


def test_literals_leave_out_what_may_be_absent() -> None:
    found = alternatives(r"ab?cd+(?:ef|gh)*ij|[kl|]m{0,2}\|no|(?:p(?:q|r)|s){2}t.uv")
    assert [(literal, pattern.pattern) for literal, pattern in found] == [
        ("cd", r"ab?cd+(?:ef|gh)*ij"),
        ("no", r"[kl|]m{0,2}\|no"),
        ("uv", r"(?:p(?:q|r)|s){2}t.uv"),
    ]


def test_many_long_names_have_the_class_that_each_has_alone() -> None:
    """Of a block of names only the patterns whose words occur in it are searched for."""
    random, table = Random(7), class_table(CLASSES)
    letters = string.ascii_letters + string.digits + "_::<>, "
    words = [literal for literal, _, _ in table]
    names = [f"void at::native::elementwise_kernel<4, Functor<{i}> >(int, {i})" for i in range(90)]
    for number in range(400):
        noise = "".join(random.choices(letters, k=random.choice((3, 40, 700))))
        names.append(f"{noise}{random.choice(words)}{noise[::-1]}{number}")
    alone = [each for name in names for each in kernel_classes([f"{name} "[:-1]])]
    module._CLASS_OF.clear()
    assert kernel_classes(names) == alone == [kernel_class(name) for name in names]
    few = occurring(table, grams_in(names[:BLOCK]))
    assert len(few) < len(table) / 8 and "elementwise" in {name for _, _, name in few}


@pytest.mark.parametrize("words", [PHASE_WORDS, MASK_WORDS, TYPE_WORDS])
def test_names_that_were_looked_up_together_have_the_words_that_they_have(
    words: tuple[str, ...],
) -> None:
    """Also where the whole block has none, and beyond the part that tells the class."""
    random, end = Random(3), "x" * 5000
    names = [f"void kernel_{number}<{random.choice('äÄİxyz')}>" for number in range(3 * BLOCK)]
    for place in range(BLOCK):
        word = "".join(random.choice((each, each.upper())) for each in random.choice(words))
        names[place] = f"{names[place]}{end * (place % 2)}{word}"
    for known in (module._CLASS_OF, *module._LACKING.values()):
        known.clear()
    kernel_classes(names)
    assert [has_any(name, words) for name in names] == [
        any(word in name.lower() for word in words) for name in names
    ]
    assert len(module._LACKING[words]) == 2 * BLOCK and not has_any(names[BLOCK], words)
