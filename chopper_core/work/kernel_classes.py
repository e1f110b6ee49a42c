"""Kind and class of a kernel by its name, from one table each.

Names are those of PyTorch, Inductor, Triton, MIOpen, hipBLASLt, cuDNN, Composable Kernel, AITER,
vLLM, SGLang, FlashInfer, TensorRT-LLM, Transformer Engine, FBGEMM, Apex, bitsandbytes, XLA,
llama.cpp, and of the libraries that communicate: NCCL and RCCL (with symmetric memory), MSCCL++,
NVSHMEM, rocSHMEM, UCC, DeepEP, MORI. They are from these libraries' sources and public traces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_core.util.arrays import AnyArray, Mask
from chopper_core.util.patterns import late

if TYPE_CHECKING:
    from chopper_core.model.run import Run

UNKNOWN_COLLECTIVE: Final = "collective"
UNNAMED: Final = "unnamed group"
"""The label of a process group of which a trace states the size alone: it may be of several."""
OPTIMIZER_CLASS: Final = "optimizer"
ATTENTION_CLASS: Final = "attention"
OTHER_CLASS: Final = "other"
MATRIX_CLASSES: Final = frozenset({"gemm", "convolution", ATTENTION_CLASS})
"""Classes of kernels that the matrix units bound; memory bounds most of the others."""

_OWN_NAME: Final = 200
"""Characters that hold a kernel's own name; types of kilobytes can follow."""
_READ_CHARACTERS: Final = 1 << 12
"""Characters of a name that are searched for its class."""
FUSED: Final = late(r"^triton_(?P<kind>[a-z]+)_fused(?P<operators>(?:_\w+?)??)(?:_\d+)?$")
"""A kernel of torch.compile: the way it loops, and the operators that it fuses."""
_INDUCTOR_KINDS: Final = {
    **dict.fromkeys(("poi", "for"), "elementwise"),
    **dict.fromkeys(("red", "per", "spl"), "reduction"),
    **dict.fromkeys(("tem", "mm", "bmm"), "gemm"),
}
_MOVES: Final = late(
    r"_?(?:to_copy|unsafe_view|clone|copy|cat|stack|transpose|permute|view|slice|expand|unsqueeze"
    r"|constant_pad_nd|split_with_sizes|split|t)_?(?=_|\d|$)|_|\d"
)
"""Parts of the operators that only move data, and the separators between them."""


_Table = Sequence[tuple[str, re.Pattern[str], str]]
"""A literal that is in all texts in which a pattern occurs, the pattern, and what it tells."""


@cache
def class_table(text: str) -> _Table:
    """Names and patterns, a line each; an indented line continues the one before."""
    joined = re.sub(r"\n +", "", text.strip())
    pairs = (line.lower().split(maxsplit=1) for line in joined.splitlines())
    return tuple((*each, name) for name, pattern in pairs for each in alternatives(pattern))


def alternatives(pattern: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    """The alternatives of a pattern, each with its longest literal that nothing makes optional."""
    plain = pattern
    for part in (r"\\.", r"\[\^?.[^]]*\]", r"\([^()]*\)"):
        while plain != (plain := re.sub(part, lambda found: " " * len(found[0]), plain)):
            pass
    begin = 0
    for bar in re.finditer(r"\||$", plain):
        own = slice(begin, bar.start())
        literals = re.sub(r".(?:[?*]|\{\d*,?\d*\})|[.^$+]", " ", plain[own]).split(" ")
        yield max(literals, key=len), late(pattern[own])
        begin = bar.end()


BLOCK: Final = 64
"""Names that are looked at together: kilobytes of one hold most letters, but few of the words."""
_GRAM_BITS: Final = 20
_PAIRS: Final = 1 << _GRAM_BITS
"""Where the numbers of pairs of characters begin, for literals of fewer than four."""
_NONE: Final = _PAIRS + (1 << 16)
_MIX: Final = np.uint32(2654435761)


def _grams(text: bytes, size: int) -> AnyArray:
    """A number for every four or two characters in a row, in any order."""
    found = [
        np.frombuffer(text, f"<u{size}", (len(text) - place) // size, place)
        for place in range(min(size, len(text)))
    ]
    whole = np.concatenate(found) if found else np.empty(0, f"<u{size}")
    if size == 2:
        return whole.astype(np.uint32) + np.uint32(_PAIRS)
    return (whole * _MIX) >> np.uint32(32 - _GRAM_BITS)


@cache
def _grams_of(table: _Table) -> tuple[AnyArray, AnyArray]:
    """The numbers of every literal of a table, one behind the other, and where each begins; of
    those of fewer than two characters that of none."""
    texts = [literal.encode() for literal, _, _ in table]
    grams = [_grams(text, 4 if len(text) >= 4 else 2) for text in texts]
    grams = [own if len(own) else np.array([_NONE], np.uint32) for own in grams]
    sizes = np.array([len(own) for own in grams])
    return np.concatenate(grams), np.cumsum(sizes) - sizes


@cache
def _wanted() -> Mask:
    """Which numbers are any literal's that is looked for in many names."""
    found = np.zeros(_NONE + 1, np.bool_)
    tables = class_table(CLASSES), class_table(_COMMUNICATION)
    for table in (*tables, *map(_table_of_words, _LACKING)):
        found[_grams_of(table)[0]] = True
    return found


def grams_in(texts: Sequence[str]) -> Mask:
    """Which of the numbers that literals have are in some texts, in lower case."""
    # Long names repeat their types, and no literal has a space.
    parts = set(" ".join(texts).lower().split(" "))
    there, joined = np.zeros(_NONE + 1, np.bool_), " ".join(parts).encode("utf-8", "replace")
    wanted = _wanted()
    for size in (2, 4):
        found = _grams(joined, size)
        # No number is outside; not looking whether any is takes half the time.
        there[found[wanted.take(found, mode="wrap")]] = True
    there[_NONE] = True
    return there


def occurring(table: _Table, there: Mask) -> _Table:
    """The lines of a table whose literals may occur in some texts with these numbers: far fewer
    than all, which are searched for in each text."""
    grams, first = _grams_of(table)
    may = np.logical_and.reduceat(there[grams], first)
    return tuple(line for line, is_there in zip(table, may.tolist(), strict=True) if is_there)


def _first(table: str, text: str) -> str | None:
    return _first_of(class_table(table), text)


def _first_of(table: _Table, text: str) -> str | None:
    """The name of the first pattern of a table that occurs in a text's beginning."""
    lowered = text[:_READ_CHARACTERS].lower()
    for literal, pattern, name in table:
        # Most literals aren't there, which takes a hundredth of a search.
        if literal in lowered and pattern.search(lowered):
            return name
    return None


# Libraries; experts: DeepEP and its kin, plain and mangled, whose layout kernels stay on the GPU;
# all-reduces of inference engines, on peers' memory or by the switch.
_COMMUNICATION: Final = r"""
communication  (?:^|[^a-z])[nr]ccl(?:dev|sym|kernel)|msccl|(?:roc|nv|ro)_?shmem|\bucc_|^[nr]ccl_
               |\bexecutor_kernel|c10d::symmetric_memory::
               |deep_?ep\d*(?:::|\d)(?!\w{0,99}layout)|dpsk(?:::|\d+)ep(?:::|\d+)(?!layout)
               |int(?:er|ra)node(?:_ll)?(?:::|\d+)(?:dispatch|combine|notify|cached_notify|barrier)
               |\bmori::|\bpplx::|ep(?:dispatch|combine)\w{0,99}kernel
               |multimem_|cross_device_(?:reduce|store|load)|(?:custom|quick)_?(?:all_?)?reduce
               |(?:one|two)_?shot_(?:all|reduce)|all_?reduce\w{0,99}(?:kernel|shot|lamport|fusion)
               |(?:^|::|\s)\w{0,99}all_?gather\w{0,99}(?:kernel|[<(])
               |(?:^|::|\s)\w{0,99}reduce_?scatter\w{0,99}(?:kernel|[<(])
               |(?:^|::|\s)\w{0,99}all_?to_?all\w{0,99}(?:kernel|[<(])
               |(?:^|::|\s)\w{0,99}all2all\w{0,99}(?:kernel|[<(])
               |moe_(?:comm|alltoall)::|userbuffers(?:_|::)|hybrid_ep(?:::|\d)|\ball_?reduce::
               |trt\w{0,9}_all_?reduce
"""
_INDUCTOR_OPS: Final = r"""
attention      flex_attention|scaled_dot_product
norm           (?:rms|layer|batch|group)_norm
softmax        softmax|nll_loss|cross_entropy
pooling        _pool\dd
"""
CLASSES: Final = r"""
kv_cache       reshape_and_cache|dequant_cache|concat_and_cache|store_kv_?cache
               |set_(?:mla_)?kv_buffer|kv_indices|(?:copy|swap)_blocks
               |kv_?cache_(?:copy|append|scatter)|copy_kv|append_?paged_?kv|req_to_token
               |concat_?kv_?cache|alloc_(?:extend|decode)_|cache_locs|get_last_loc|slot_mapping
               |kv_blocks
moe            topk_softmax|build_?expert|deepseek\w{0,99}topk|_router_(?!gemm)|fused_topk
               |_combined_routing|computestrides|seg_indptr|expert_tokens|kernel_ep_
               |\bep_(?:scatter|gather)|sort_chunks_by_map|deepep_(?:un)?permute|bitmatrix
               |finalize_matmul_scatter|finalize_?moe|moe_?finalize|moe::\w{0,99}finalize
               |expand_?input_?rows|routing|expert_?(?:first|prefix)
               |moe_(?:align|sum|permute|sort)|MoeSorting|topk_?gating|grouped_topk|_topk_forward
               |biased_grouped|src2dst|(?:pre|post)_reorder_|expert_(?:count|map)|token_permut
               |(?:un)?permute_kernel|moe_stage\d_reduce
attention      fmha|xqa_|fused_attn|bwd_kernel_one_col|wkv\d|chunk_(?:kda|cumsum)
               |(?<![a-z])fwd_fp8|attn_fwd|attn_bwd|bwd_kernel_(?:d[kq]|fuse)|mha_(?:fwd|bwd)
               |flash_|flash(?:attn|mla)|unified_attention|reduce_segments|sage_?(?:fwd|bwd|attn)
               |bwd_preprocess|_attention|attention_|scaled_dot_product|^_fwd_(?:grouped_)?kernel
               |mla_(?:dec|pfl|prefill|fwd|reduce|a16|a8)|(?<![a-z])pa_(?:fwd|dec|[bf]f?p?\d)
               |BatchPrefill|BatchDecode|BatchMLA|MergeStates|SinglePrefill|SingleDecode
               |gated_delta|linear_attn|_attn_|attn_kernel|att_m_fwd|mqa_logits|lightning_attn
               |(?<![a-z])mha_|retention_|rwkv|selective_scan|bmm_chunk
               |chunk_(?:scan|state|fwd|bwd)|state_passing|recurrent_|recompute_w_u|wy_repr
               |solve_tril|(?<![a-z])gqa_|_mha\b|mla_metadata|(?<![a-z])flash::
rope           \brope\b|rope_|_rope|rotary|kn_entry_\dc_|biasrope
embedding      embedding|EmbeddingBag|linearize_index|index_?select|get_rows|set_rows
copy           multi_tensor_apply.{0,999}copy
optimizer      multi_tensor_
quantize       ^(?!.{0,999}norm).{0,999}fp8\w{0,99}quant|hfp8|fp8rowwise|fp8_qparam|dequant_mm
convolution    conv(?!er)|xdlops_bwd_weight|implicit_?(?:gemm|con)|igemm_|winograd|im\d?d?2col
               |col2im|vol2col|col2vol|_[fdw](?:prop|grad)_|gtcx|(?<=[a-z\d])cudnn_|cudnn::cnn::
               |cudnn.{0,200}[fdw](?:prop|grad)|(?<![a-z])[dw]grad(?:\dd|_engine|_alg)
               |fft\dd_[rc]2[rc]|flip_filter
norm           rms_?norm|layer_?norm|lrn_|batch_?norm|group_?norm|instance_?norm|l2_?norm|bnorm
               |qk_?norm|(?<![a-z])[blr]n_?fw|(?<![a-z])[blr]n_?bw|(?<!de)normali[sz]ation|RowwiseMoments
               |GammaBeta|ComputeInternalGradients|DsDgamma|weight_norm|fused_ln(?![a-z])
               |Compute(?:\dd)?(?:Backward)?FusedParams|cuComputeGradInput
embedding      bucketize_sparse|permute_indices|bounds_check_ind
gemm           (?:^|_)Cijk_|gemm(?<!fbgemm)|nvjet|cutlass|hipblaslt|xmma|scaled_mm|matmul
               |matrix_multiply|gemv|\bwvsp(?:l|li)t_?k|\bllmm1|skinny|(?<![a-z])fmoe|mul_mat
               |marlin(?!_repack)|machete|(?:^|_)b?mm(?:_|\d|$)|\bbmm|fused_moe
               |moe_(?:ck|mm|stage)|dot_kernel|a(?<![a-z\d]a)\d{1,2}_?[aw]\d{1,2}(?!\d)
               |w(?<![a-z\d]w)\d{1,2}_?[aw]\d{1,2}(?!\d)
               |weight_only|[bs]gmv|flatmm|rnn_blockpersist|persistrnn
               |lora_(?:shrink|expand|[ab]_)|spmm|sddmm|wmma_
elementwise    moe::dev::activation
moe            (?<![a-z])moe(?![a-z])|expert
quantize       quant(?!ile)|\bamax_|absmax|convert_fp8|per_token_group|cvt_\w{0,30}to_fp\d
               |delayed_scaling|swizzle_\w{0,30}scal|scale_inv|dynamic_\w{0,30}fp\d
               |(?:to|cast)_?fp8|(?:to|cast)_?mxfp|cast_transpose
optimizer      \bk\w{0,30}optimizer|adam|adagrad|adafactor|rmsprop|\blamb(?![a-z])|_sgd|sgd_|lion_
               |newton_?schulz
softmax        soft_?max|nll|cross_?entropy|(?<![a-z])(?:ctc|focal)_loss_
               |(?<![a-z])cce_|(?<![a-z])jsd_|(?<![a-z])kl_?div_
embedding      index_?(?:put|copy|add|fill|func)|take_put|gpu_index_kernel|indexing_backward
               |gather(?!topk|median|kth)|scatter|partials?_(?:per_)?segment|grad_weight
pooling        pool|adaptive_average|roi_align
copy           ^copy(?!right)|_copy\b|roll_cuda|flip_cuda|(?:reflection|replication)_pad|memcpy
               |pixel_(?:un)?shuffle|memory_?copy|copyBuffer|fillBuffer
               |n(?:chw|hwc)\w{0,9}to_?n(?:chw|hwc)|memset|CatArray|concat_|split_with_sizes
               |chunk_cat|copy_kernel|direct_copy|veccopy|\bcpy_|transpose(?!Params)
               |tensorTransform|permute|repack|StackArray|multi_(?:un)?padding|repeat_interleave|compute_cuda_kernel<
               |pack_seq|a2a_(?:un)?pack
               |^(?:loop|input|wrapped)_(?:(?:copy|bitcast|pad|concatenate|slice|dynamic|update|broadcast|reverse)_?)+(?:fusion|\d|$)
reduction      reduce_kernel|^(?:loop|input)_\w{0,99}reduce_\w{0,99}fusion
               |Device(?:Segmented)?Reduce(?!ByKey)|nrm2_|asum_|nvfuser_(?:inner|outer)
               |reduce_fusion|reduction|reduce_dbias|lpnorm|row_?sum|col(?:umn)?_?reduce|arg_?max
random         distribution_|multinomial|randperm|bernoulli|philox|dropout|random|curand|xorwow
               |rngbit|seed_pseudo
sort           (?<!ten)sort|top_?k|rejection_|radix|scan|cub::|rocprim|thrust|sampling|bincount
               |unique|median|histogram|kth_?value|write_indices|(?<![a-z])nms_|build_tree
               |spec_info|recovered_tokens|min_p_|penalt(?:y|ies)|gumbel|eagle_|spec_?decod
elementwise    elementwise|mul_broadcast|pointwise|tensor_apply|foreach|\bfill|vector_?add|_and_mul
               |silu|gelu|swiglu|geglu|^(?:loop|input)_\w{0,99}fusion|^wrapped_|SubTensorOp
               |epilogue::|unary_|bin_bcast|scale_f32|scal_kernel|amp_update|arange|tensorOp
               |optensor|clamp|where_kernel|relu_|fused_add|gated_act|masked_fill|triu_tril
               |upsample|grid_sampler|offsets_range|compute_position|resolve_future|softplus
               |sigmoid|(?<![a-z])glu_|op\dd?tensor|op_generic_tensor|neuron(?:fwd|bwd)|_assert_
               |(?:^|[_\s:])(?:add|sub|mul|div|exp|tanh|axpb?y|scal|bias|residual)_(?:\w{1,30}_)?kernel
norm           norm(?!al)
"""
_COLLECTIVES: Final = r"""
all_gather     all_?gather|userbuffers_\w{0,99}_ag
reduce_scatter reduce_?scatter|post_backward_reduce|userbuffers_\w{0,99}_rs
all_reduce     all_?reduce|userbuffers_\w{0,99}_(?:rr|mc|ar)|cross_device_reduce
               |(?:custom|quick)_?reduce|multimem_\w{0,99}reduce
all_to_all     all_?to_?all|all2all
broadcast      broadcast
send_recv      send_?recv|userbuffers_p\w{0,99}(?:send|recv)
               |\b(?:i?send|i?recv|batch_isend_irecv|coalesced)\b|:send|:recv
barrier        barrier
dispatch       dispatch
combine        combine
gather         \bgather
scatter        \bscatter
reduce         reduce
"""


def collective_name(text: str) -> str | None:
    return _first(_COLLECTIVES, text)


@cache
def communication_classes() -> frozenset[str]:
    """The classes of kernels that communicate between GPUs."""
    return frozenset({UNKNOWN_COLLECTIVE, *(name for _, _, name in class_table(_COLLECTIVES))})


def is_communication(name: str) -> bool:
    """Whether a kernel communicates between GPUs.

    One that torch.compile fused with a collective's result only reads it.
    """
    return kernel_class(name) in communication_classes()


_CLASS_OF: Final[dict[str, str]] = {}
"""The class of each name that was asked for."""
_MOST_KNOWN: Final = 1 << 17
_MANY_NAMES: Final = 1 << 10
"""The classes of a run with so many are kept, also by the process that has them of its reading."""
PHASE_WORDS: Final = (
    "ward", "wd", "wrw", "grad", "prop", "adam", "adaf", "lamb", "sgd", "loss", "entropy"
)  # fmt: skip
MASK_WORDS: Final = ("causal", "genericattentionmask", "fmha_", "flash_")
TYPE_WORDS: Final = ("tf32",)
"""Parts of all names that tell a phase, a mask or a type: most names have none."""
_LACKING: Final[dict[tuple[str, ...], set[str]]] = {
    words: set() for words in (PHASE_WORDS, MASK_WORDS, TYPE_WORDS)
}
"""The names among those that were looked at together that have none of some words."""


@cache
def _table_of_words(words: tuple[str, ...]) -> _Table:
    return tuple((word, late(re.escape(word)), word) for word in words)


def has_any(name: str, words: tuple[str, ...]) -> bool:
    """Whether a kernel's name has one of some words, in any case."""
    if name in _LACKING[words]:
        return False
    plain = name.lower()
    return any(word in plain for word in words)


def kernel_class(name: str) -> str:
    known = _CLASS_OF.get(name)
    return kernel_classes([name])[0] if known is None else known


def kernel_classes(names: Sequence[str]) -> list[str]:
    """The class of each of some kernels; of many long names in less time than one by one."""
    found = {name: _CLASS_OF.get(name, "") for name in names}
    unknown = [name for name, known in found.items() if not known]
    for begin in range(0, len(unknown), BLOCK):
        block = unknown[begin : begin + BLOCK]
        table, communication = class_table(CLASSES), class_table(_COMMUNICATION)
        if len(unknown) >= BLOCK:
            there = grams_in(block)
            table, communication = occurring(table, there), occurring(communication, there)
            for words, lacking in _LACKING.items():
                if not occurring(_table_of_words(words), there):
                    lacking.update(block)
        found.update((name, _class_of(name, table, communication)) for name in block)
    # Others may have asked meanwhile: what is returned doesn't depend on what is kept.
    if len(_CLASS_OF) + len(unknown) > _MOST_KNOWN:
        _CLASS_OF.clear()
        for lacking in _LACKING.values():
            lacking.clear()
    _CLASS_OF.update((name, found[name]) for name in unknown)
    return [found[name] for name in names]


def classes_of_names(run: Run) -> tuple[str, ...]:
    """The class of each name of a run's table, worked out once for its files: of many long names
    that takes seconds."""
    names = run.table.names

    def made() -> tuple[str, ...]:
        return tuple(kernel_classes(names))

    def checked(known: tuple[str, ...]) -> tuple[str, ...]:
        if len(known) != len(names):
            raise ValueError("the classes of other names")
        return known

    key, is_costly = ("classes of names",), len(names) >= _MANY_NAMES
    return run.memo(
        key,
        lambda: run.kept(key, tuple[str, ...], made, tuple, checked, is_costly=is_costly),
    )


def _class_of(name: str, table: _Table, communication: _Table) -> str:
    """The class of a kernel by the lines of the tables that may occur in its name."""
    if not name.startswith("triton_") and _first_of(communication, name[:_OWN_NAME]):
        return collective_name(name) or UNKNOWN_COLLECTIVE
    fused = FUSED.match(name)
    if fused and fused["kind"] in _INDUCTOR_KINDS:
        return _of_fused(fused["kind"], fused["operators"].strip("_"))
    return _first_of(table, name) or OTHER_CLASS


def _of_fused(kind: str, operators: str) -> str:
    usual = _INDUCTOR_KINDS[kind]
    known = _first(_INDUCTOR_OPS, operators) or usual
    if usual == "gemm":
        # A template computes a product; what is named with it, it computes on the way.
        other = "convolution" if "conv" in operators else usual
        return known if known == ATTENTION_CLASS else other
    if known != "elementwise" or not any(map(str.isalpha, operators)):
        return known
    rest = _MOVES.sub("", operators)
    return "copy" if not rest else "embedding" if rest == "embedding" else usual
