"""AMP422: the scale is updated before the gradients are divided."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def loss_of(gain=1.0):
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x * gain)
    return F.cross_entropy(out.float(), y)


second = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
weight = second.param_groups[0]["params"][0]
for _ in range(4):
    optimizer.zero_grad()
    second.zero_grad()
    scaler.scale(loss_of() + (weight - 1).square().sum()).backward()
    scaler.step(second)
    scaler.update()
    scaler.step(optimizer)
