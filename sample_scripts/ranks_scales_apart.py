"""AMP427 under torchrun --nproc-per-node 2: each rank judges its own gradients before they are averaged."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

for step in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(torch.randn(16, 8))
    gain = 1e36 if (step, dist.get_rank()) == (2, 1) else 1.0
    scaler.scale(out.float().square().mean() * gain).backward()
    scaler.unscale_(optimizer)
    for parameter in model.parameters():
        finite = torch.nan_to_num(parameter.grad, posinf=0.0, neginf=0.0)
        dist.all_reduce(finite)
        parameter.grad.copy_(finite / dist.get_world_size())
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
