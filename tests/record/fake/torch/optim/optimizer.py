import os

_hooks = []


def register_optimizer_step_post_hook(hook):
    _hooks.append(hook)


if os.environ.get("FAKE_OLD"):
    del register_optimizer_step_post_hook


class Optimizer:
    def step(self):
        from torch import profiler

        with profiler.record_function(f"Optimizer.step#{type(self).__name__}.step"):
            profiler.kernel("multi_tensor_apply")
            for hook in _hooks:
                hook(self, (), {})


class Adam(Optimizer):
    pass
