import os
import sys

import torch
from model import STEPS, begin, end, loss_of, say
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule

model = DistributedDataParallel(begin())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
target = f"{sys.argv[2]}/mine{os.environ['RANK']}.json"
with profile(
    schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
    on_trace_ready=lambda done: done.export_chrome_trace(target),
) as profiler:
    for _ in range(STEPS):
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
say(len(profiler.events()) > 100)
end(loss)
