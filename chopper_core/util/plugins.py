"""What extends Chopper: the packages in `chopper_core/extensions`, and installed plugins.

A package in `extensions` declares tables of what it adds and of the modules that hold it; the core
imports none of them by name. A plugin is another distribution with entry points in the groups
`chopper.sources`, `chopper.views`, `chopper.metrics`, `chopper.findings`, `chopper.advice`,
`chopper.exports` and `chopper.operators`.
Listing entry points takes as long as opening a cached run, so it waits for a name or a file that
nothing else knows, for the findings of
a run, or for an operator of another namespace than PyTorch's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.patterns import late
from chopper_core.util.progress import Cancelled

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUPS: Final = ("sources", "views", "metrics", "findings", "advice", "exports", "operators")
_FOLDER: Final = Path(__file__).parent.parent / "extensions"
_MODULE: Final = late(r"(?m)^[^\[=\n]+=\s*(\w+)")
"""The package of an entry point."""
_problems: Final[dict[str, None]] = {}

R = TypeVar("R")


@cache
def _extensions() -> tuple[ModuleType, ...]:
    names = os.listdir(_FOLDER) if _FOLDER.is_dir() else []
    present = sorted(name for name in names if (_FOLDER / name / "__init__.py").exists())
    return tuple(import_module(f"chopper_core.extensions.{name}") for name in present)


def tables(name: str) -> list[dict[str, Any]]:
    """The tables of a name, such as `VIEWS`, of all extensions that declare one."""
    return [vars(each)[name] for each in _extensions() if name in vars(each)]


def declared(name: str) -> dict[str, Any]:
    return {key: value for table in tables(name) for key, value in table.items()}


def extension_part(name: str, what: str) -> Any:
    """The module that an extension has for the core (`PARTS`); raises UsageError without it."""
    modules = declared("PARTS")
    if name not in modules:
        raise UsageError(f"{what} needs the extension {name}, which this installation lacks")
    return import_module(modules[name])


class Plugin:
    """One entry point of another distribution."""

    def __init__(self, entry: EntryPoint) -> None:
        self.entry = entry

    @property
    def title(self) -> str:
        owner = self.entry.dist
        return f"the plugin {self.entry.name} of {owner.name if owner else self.entry.value}"

    def load(self, *needs: str) -> Any:
        found = self.call(self.entry.load)
        for name in needs:
            if not hasattr(found, name):
                raise DataError(f"{self.title} can't be used: it has no {name}.")
        return found

    def call(self, function: Callable[..., R], *args: Any) -> R:
        """Call a function of it; its own errors become a DataError that names it."""
        try:
            return function(*args)
        except (ChopperError, Cancelled):
            raise
        except Exception as error:
            raise DataError(f"{self.title} failed: {type(error).__name__}: {error}") from error

    def attempt(self, function: Callable[..., R], default: R, *args: Any) -> R:
        """Call a function of it; a failure is a problem to report, and gives the default."""
        try:
            return self.call(function, *args)
        except DataError as error:
            _problems.setdefault(str(error))
            return default


@cache
def plugins(group: str) -> dict[str, Plugin]:
    """The plugins of a group by name; of two with a name the first on the path."""
    from importlib.metadata import entry_points  # takes as long as numpy's smaller half

    found: dict[str, Plugin] = {}
    for entry in entry_points(group=f"chopper.{group}"):
        found.setdefault(entry.name, Plugin(entry))
    return found


def loaded(group: str, needs: Iterable[str]) -> list[tuple[Plugin, Any]]:
    """The plugins of a group that can be used; why others can't is a problem to report."""
    needs = tuple(needs)
    found = ((each, each.attempt(each.load, None, *needs)) for each in plugins(group).values())
    return [(each, module) for each, module in found if module is not None]


def files_of_plugins() -> list[str]:
    """The files that plugins are declared in, and the files and folders of their packages.

    Without `importlib.metadata`, whose import takes longer than opening a cached run.
    """
    from importlib.util import find_spec

    found: dict[str, None] = {}
    packages: dict[str, None] = {}
    for path in filter(os.path.isdir, sys.path):
        for name in os.listdir(path):
            if not name.endswith(("-info", ".egg")):
                continue
            declared = Path(path, name, "entry_points.txt")
            if not declared.is_file():
                continue
            text = declared.read_text("utf-8", "replace")
            if "[chopper." in text:
                found[str(declared)] = None
                packages |= dict.fromkeys(_MODULE.findall(text))
    for package in packages:
        try:
            spec = find_spec(package)
        except (ImportError, ValueError):
            continue
        for folder in (spec and spec.submodule_search_locations) or ():
            for path, folders, names in os.walk(folder):
                folders[:] = [name for name in folders if name != "__pycache__"]
                files = (os.path.join(path, name) for name in names if name.endswith(".py"))
                found |= dict.fromkeys((path, *sorted(files)))
        if spec is not None and spec.origin and os.path.isfile(spec.origin):
            found[spec.origin] = None
    return [*found]


def problems() -> tuple[str, ...]:
    """A sentence for each plugin that failed without ending what it was asked for."""
    return tuple(_problems)


def package_version(name: str) -> str:
    """The version of an installed distribution, without importing it; '' without one."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return ""
