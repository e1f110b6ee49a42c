import sys

import torch
from model import STEPS, begin, end, loss_of
from torch.nn.parallel import DistributedDataParallel

how = sys.argv[2]
inner = begin()
if how == "layers":  # as torchtitan does
    for layer in inner.model.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
model = DistributedDataParallel(inner)
if how == "model":
    model = torch.compile(model, backend="aot_eager")
if how == "in-place":
    model.compile(backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(STEPS):
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
end(loss)
