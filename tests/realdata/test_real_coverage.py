"""How much of the kernel time of public traces has a class, an operation, a layer and a model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from chopper_core.model.column_names import CALL_SHAPE, FLOPS, MODEL_BYTES
from chopper_core.model.run import Run
from chopper_core.model.table import MODEL_PHASES, Category, KernelTable, Kind
from chopper_core.util.arrays import Mask
from chopper_core.work.kernel_classes import OTHER_CLASS, kernel_class

Open = Callable[[str], Run]

FILES = {
    "mi300x_ddp4": (100, 0, 95),
    "mi300x_qwen05b.json.gz": (100, 100, 99),
    "mi300x_resnet_act_ckpt_rank0of8.json.gz": (100, 98, 99),
    "mi300x_train_resnet18.json.gz": (100, 99, 99),
    "mi300x_sglang_prefill.json.gz": (100, 99, 99),
    # A graph's capture isn't in the file.
    "vllm_decode_graph.json.gz": (100, 99, 2),
    # Compiled functions and optimizers without recorded operators; early Triton without names.
    "a100_rank0of16.json.gz": (98, 0, 15),
    # Lookups of embeddings without the width of their tables.
    "traces_2of128": (99, 0, 42),
    "v100_dlrm_8rank": (100, 0, 71),
    # No operators at all.
    "mi350x_aorta_rocprofv3": (100, 92, 0),
    "rocprofv3_csv": (100, 99, 0),
    "rocprofv3_two_processes": (100, 97, 0),
}
"""At least so many % of the time: class, layer (or known to be outside) of the model's compute, and
work model of compute. All of it has an operation."""


def share(table: KernelTable, where: Mask, of: Mask) -> float:
    time = np.where(table.category == Category.KERNEL, table.duration_ns, 0)
    return float(100 * time[where & of].sum() / max(time[of].sum(), 1))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", FILES)
def test_kernel_time_has_names_and_models(opened: Open, name: str) -> None:
    table, (classed, layered, modelled) = opened(name).table, FILES[name]
    every, computes = np.ones(len(table), np.bool_), table.kind == Kind.COMPUTE
    names = np.array([kernel_class(each) != OTHER_CLASS for each in table.names])
    assert share(table, names[table.kernel], every) >= classed - 0.005
    assert share(table, table.operation >= 0, every) >= 99.995
    body = computes & np.isin(table.phase, MODEL_PHASES)
    body = body if body.any() else computes
    assert share(table, (table.layer >= 0) | (table.layer_rule > 0), body) >= layered
    known = np.zeros(len(table), np.bool_)
    for column in (FLOPS, MODEL_BYTES, CALL_SHAPE):
        if column in table.measured:
            known |= np.isfinite(table.measured[column])
    assert share(table, known, computes) >= modelled
