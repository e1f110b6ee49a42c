"""The columns of analyses and of the step graph: imported here, they are registered.

Whatever looks up a column by its name imports this module first.
"""

from chopper_core.analyses import call_columns as call_columns
from chopper_core.analyses import collective_columns as collective_columns
from chopper_core.analyses import launch_columns as launch_columns
from chopper_core.analyses import lead_columns as lead_columns
from chopper_core.analyses import loss_columns as loss_columns
from chopper_core.analyses import overlap_columns as overlap_columns
from chopper_core.analyses import path_columns as path_columns
from chopper_core.analyses import pipeline_columns as pipeline_columns
from chopper_core.analyses import sample_columns as sample_columns
from chopper_core.analyses import step_columns as step_columns
from chopper_core.graph import metrics as metrics
