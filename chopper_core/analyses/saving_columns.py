"""Columns of savings: how much shorter a step is with a change, by replay."""

from __future__ import annotations

from typing import Final

from chopper_core.columns.metric import column

SAVING: Final = column("""saving_ns | ns | saves
    How much shorter a step is with a change, or without what a finding is about, by replay: as
    measured minus with the change, mean over the complete steps and GPUs in scope; of a finding
    `≤` and the most that the replay leaves open where no change attains all of it, such as a host
    of zero time. That of a part is in that of the whole.
    missing: nothing is changed, or no replay removes it: the steps can't be replayed, or nothing
      says how""")
SAVING_SHARE: Final = column(f"""saving_pct | % | of step
    saving_ns in % of the step time.
    missing: {SAVING.missing_because}""")
