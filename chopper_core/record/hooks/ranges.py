"""Ranges of module calls in a trace: a layer is `Layer_N`, modules have the model's own names."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

_WRAPPERS: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_CONTAINER: Final = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)$")
_NUMBERS: Final = re.compile(r"\.\d+(?=\.|$)|^\d+(?:\.|$)")
_GENERATED: Final = "GraphModule"
"""What a compiler makes of modules has no name of the model."""


class Ranges:
    """Opens and closes the ranges of the modules whose forward runs, in each thread."""

    def __init__(self, record_function: Callable[[str], Any]) -> None:
        self._range = record_function
        self._labels: dict[int, tuple[Any, str, str]] = {}
        """By the id of a module: the module, which keeps the id taken, its name, and its layer if
        that is a mere list of modules, whose own forward never runs."""
        self._calls: dict[int, list[tuple[Any, str, str, list[Any]]]] = {}
        """By thread: modules whose forward runs, with their names, layers and ranges."""
        self._compiled: list[tuple[Any, Any]] = []
        self.layers: dict[int, str] = {}
        """The model's name of each layer."""

    def open(self, module: Any) -> None:
        """Begin the range of a module, and that of its layer if nothing else does."""
        calls = self._calls.setdefault(threading.get_ident(), [])
        known = self._labels.get(id(module))
        if known is None:
            if not calls:
                self._learn(module)
            known = self._labels.setdefault(id(module), (module, type(module).__name__, ""))
        _, label, layer = known
        _, outer, outer_layer, _ = calls[-1] if calls else (None, "", "", None)
        names = [layer] if layer and layer != outer_layer else []
        # A wrapper and the module in it have one name.
        names += [label] if label not in (_GENERATED, outer) else []
        spans = [self._range(name) for name in names]
        for span in spans:
            span.__enter__()
        calls.append((module, label, layer, spans))

    def close(self, module: Any) -> None:
        """End the range of a module, and those left open in it."""
        calls = self._calls.get(threading.get_ident(), [])
        if any(each[0] is module for each in calls):
            ended = None
            while ended is not module:
                ended = self._close_last(calls)

    def end(self) -> None:
        """End the ranges of this thread, and forget the modules."""
        calls = self._calls.get(threading.get_ident(), [])
        while calls:
            self._close_last(calls)
        for module, call in self._compiled:
            module._compiled_call_impl = call
        for known in (self._calls, self._labels, self._compiled):
            known.clear()

    @staticmethod
    def _close_last(calls: list[tuple[Any, str, str, list[Any]]]) -> Any:
        module, _, _, spans = calls.pop()
        for span in reversed(spans):
            span.__exit__(None, None, None)
        return module

    def _learn(self, root: Any) -> None:
        """Name the modules of a model by its own names."""
        inner = {own_name(name): type(module).__name__ for name, module in root.named_modules()}
        blocks, around = find_layers(root)
        self.layers.update({number: name for name, number in blocks.items()})
        lists = {own_name(name) for name, module in root.named_modules() if _is_list(module)}
        for name, module in root.named_modules():
            own = own_name(name)
            layer = next((above for above in _above(own) if above in blocks), "")
            outer = f"{layer}." if layer else around
            label = _NUMBERS.sub("", own[len(outer) :] if own.startswith(outer) else own)
            if own in blocks:
                label = f"Layer_{blocks[own]}"
                if not hasattr(root, "_orig_mod"):
                    self._wrap_compiled(module, label)
            around_it = f"Layer_{blocks[layer]}" if layer and layer in lists else ""
            self._labels[id(module)] = (module, label or inner[own], around_it)

    def _wrap_compiled(self, module: Any, label: str) -> None:
        """Put a range around a layer that is compiled in place, which calls no hooks."""
        call = vars(module).get("_compiled_call_impl")
        if call is None:
            return

        def ranged(*given: Any, **named: Any) -> Any:
            with self._range(label):
                return call(*given, **named)

        module._compiled_call_impl = ranged
        self._compiled.append((module, call))


def _is_list(module: Any) -> bool:
    """Whether a module only holds others, as a ModuleList does."""
    name = getattr(getattr(module, "forward", None), "__name__", "")
    return bool(name == "_forward_unimplemented")


def own_name(name: str) -> str:
    """The name of a module without what wrappers add to it."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while parts and parts[0] == "module":
        del parts[0]
    return ".".join(parts)


def _above(name: str) -> Iterator[str]:
    """The names of the modules that hold one, from the outermost."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


def find_layers(root: Any) -> tuple[dict[str, int], str]:
    """The layers of a model by name, with their numbers, and the prefix of what holds them.

    Layers are the numbered children of the outermost modules that hold several of one class. Their
    numbers are the model's own, or count on where several modules hold layers.
    """
    numbers: dict[str, int] = {}
    around: str | None = None
    for name, module in root.named_modules():
        own, children = own_name(name), dict(module.named_children())
        if own in numbers or any(above in numbers for above in _above(own)):
            continue
        if not _holds_layers(own, children):
            continue
        if around is None:
            around = own.rpartition(".")[0]
        for place, child in children.items():
            # Megatron counts the layers of all pipeline stages, from 1.
            number = getattr(child, "layer_number", None)
            known = number - 1 if isinstance(number, int) else int(place)
            numbers[f"{own}.{place}".lstrip(".")] = known
    if len({*numbers.values()}) < len(numbers):
        numbers = {name: place for place, name in enumerate(numbers)}
    return numbers, f"{around}." if around else ""


def _holds_layers(own: str, children: dict[str, Any]) -> bool:
    if len(children) < 2 or not all(name.isdecimal() for name in children):
        return False
    count = max(Counter(type(child).__name__ for child in children.values()).values())
    has_parts = all(any(True for _ in child.children()) for child in children.values())
    return 2 * count > len(children) and (has_parts or _CONTAINER.search(own) is not None)
