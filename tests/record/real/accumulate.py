import torch
from model import STEPS, begin, end, loss_of
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(begin())
decoder = [*model.module.model.parameters()]
head = [*model.module.lm_head.parameters()]
optimizers = [torch.optim.AdamW(decoder, 1e-3), torch.optim.SGD(head, 1e-3)]
for _ in range(STEPS):
    with model.no_sync():
        for _ in range(3):
            loss_of(model).backward()
    loss = loss_of(model)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
end(loss)
