"""Trains a model of three layers; arguments change how: `loop.py --steps 20 eval accumulate`."""

import ctypes
import os
import signal
import sys
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        self.attention, self.mlp = nn.Linear(), nn.Linear()

    def forward(self, value):
        return self.mlp(self.attention(value))


class Lists(nn.Module):
    """Layers that are lists of modules, as in x-transformers."""

    def __init__(self):
        pairs = [nn.ModuleList([Block(), nn.Linear()]) for _ in range(3)]
        self.layers = nn.ModuleList(pairs)

    def forward(self, value):
        for pair in self.layers:
            for module in pair:
                value = module(value)
        return value


class Model(nn.Module):
    def __init__(self):
        self.embed = nn.Linear()
        self.layers = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear()

    def forward(self, value):
        value = self.embed(value)
        for layer in self.layers:
            value = layer(value)
        return self.head(value)


class OptimizedModule(nn.Module):
    """What torch.compile makes of a model; its forward is the instance's."""

    def __init__(self, module):
        self._orig_mod = module
        self.forward = lambda value: module(value)


steps, words = int(sys.argv[1]), sys.argv[2:]
model, optimizer = Lists() if "lists" in words else Model(), torch.optim.Adam()
if "compiled" in words:
    model = OptimizedModule(model)
critic, critic_optimizer = nn.Linear(), torch.optim.Adam()
for step in range(steps):
    if "own-profiler" in words and step == 2:
        mine = torch.profiler.profile()
        mine.start()
    if "critic" in words:
        critic(model(1))
        critic_optimizer.step()
    for _ in range(2 if "accumulate" in words else 1):
        model(1)
        with torch.backward():
            if "recompute" in words:
                next(iter(model.layers))(1)
    for _ in range(4 if "optimizers" in words else 0 if "functional" in words else 1):
        optimizer.step()
    if "eval" in words:
        model.training = False
        with torch.no_grad():
            model(1)
        model.training = True
    if "save" in words and step % 3 == 2:
        torch.save(model, os.path.join(os.environ["OUT"], "checkpoint"))
    if "crash" in words and step == 7:
        raise RuntimeError("lost the plot")
    if "kill" in words and step == 7:
        os.kill(os.getpid(), signal.SIGTERM)
    if "exit" in words and step == 7:
        os._exit(9)
    if "stuck" in words and step == 3:
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)
    if "slow" in words:
        time.sleep(0.01)
if "own-profiler" in words:
    mine.stop()
    mine.export_chrome_trace(os.path.join(os.environ["OUT"], "mine.json"))
    print(len(mine.events) > 10)
print("done")
