"""A stand-in for torch: what the hooks of a recording use, and nothing else.

Forwards nest and note ranges while a profiler runs; a leaf launches a kernel of 10 µs. As with
torch, a session that is active at the end of the process crashes it.
"""

import contextlib
import time
import types

from torch import autograd, nn, optim, profiler  # noqa: F401

__version__ = "2.99.0+fake"
_state = types.SimpleNamespace(grad=True, task=-1, compiling=False, capturing=False)


def is_grad_enabled():
    return _state.grad


@contextlib.contextmanager
def no_grad():
    before, _state.grad = _state.grad, False
    try:
        yield
    finally:
        _state.grad = before


@contextlib.contextmanager
def backward():
    """The time in which autograd runs."""
    _state.task = 0
    try:
        yield
    finally:
        _state.task = -1


def save(what, path):
    time.sleep(2e-3)


_C = types.SimpleNamespace(_current_graph_task_id=lambda: _state.task)
compiler = types.SimpleNamespace(is_compiling=lambda: _state.compiling)
_gpu = types.SimpleNamespace(
    name="AMD Instinct MI300X", uuid="1-2", pci_domain_id=0, pci_bus_id=12, pci_device_id=3
)
cuda = types.SimpleNamespace(
    is_available=lambda: True,
    is_initialized=lambda: True,
    is_current_stream_capturing=lambda: _state.capturing,
    current_device=lambda: 0,
    get_device_properties=lambda index: _gpu,
)
distributed = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
