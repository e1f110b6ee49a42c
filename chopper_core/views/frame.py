"""A frame: the table that answers a view, the same for the screen, text and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.columns import Metric, Values
from chopper_core.model import address
from chopper_core.model.attributes import TypedValue
from chopper_core.model.charts import Chart
from chopper_core.model.doubts import Doubt
from chopper_core.model.signals import Signal
from chopper_core.model.table import LEVELS, NO_LABEL, NO_LABEL_TEXT
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Mask

if TYPE_CHECKING:
    import pandas as pd

NUMBERED: Final = ("gpu", "iteration", "layer")
"""Levels whose labels are numbers."""
PLACE_LEVELS: Final = ("place",)
"""Levels of rows that are several levels at once."""
Number = int | float
Cell = int | float | str


def no_means(rows: Index, bins: int, of: Signal | None = None) -> Float64:
    return np.full((len(rows), bins), np.nan)


class Frame(Struct, frozen=True, eq=False):
    """Rows of a view: the children of its node, or the result of a view module.

    `values[name]` has one number per row, `total[name]` is the node's own figure. `hidden` rows
    did not match the filter. `means(rows, bins)` gives the mean of `signal` over the rows' GPUs in
    each bin of each row's time, as an array of rows x bins, NaN where it is unknown; with
    `of`, that of another signal.
    """

    view: View
    level: str
    columns: tuple[Metric, ...]
    labels: Sequence[str]
    values: Mapping[str, Values]
    total: Mapping[str, Number | None]
    notes: tuple[str, ...]
    target: Callable[[int], View]
    """The view that a row opens."""
    signal: Signal
    """The signal of the sparklines."""
    means: Callable[..., Float64] = no_means
    signals: tuple[Signal, ...] = ()
    """Those of further sparklines, where the view names several."""
    sort: str = ""
    """The order of the rows: a column, `-column`, or empty for the level's own."""
    hidden: int = 0
    hidden_ns: float = 0
    """The elapsed_ns of the hidden rows."""
    parent_ns: float = 0
    """The elapsed_ns of the node, hidden rows included; 0 where rows are no parts of it."""
    elapsed_ns: Float64 = np.zeros(0)
    """The elapsed_ns of each row, also where a column of that name is a statistic; empty where
    rows are no parts of the node."""
    partners: Sequence[str] = ()
    """The name of each row in the baseline, where it differs; else empty."""
    more: tuple[Metric, ...] = ()
    """Columns that only such a frame has and that are not shown."""
    headline: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    over: tuple[str, ...] = ()
    """The levels that distinguish the instances of a row in a statistic; empty without one."""
    is_pending: bool = False
    """Whether a part of it is still being computed."""
    by: str = ""
    """The split that a view module chose, where the view names none and it isn't the default."""
    truncated: tuple[int, ...] = ()
    """Steps of the scope that are truncated or warm up."""
    warm_up: tuple[int, ...] = ()
    """Steps of the run that warm up."""
    left_out: tuple[int, ...] = ()
    """Those of them that take no part in the figures of other rows and in the total, and NO_LABEL
    where what runs outside of steps doesn't."""
    attributes: Callable[[int], Mapping[str, TypedValue]] = lambda row: {}
    """Attributes of a row's activity next to its figures; none for rows of several."""
    base: str = ""
    """What figures that add up are, such as `per step and GPU`; empty: each row is itself."""
    total_title: str = "total"
    """What the total row is of the rows."""
    partial_total: frozenset[str] = frozenset()
    """The columns whose total covers only some GPUs of the node."""
    extrapolated_total: Mapping[str, bool] = {}
    """Column → whether its total is marked as extrapolated."""
    best: Mapping[str, Mask] = {}
    """Column → the rows with its best figure, in a table of what can be chosen from."""
    quality: tuple[Doubt, ...] = ()
    """The doubts about the data of its run, the worst first; their notes are among `notes`."""

    def total_mark(self, name: str) -> str:
        """What is written before the total of a column."""
        if name in self.partial_total:
            return "*"
        return "~" if self.extrapolated_total.get(name) else ""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def address(self) -> str:
        return address.render(self.view)

    @property
    def sparks(self) -> bool:
        """Whether each row has a time span over which its signal can be drawn."""
        return self.means is not no_means

    @property
    def hidden_text(self) -> str:
        if not self.hidden or not self.parent_ns:
            return f"{self.hidden} hidden"
        return f"{self.hidden} hidden ({self.hidden_ns / self.parent_ns:.1%})"

    def addresses(self, row: int) -> str:
        return address.render(self.target(row))

    def is_cut(self, row: int) -> bool:
        outside = [code for code in self.left_out if code == NO_LABEL]
        return self.labels[row] in self._texts_of((*self.truncated, *outside))

    def _texts_of(self, steps: Sequence[int]) -> frozenset[str]:
        """The labels of the rows of some steps, if rows are steps."""
        if self.level != "iteration":
            return frozenset()
        return frozenset(NO_LABEL_TEXT if code == NO_LABEL else str(code) for code in steps)

    def counted(self) -> Mask:
        """Which rows take part in the total, and are compared with one another."""
        skipped = self._texts_of(self.left_out)
        return np.array([label not in skipped for label in self.labels], np.bool_)

    def partner(self, row: int) -> str:
        return self.partners[row] if self.partners else ""

    def row(self, number: int) -> dict[str, Cell | None]:
        return {column.name: self.values[column.name].cell(number) for column in self.columns}

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas table, to group, join and plot.

        The labels are in the column `name`, those of the tree's levels in columns as in
        `OpenRun.kernels`. Figures are nullable (`Int64`, `Float64`); `attrs` has their units, the
        base of those that add up, and the address.
        """
        import pandas as pd

        data: dict[str, Any] = {"name": pd.array(list(self.labels), dtype="string")}
        data |= self._levels()
        for column in self.columns:
            values = self.values[column.name]
            kind = "Int64" if values.numbers.dtype.kind in "iub" else "Float64"
            cells: Any = [values.cell(row) for row in range(len(self))]
            data[column.name] = pd.Series(cells, dtype=kind if values.words is None else "string")
        table = pd.DataFrame(data)
        units = {column.name: str(column.unit) for column in self.columns if str(column.unit)}
        table.attrs = {"units": units, "base": self.base, "address": self.address}
        return table

    def _levels(self) -> dict[str, Any]:
        """The place of each row in the tree, by level; empty where rows are no parts of it."""
        import pandas as pd

        if self.level not in (*LEVELS, *PLACE_LEVELS):
            return {}
        scopes = [dict(self.target(row).scope) for row in range(len(self))]
        found: dict[str, Any] = {}
        for level in dict.fromkeys(name for scope in scopes for name in scope):
            labels = [scope.get(level) for scope in scopes]
            known = [None if label in (None, NO_LABEL_TEXT) else label for label in labels]
            if level in NUMBERED and all(each is None or each.isdecimal() for each in known):
                numbers = [None if each is None else int(each) for each in known]
                found[level] = pd.array(numbers, dtype="Int64")
            else:
                found[level] = pd.Categorical(known)
        names = {column.name for column in self.columns}
        return {level: labels for level, labels in found.items() if level not in names}
