"""The splits that need more than the model: classes of kernels, shapes of calls."""

from __future__ import annotations

import numpy as np

from chopper_core.align.kernel_classes import kernel_class
from chopper_core.model.table import KernelTable, SplitCodes, add_split
from chopper_core.views.shared.call_figures import ShapeLabels


@add_split("class")
def _classes(table: KernelTable) -> SplitCodes:
    words: dict[str, int] = {}
    of_name = [words.setdefault(kernel_class(name), len(words)) for name in table.names]
    return np.array(of_name, np.int64)[table.kernel], tuple(words)


@add_split("shape")
def _shapes(table: KernelTable) -> SplitCodes:
    labels = ShapeLabels.of_table(table)
    return labels.codes(table, slice(None)), labels.texts
