import os
import signal

import torch
from model import STEPS, begin, end, loss_of
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(begin())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(STEPS):
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 7:
        os.kill(os.getpid(), signal.SIGTERM)
end(loss)
