"""Modules with global hooks, which are called as torch calls them."""

import time

_before, _after = [], []


class _Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook
        hooks.append(hook)

    def remove(self):
        self.hooks.remove(self.hook)


def register_module_forward_pre_hook(hook):
    return _Handle(_before, hook)


def register_module_forward_hook(hook, *, always_call=False):
    assert always_call
    return _Handle(_after, hook)


def _forward_unimplemented(self, *given):
    raise NotImplementedError


class Module:
    forward = _forward_unimplemented
    training = True

    def named_children(self):
        return ((name, each) for name, each in vars(self).items() if isinstance(each, Module))

    def children(self):
        return (each for _, each in self.named_children())

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}".lstrip("."))

    def __call__(self, value):
        for hook in _before:
            hook(self, (value,))
        result = None
        try:
            result = self.forward(value)
        finally:
            for hook in _after:
                hook(self, (value,), result)
        return result

    def launch(self, value):
        from torch import profiler

        profiler.kernel(type(self).__name__)
        time.sleep(5e-5)
        return value
