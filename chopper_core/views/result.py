"""What an analysis answers with: rows of its own, before they are sorted and filtered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from chopper_core.metrics import Metric, Values
from chopper_core.model.charts import Chart
from chopper_core.model.tree import Groups
from chopper_core.model.view import View


class ViewResult(Struct, frozen=True, eq=False):
    """The rows, columns and pictures of a question asked of a node."""

    level: str
    """What a row is: `kernel`, `collective`, `finding`."""
    labels: Sequence[str]
    columns: tuple[tuple[Metric, Values], ...]
    """Every figure of the rows with its definition, the most telling first."""
    opens: Callable[[int], View]
    """Where a row leads: the view of its evidence."""
    total: Mapping[str, int | float] = field(default_factory=dict)
    """The node's own figures, for columns that have one."""
    sort: str = ""
    """The order of the rows when nobody asks for another; empty: that of the answer."""
    shown: tuple[str, ...] = ()
    """The columns when nobody asks for others; empty: all."""
    nodes: Groups | None = None
    """The activities of each row, where a row stands for some: for sparklines and metrics."""
    headline: tuple[str, ...] = ()
    """What the answer comes to, in sentences."""
    notes: tuple[str, ...] = ()
    """What limits it."""
    charts: tuple[Chart, ...] = ()
    over: tuple[str, ...] = ()
    """What tells apart the instances of which the answer's own figures are the view's statistic,
    where it takes one itself."""
    by: str = ""
    """The split of the rows, where the answer chose one that isn't the usual one."""
