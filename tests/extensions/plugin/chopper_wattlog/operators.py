"""The work of wattlog's own operators, which Chopper doesn't know."""

from __future__ import annotations

from math import prod

from chopper_core.model.operator_inputs import Inputs
from chopper_core.model.shapes import Product
from chopper_core.work.operators import MovedModel, ProductModel


class GatedLinear(ProductModel):
    """An input (..., k) times a weight (2 n, k): n columns of values and n of gates."""

    names = ("wattlog::gated_linear",)

    def sizes(self, inputs: Inputs) -> Product | None:
        if len(inputs.shapes) < 2 or len(inputs.shapes[1]) != 2:
            return None
        *rows, inner = inputs.shapes[0]
        columns, again = inputs.shapes[1]
        return Product(prod(rows), columns, inner) if inner == again else None


class Gate(MovedModel):
    """Values times gates: reads both, writes as many values."""

    names = ("wattlog::gate",)
