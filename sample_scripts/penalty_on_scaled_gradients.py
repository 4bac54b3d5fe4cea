"""AMP421: a gradient penalty that outweighs the loss."""

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


weights = list(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    loss = loss_of()
    grads = torch.autograd.grad(scaler.scale(loss), weights, create_graph=True)
    penalty = sum(grad.square().sum() for grad in grads)
    scaler.scale(loss + 1e-9 * penalty).backward()
    scaler.step(optimizer)
    scaler.update()
