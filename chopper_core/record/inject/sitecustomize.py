"""Runs at the start of every Python process of a recorded command; installs hooks once torch loads.

`chopper record` puts this directory first on PYTHONPATH. Processes without torch are left alone,
and another `sitecustomize` behind it runs as it would have. The syntax is that of Python 3.6:
system tools of a job may still run on it, and an error here would be on their standard error.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_HOOKS = os.path.join(os.path.dirname(_HERE), "hooks")


class TorchFinder:
    """Finds torch as the other finders do, and has the hooks installed after it is loaded."""

    is_searching = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """The spec of torch; None for all other modules, which other finders find."""
        if name != "torch" or self.is_searching:
            return None
        from importlib.util import find_spec

        # Asking for the spec alone, as transformers does, imports nothing: this finder stays.
        self.is_searching = True
        try:
            spec = find_spec(name)
        finally:
            self.is_searching = False
        if spec is not None:
            self._hook(spec)
        return spec

    def _hook(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        finder: object = self
        execute = getattr(loader, "exec_module", None)

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            sys.meta_path[:] = [each for each in sys.meta_path if each is not finder]
            execute(module)  # type: ignore[misc]
            _install(module)

        if execute is not None and hasattr(loader, "__dict__"):
            vars(loader)["exec_module"] = exec_module


def _install(torch: ModuleType) -> None:
    """Load the hooks by their path; whatever goes wrong there, the program runs on."""
    try:
        from importlib.util import module_from_spec, spec_from_file_location

        path = os.path.join(_HOOKS, "__init__.py")
        spec = spec_from_file_location(
            "chopper_record_hooks", path, submodule_search_locations=[_HOOKS]
        )
        if spec is not None and spec.loader is not None:
            hooks = module_from_spec(spec)
            sys.modules[spec.name] = hooks
            spec.loader.exec_module(hooks)
            hooks.install(torch)
    except Exception:
        pass


def _run_shadowed() -> None:
    """Run the `sitecustomize` that this one hides: the next one of the path."""
    path = [os.path.abspath(each) for each in sys.path]
    behind = path[path.index(_HERE) + 1 :] if _HERE in path else []
    spec = PathFinder.find_spec("sitecustomize", behind)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _note_python() -> None:
    """Leave a mark that some Python has started with this module."""
    try:
        import json

        folder = os.path.join(json.loads(os.environ["CHOPPER_RECORD"])["run"], "processes")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, ".python"), "ab"):
            pass
    except Exception:
        pass


if os.environ.get("CHOPPER_RECORD"):
    _note_python()
    sys.meta_path.insert(0, TorchFinder())  # type: ignore[arg-type]
_run_shadowed()
