"""The phrases of the findings' sentences, which other views share."""

from __future__ import annotations

from chopper_core.views.shared.phrases import by_number, count, listed, others, percent, time

__all__ = ["by_number", "count", "listed", "others", "percent", "time"]
