"""Figures as Arrow: columns with their unit and definition in the metadata of their fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from chopper_core.columns import Metric, Values
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import AnyArray, Mask, Numbers
from chopper_core.views.frame import Frame

if TYPE_CHECKING:
    import pyarrow as pa

ROW_NAME = "name"
"""The column of what a row is called in the table of a frame; `address` is where it leads."""


def field_of(name: str, kind: pa.DataType, unit: str = "", definition: str = "") -> pa.Field:
    """A field that says its unit and definition in its metadata."""
    import pyarrow as pa

    about = {"unit": unit, "definition": definition}
    return pa.field(name, kind, metadata={key: text for key, text in about.items() if text})


def about_field(field: pa.Field) -> tuple[str, str]:
    """The unit and the definition of a field; '' where it has none."""
    metadata = field.metadata or {}
    unit, definition = (metadata.get(key, b"").decode() for key in (b"unit", b"definition"))
    return unit, definition


def values_array(values: Values) -> pa.Array:
    """Figures as Arrow: int64 or double, words as a dictionary; null where they are missing."""
    from chopper_core.tables.arrow_files import array_of

    known = None if values.missing is None else values.present()
    if values.words is not None:
        return words_array(values.numbers, values.words, known)
    return array_of(values.numbers, known)


def words_array(codes: Numbers, words: Sequence[str], known: Mask | None = None) -> pa.Array:
    """Texts by their code, as a dictionary; null where they aren't known."""
    import pyarrow as pa

    from chopper_core.tables.arrow_files import array_of, texts_of

    known = codes != NO_LABEL if known is None else known
    indices = array_of(np.where(known, codes, 0).astype(np.int32), known)
    return pa.DictionaryArray.from_arrays(indices, texts_of(words))


def labels_array(codes: AnyArray) -> pa.Array:
    """Numbers of a level, such as steps, as int64; null where an activity has none."""
    from chopper_core.tables.arrow_files import array_of

    return array_of(codes.astype(np.int64), codes != NO_LABEL)


def flags_array(flags: Mask) -> pa.Array:
    """Whether something is so, as booleans."""
    import pyarrow as pa

    return pa.array(flags, pa.bool_())


def table_of(columns: Iterable[tuple[Metric, pa.Array]]) -> pa.Table:
    """A table of columns as they are declared."""
    import pyarrow as pa

    arrays, fields = [], []
    for column, array in columns:
        arrays.append(array)
        fields.append(field_of(column.name, array.type, str(column.unit), column.definition))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def frame_table(frame: Frame) -> pa.Table:
    """The rows of a frame: their name, the address they lead to, and its columns."""
    import pyarrow as pa

    from chopper_core.tables.arrow_files import texts_of

    rows = range(len(frame))
    texts = {
        ROW_NAME: texts_of(list(frame.labels)),
        "address": texts_of([frame.addresses(row) for row in rows]),
    }
    names = {
        ROW_NAME: f"what the row is: a {frame.level}",
        "address": "the view that the row leads to",
    }
    figures = [(each, values_array(frame.values[each.name])) for each in frame.columns]
    fields = [field_of(name, array.type, "", names[name]) for name, array in texts.items()]
    made = table_of(figures)
    about = {"address": frame.address, "base": frame.base}
    schema = pa.schema([*fields, *made.schema], metadata=about)
    return pa.Table.from_arrays([*texts.values(), *made.columns], schema=schema)
