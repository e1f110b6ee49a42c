import torch
from model import STEPS, begin, end, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

model = begin()
mesh = init_device_mesh("cpu", (2,))
for layer in model.model.layers:
    # Activation checkpointing, as trainers add it: the forward runs once more in backward.
    layer.mlp.forward = (lambda forward: lambda x: checkpoint(forward, x, use_reentrant=False))(
        layer.mlp.forward
    )
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(STEPS):
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
end(loss)
