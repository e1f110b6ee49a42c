"""Commands that run an operator call's shape alone: `hipblaslt-bench`, and one with PyTorch."""

from __future__ import annotations

from typing import Final

from chopper_core.model.shapes import MIXED, Attention, CallShape, Convolution, Product

_HIPBLASLT_TYPES: Final = {
    "fp64": "f64_r",
    "fp32": "f32_r",
    "fp16": "f16_r",
    "bf16": "bf16_r",
    "fp8": "f8_r",
    "int8": "i8_r",
    "int": "i32_r",
}
_TORCH_TYPES: Final = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
}
_COMPUTE_TYPES: Final = {"fp64": "f64_r", "int8": "i32_r"}


def hipblaslt_line(call: CallShape) -> str | None:
    """The `hipblaslt-bench` command of a matrix product, None where the tool has none.

    hipBLASLt stores columns one after the other, PyTorch rows: its first operand is PyTorch's
    second, transposed, its m is PyTorch's n. Where the trace has no strides, both are taken to be
    stored by rows.
    """
    sizes = call.sizes
    if not isinstance(sizes, Product) or sizes.groups:
        return None
    first, _, second = call.operands.partition(MIXED)
    types = [first, second or first, call.result or first]
    if any(name not in _HIPBLASLT_TYPES for name in types):
        return None
    b_type, a_type, d_type = (_HIPBLASLT_TYPES[name] for name in types)
    layout = sizes.layout or "NN"
    trans_a, trans_b = layout[0], layout[1]
    rows, columns, inner, batch = sizes.n, sizes.m, sizes.k, sizes.batch
    lda = rows if trans_a == "N" else inner
    ldb = inner if trans_b == "N" else columns
    line = (
        f"hipblaslt-bench --api_method c -m {rows} -n {columns} -k {inner} "
        f"--lda {lda} --ldb {ldb} --ldc {rows} --ldd {rows} "
        f"--transA {trans_a} --transB {trans_b} --batch_count {batch} "
    )
    if batch > 1:
        line += (
            f"--stride_a {rows * inner} --stride_b {inner * columns} "
            f"--stride_c {rows * columns} --stride_d {rows * columns} "
        )
    if "_scaled" in call.operator:
        line += "--scaleA 1 --scaleB 1 "
    if sizes.has_bias:
        line += f"--bias_vector --bias_type {d_type} "
    return line + (
        f"--alpha 1 --beta 0 --a_type {a_type} --b_type {b_type} --c_type {d_type} "
        f"--d_type {d_type} --compute_type {_COMPUTE_TYPES.get(first, 'f32_r')} "
        "--iters 100 --cold_iters 20"
    )


def torch_line(call: CallShape) -> str | None:
    """A command that times a call of this shape with PyTorch, None where it can't be rebuilt.

    Operands are random, as the time of a product depends on its data.
    """
    element = call.operands.partition(MIXED)[0]
    prepared = _prepared(call, element)
    if prepared is None:
        return None
    operands, expression = prepared
    rate = f"  {{{call.flops / 1e12:.6g}/s:.1f}} TFLOP/s" if call.flops else ""
    code = (
        "import torch; from torch.utils.benchmark import Timer; F=torch.nn.functional; "
        f"{operands}; "
        f"s=Timer({expression!r}, globals=globals()).blocked_autorange(min_run_time=1).median; "
        f"print(f'{{s*1e6:.2f}} us{rate}')"
    )
    return 'python -c "' + code + '"'


def _prepared(call: CallShape, element: str) -> tuple[str, str] | None:
    match call.sizes:
        case Product(groups=0) if call.operands == "fp8":
            return _scaled(call.sizes)
        case Product(groups=0) if element in _TORCH_TYPES and MIXED not in call.operands:
            return _product(call.sizes, element)
        case Convolution() if element in _TORCH_TYPES:
            return _convolution(call.sizes, element)
        case Attention() if element in _TORCH_TYPES:
            return _attention(call.sizes, element)
        case _:
            return None


def _random(shape: tuple[int, ...], element: str, *, swapped: bool = False) -> str:
    if swapped:
        shape = (*shape[:-2], shape[-1], shape[-2])
    sizes = ",".join(map(str, shape))
    made = f"torch.randn({sizes},device='cuda',dtype=torch.{_TORCH_TYPES[element]})"
    return f"{made}.mT" if swapped else made


def _product(sizes: Product, element: str) -> tuple[str, str]:
    layout = sizes.layout or "NN"
    batch = (sizes.batch,) if sizes.batch != 1 else ()
    a = _random((*batch, sizes.m, sizes.k), element, swapped=layout[1] == "T")
    b = _random((*batch, sizes.k, sizes.n), element, swapped=layout[0] == "T")
    operands = f"a={a}; b={b}"
    if not sizes.has_bias:
        return operands, "a@b"
    operands += f"; c={_random((sizes.n,), element)}"
    return operands, "torch.baddbmm(c,a,b)" if batch else "torch.addmm(c,a,b)"


def _scaled(sizes: Product) -> tuple[str, str] | None:
    if sizes.batch != 1:
        return None
    made = "torch.randn({},device='cuda').to(t)"
    operands = (
        "t=torch.float8_e4m3fnuz if 'gfx94' in "
        "getattr(torch.cuda.get_device_properties(0),'gcnArchName','') else torch.float8_e4m3fn; "
        f"a={made.format(f'{sizes.m},{sizes.k}')}; "
        f"b={made.format(f'{sizes.n},{sizes.k}')}.t(); o=torch.ones((),device='cuda')"
    )
    return operands, "torch._scaled_mm(a,b,scale_a=o,scale_b=o,out_dtype=torch.bfloat16)"


def _convolution(sizes: Convolution, element: str) -> tuple[str, str] | None:
    if not (sizes.stride and sizes.padding and sizes.dilation):
        return None
    operands = f"x={_random(sizes.image, element)}; w={_random(sizes.weight, element)}"
    directions = len(sizes.image) - 2
    steps = {
        "stride": sizes.stride,
        "padding": sizes.padding,
        "dilation": sizes.dilation,
    }
    given = ",".join(f"{name}={tuple(step)}".replace(" ", "") for name, step in steps.items())
    name = f"conv_transpose{directions}d" if sizes.is_transposed else f"conv{directions}d"
    call = f"F.{name}(x,w,{given},groups={sizes.groups})"
    if not sizes.gradients:
        return operands, call
    if sizes.is_transposed:
        return None
    mask = [sizes.gradients != "weight", sizes.gradients != "input", False]
    lists = [str(list(step)).replace(" ", "") for step in steps.values()]
    return (
        f"{operands}; g=torch.randn_like({call})",
        f"torch.ops.aten.convolution_backward(g,x,w,None,{','.join(lists)},False,"
        f"[0]*{directions},{sizes.groups},{mask})".replace(", ", ","),
    )


def _attention(sizes: Attention, element: str) -> tuple[str, str] | None:
    query = (sizes.batch, sizes.heads, sizes.queries, sizes.width)
    key = (sizes.batch, sizes.key_heads, sizes.keys, sizes.width)
    value = (*key[:3], sizes.value_width)
    grad = ".requires_grad_()" if sizes.is_backward else ""
    operands = "; ".join(
        f"{name}={_random(shape, element)}{grad}"
        for name, shape in (("q", query), ("k", key), ("v", value))
    )
    grouped = ",enable_gqa=True" if sizes.heads != sizes.key_heads else ""
    call = f"F.scaled_dot_product_attention(q,k,v,is_causal={sizes.is_causal}{grouped})"
    if not sizes.is_backward:
        return operands, call
    return (
        f"{operands}; y={call}; g=torch.randn_like(y)",
        "torch.autograd.grad(y,(q,k,v),g,retain_graph=True)",
    )
