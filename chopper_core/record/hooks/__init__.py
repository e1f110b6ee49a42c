"""The hooks in a process of a recorded run.

Loaded into the user's process by their path (`inject/sitecustomize.py`), or by `session.py`. They
import the standard library only, and torch is what the process has. Nothing here may change what
the program does: an error ends the recording of this process, and is noted in its state.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recorder import Recorder

_OWN_PROFILER = "the script started a profiler of its own"
_HOOKS_WARNING = r"Using `torch.compile\(module\)` when there are global hooks"


def install(torch: Any) -> None:
    """Install the hooks for the recording that the environment describes."""
    # Who opens a run imports this package for its rings alone.
    from .recorder import Recorder
    from .state import LOADED, PROCESSES, VARIABLE

    recorder = Recorder(torch, json.loads(os.environ[VARIABLE]))
    optimizers = sys.modules["torch.optim.optimizer"]
    if not hasattr(optimizers, "register_optimizer_step_post_hook"):
        recorder.stand_down(f"torch {torch.__version__} has no hooks of optimizers; 2.0 has them")
        return
    with recorder._guarded():
        folder = os.path.join(recorder.run, PROCESSES)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, LOADED), "ab"):
            pass
        follow_modules(recorder)
        # Registered after torch's own, so that it runs before them.
        atexit.register(recorder.close)
        optimizers.register_optimizer_step_post_hook(
            lambda optimizer, given, named: recorder.after_optimizer(optimizer)
        )
        _watch_profilers(torch, recorder)
        _watch_checkpoints(torch, recorder)


def follow_modules(recorder: Recorder) -> list[Any]:
    """Have a recorder called around forwards; returns what removes the hooks again.

    Code that is being compiled must not meet the recorder, and hooks that come after the first
    compilation are ignored: they are there from the start.
    """
    is_compiling = getattr(getattr(recorder.torch, "compiler", None), "is_compiling", bool)
    modules = sys.modules["torch.nn.modules.module"]

    def before(module: Any, given: Any) -> None:
        if not is_compiling() and (
            recorder.after_step or recorder.is_recording or id(module) in recorder.steps.watched
        ):
            recorder.before_forward(module, given)

    def after(module: Any, given: Any, result: Any) -> None:
        if not is_compiling() and (recorder.is_recording or id(module) in recorder.steps.watched):
            recorder.after_forward(module)

    warnings.filterwarnings("ignore", _HOOKS_WARNING)
    os.register_at_fork(after_in_child=recorder.reset)
    return [
        modules.register_module_forward_pre_hook(before),
        modules.register_module_forward_hook(after, always_call=True),
    ]


def _watch_profilers(torch: Any, recorder: Recorder) -> None:
    """Stand down when the script starts a profiler of its own, and keep what it exports."""

    def watch(owner: Any, name: str, *, exports: bool = False) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(profiler: Any, *given: Any, **named: Any) -> Any:
            if not exports:
                recorder.stand_down(_OWN_PROFILER)
            result = original(profiler, *given, **named)
            if exports and recorder.is_down == _OWN_PROFILER:
                recorder.keep_export(str(given[0] if given else named["path"]))
            return result

        setattr(owner, name, watched)

    watch(torch.profiler.profile, "start")
    watch(torch.autograd.profiler.profile, "__enter__")
    watch(torch.profiler.profile, "export_chrome_trace", exports=True)


def _watch_checkpoints(torch: Any, recorder: Recorder) -> None:
    """Note when the program saves something: distributed checkpoints save by the same function."""
    original = getattr(torch, "save", None)
    if original is None:
        return

    @functools.wraps(original)
    def save(*given: Any, **named: Any) -> Any:
        with recorder.steps.saving():
            return original(*given, **named)

    torch.save = save
