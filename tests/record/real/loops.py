"""Training loops in the manner of libraries that aren't installed: `loops.py STEPS STYLE`."""

import sys

import torch
from model import STEPS, begin, end, loss_of

STYLE = sys.argv[2]
MICROSTEPS = 4


class Engine(torch.nn.Module):
    """DeepSpeed's: it holds the model, its backward and step are methods, and ZeRO-3 steps once per
    group of parameters."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        parameters = [*module.parameters()]
        self.groups = [torch.optim.AdamW(parameters[first::3], 1e-3) for first in range(3)]
        self.micro = 0

    def forward(self, tokens):
        return self.module(tokens)

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.micro += 1
        if self.micro % MICROSTEPS == 0:
            for each in self.groups:
                each.step()
                each.zero_grad()


def deepspeed(model):
    engine = Engine(model)
    for _ in range(MICROSTEPS * STEPS):
        loss = loss_of(engine)
        engine.backward(loss)
        engine.step()
    return loss


class Chained:
    """Megatron's ChainedOptimizer: no optimizer of torch itself, it steps its members."""

    def __init__(self, members):
        self.members = members

    def step(self):
        for each in self.members:
            each.step()

    def zero_grad(self):
        for each in self.members:
            each.zero_grad()


def megatron(model):
    parameters = [*model.parameters()]
    optimizer = Chained([torch.optim.AdamW(parameters[first::2], 1e-3) for first in range(2)])
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(MICROSTEPS):
            loss = loss_of(model) / MICROSTEPS
            loss.backward()
        optimizer.step()
    return loss


def torchtitan(model):
    """Its containers of optimizers and schedulers, and clipping by the total norm."""
    optimizers = [torch.optim.AdamW(model.parameters(), 1e-3, foreach=True)]
    schedulers = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: 1.0) for each in optimizers]
    for _ in range(STEPS):
        for each in optimizers:
            each.zero_grad()
        loss = loss_of(model)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedulers):
            each.step()
    return loss


def trl(model):
    """GRPO of TRL: tokens are generated, and a reference model is asked, without gradients."""
    from copy import deepcopy

    reference = deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(STEPS):
        with torch.no_grad():
            tokens = torch.zeros(2, 1, dtype=torch.long)
            for _ in range(3):
                tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
            reference(tokens)
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss


loss = globals()[STYLE](begin())
end(loss)
