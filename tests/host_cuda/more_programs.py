"""Further programs, of one device and without autograd of their own."""

from __future__ import annotations

from typing import Any

import torch
from programs import Of, eight, program
from torch import Tensor, nn
from torch.nn import functional as F


@program(loss_scale=16.0)
def a_softmax_with_a_loud_gradient(device: str) -> Any:
    return Of(
        lambda self, x: (self.body(x).softmax(-1) * 1e6)[:, 0].float().mean(), body=nn.Linear(8, 8)
    ), eight()


@program()
def rows_that_are_masked_throughout(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        scores = self.body(x)
        mask = torch.zeros_like(scores, dtype=torch.bool)
        mask[0] = True
        return scores.masked_fill(mask, float("-inf")).softmax(-1).float().square().mean()

    return Of(forward, body=nn.Linear(8, 8)), eight()


@program()
def causal_attention(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q * 300, k * 300, v, is_causal=True)
        return y.transpose(1, 2).reshape(2, 6, 8).float().mean()

    return Of(forward, qkv=nn.Linear(8, 24)), torch.randn(2, 6, 8)


@program()
def attention_whose_scores_leave_the_range(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = (q * 1000) @ (k * 1000).transpose(-1, -2)
        return (scores.softmax(-1) @ v).float().mean()

    return Of(forward, qkv=nn.Linear(8, 24)), torch.randn(2, 6, 8)


@program()
def a_norm_over_one_value(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.body(x)
        return ((h - h.mean(-1, keepdim=True)) / h.std(-1, keepdim=True)).float().mean()

    return Of(forward, body=nn.Linear(8, 1)), eight()


@program()
def channels_last_with_a_batch_norm(device: str) -> Any:
    body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
    return (
        Of(
            lambda self, x: (self.body(x.contiguous(memory_format=torch.channels_last)) * 1e6).float().mean(),
            body=body,
        ),
        torch.randn(2, 3, 8, 8),
    )


@program()
def a_recurrent_loop(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = x
        for _ in range(12):
            h = self.cell(h) * 4
        return h.float().mean()

    cell = nn.Linear(8, 8)
    nn.init.eye_(cell.weight)
    return Of(forward, cell=cell), eight()


@program(mode="half")
def weights_in_half_with_an_in_place_product(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.body(x)
        h.mul_(3e4).mul_(3.0)
        return h.float().clamp(-1, 1).mean()

    return Of(forward, body=nn.Linear(8, 8)), torch.ones(4, 8)


@program(mode="half", dtype="bfloat16")
def bfloat16_weights(device: str) -> Any:
    return Of(
        lambda self, x: ((self.body(x) + 4096.0) - 4096.0).float().square().mean(), body=nn.Linear(8, 8)
    ), eight()


@program(mode="none")
def its_own_autocast(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.autocast("cuda"):
            h = self.body(x)
            with torch.autocast("cuda", enabled=False):
                h = h.float() * 1e5
            return self.head(h * 1e3).float().mean()

    return Of(forward, body=nn.Linear(8, 8), head=nn.Linear(8, 1)), eight()


@program()
def an_exponential_in_the_user_s_half(device: str) -> Any:
    return Of(
        lambda self, x: self.body(x).half().exp().half().square().float().mean(), body=nn.Linear(8, 8)
    ), torch.full((4, 8), 30.0)


@program(loss_scale=1024.0)
def indices_that_repeat(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        rows = self.body(x)[torch.zeros(64, dtype=torch.long, device=x.device)]
        return (rows * 900.0).float().sum()

    return Of(forward, body=nn.Linear(8, 8)), eight()


@program()
def a_buffer_that_overflows(device: str) -> Any:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, 8)
            self.register_buffer("seen", torch.full((8,), 60000.0, dtype=torch.float16))

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            with torch.no_grad():
                self.seen += self.seen
            return h.float().mean()

    return Counts(), eight()


@program()
def dropout_that_overflows(device: str) -> Any:
    return Of(
        lambda self, x: F.dropout((self.body(x) * 100).tanh() * 4e4, 0.5).float().mean(), body=nn.Linear(8, 8)
    ), eight()


@program()
def a_loss_in_half(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return F.cross_entropy(self.body(x) * 3e4, torch.zeros(4, dtype=torch.long, device=x.device))

    return Of(forward, body=nn.Linear(8, 8)), eight() * 9
