"""Small programs that a scan must see alike on a CPU that emulates CUDA and on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ampdoctor.load.workload import Workload

PROGRAMS: dict[str, Callable[[str], tuple[Workload, dict[str, Any]]]] = {}
"""Name -> what a device is given: the workload, and what its plan says beyond the device."""


def program(**plan: Any) -> Any:
    def kept(make: Callable[[str], Any]) -> Any:
        def made(device: str) -> tuple[Workload, dict[str, Any]]:
            torch.manual_seed(0)
            model, batch, *step = make(device)
            work = Workload(make.__name__, model, (batch,), step[0] if step else lambda m, x: m(x))
            return work, {"loss_scale": 1.0, **plan}

        PROGRAMS[make.__name__] = made
        return make

    return kept


class Of(nn.Module):
    """A model whose forward is a function; the modules are its parts."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


class Part(Of):
    """The same, inside another."""


def eight(rows: int = 4) -> Tensor:
    return torch.randn(rows, 8).requires_grad_()


def sick_root() -> nn.Module:
    """The gradient of a root at 0 is infinite, times the square's, 0: NaN."""
    return Part(lambda self, x: x + torch.sqrt((x - x.detach()).square()))


def loud(factor: float = 1e6) -> nn.Module:
    """Its output is small and its gradient is not."""
    return Part(lambda self, x: x + (self.inner(x) - self.inner(x).detach()) * factor, inner=nn.Linear(8, 8))


# -- checkpoints


def checkpointed(reentrant: bool, *parts: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        for part in self.blocks:
            x = checkpoint(part, x, use_reentrant=reentrant)
        return self.head(x).float().mean()

    return Of(forward, blocks=nn.ModuleList(parts), head=nn.Linear(8, 1))


@program()
def reentrant_with_dropout_and_a_sick_middle(device: str) -> Any:
    parts = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(), sick_root(), nn.Tanh()) for _ in range(1)]
    healthy = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Tanh()) for _ in range(2)]
    return checkpointed(True, healthy[0], parts[0], healthy[1]), eight()


@program()
def reentrant_inside_reentrant(device: str) -> Any:
    inner = Part(
        lambda self, x: checkpoint(self.deep, torch.tanh(self.up(x)), use_reentrant=True),
        up=nn.Linear(8, 8),
        deep=nn.Sequential(nn.Linear(8, 8), sick_root()),
    )
    return checkpointed(True, nn.Linear(8, 8), inner, nn.Linear(8, 8)), eight()


@program()
def non_reentrant_inside_reentrant(device: str) -> Any:
    inner = Part(
        lambda self, x: checkpoint(self.deep, torch.tanh(self.up(x)), use_reentrant=False),
        up=nn.Linear(8, 8),
        deep=nn.Sequential(nn.Linear(8, 8), sick_root()),
    )
    return checkpointed(True, nn.Linear(8, 8), inner, nn.Linear(8, 8)), eight()


@program()
def forward_overflow_in_a_checkpoint(device: str) -> Any:
    sick = Part(lambda self, x: torch.tanh(self.up(x) * 1e6), up=nn.Linear(8, 8))
    return checkpointed(True, nn.Linear(8, 8), sick), eight()


@program(loss_scale=1024.0)
def a_loud_gradient_in_a_non_reentrant_checkpoint(device: str) -> Any:
    return checkpointed(False, nn.Linear(8, 8), loud(), nn.Linear(8, 8)), eight()


@program(loss_scale=1024.0)
def a_loud_gradient_in_a_reentrant_checkpoint(device: str) -> Any:
    return checkpointed(True, nn.Linear(8, 8), loud(), nn.Linear(8, 8)), eight()


@program()
def checkpoints_in_segments(device: str) -> Any:
    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), sick_root(), nn.Linear(8, 1))
    return (
        Of(
            lambda self, x: checkpoint_sequential(self.layers, 2, x, use_reentrant=True).float().mean(),
            layers=layers,
        ),
        eight(),
    )


# -- gradients in the forward


def with_penalty(penalty: Callable[[Tensor], Tensor], body: nn.Module, reentrant: Any = None) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        h = self.body(x) if reentrant is None else checkpoint(self.body, x, use_reentrant=reentrant)
        y = self.head(h)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.float().mean() + penalty(gradient)

    return Of(forward, body=body, head=nn.Linear(8, 1))


@program()
def penalty_whose_norm_is_of_nothing(device: str) -> Any:
    """The norm of a gradient that is zero has an infinite gradient, times zero."""
    body = Part(lambda self, x: self.inner(x) * 0.0, inner=nn.Linear(8, 8))
    return with_penalty(lambda g: g.float().square().sum(1).sqrt().mean(), body), eight()


@program()
def penalty_that_overflows(device: str) -> Any:
    body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    return with_penalty(lambda g: (g.half() * 1e5 * 10.0).float().square().mean() * 1e-20, body), eight()


@program()
def penalty_through_a_checkpoint(device: str) -> Any:
    body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), sick_root())
    return with_penalty(lambda g: g.float().square().sum(), body, reentrant=False), eight()


@program(loss_scale=65536.0)
def forces_without_a_graph_of_their_own(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        energy = self.body(x).float().sum()
        (forces,) = torch.autograd.grad(energy * 1e6, x, retain_graph=True)
        return energy * 1e-3 + forces.half().float().nan_to_num().mean() * 0

    return Of(forward, body=nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1))), eight()


@program()
def an_inner_step_of_meta_learning(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        weight = self.fast.weight
        loss = F.linear(x, weight).float().square().mean()
        (g,) = torch.autograd.grad(loss, weight, create_graph=True)
        fast = weight - 0.1 * g
        return torch.sqrt((F.linear(x, fast).float() - F.linear(x, fast).float().detach()).square()).mean()

    return Of(forward, fast=nn.Linear(8, 8, bias=False)), eight()


@program()
def backward_inside_the_forward(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        self.body(x).float().sum().backward(inputs=[x])
        assert x.grad is not None
        return (self.body(x + x.grad.detach()).half() * 1e6).float().mean()

    return Of(forward, body=nn.Linear(8, 8)), eight()


# -- the user's own backward


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient / (x - x)


@program()
def a_function_whose_backward_divides_by_zero(device: str) -> Any:
    body = Part(lambda self, x: Doubles.apply(self.inner(x)), inner=nn.Linear(8, 8))
    return Of(
        lambda self, x: self.head(self.body(x)).float().mean(), body=body, head=nn.Linear(8, 1)
    ), eight()


class Mixed(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return gradient @ w, (gradient * 1e5).t() @ x


@program()
def a_function_under_the_forward_s_autocast(device: str) -> Any:
    body = Part(lambda self, x: Mixed.apply(x, self.inner.weight), inner=nn.Linear(8, 8))
    return Of(lambda self, x: self.body(x).float().sum(), body=body), eight()


@program(loss_scale=1024.0)
def a_hook_that_scales_a_gradient(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.body(x)
        h.register_hook(lambda g: g * 1e6)
        return self.head(torch.tanh(h)).float().mean()

    return Of(forward, body=nn.Linear(8, 8), head=nn.Linear(8, 1)), eight()


@program()
def torch_func_grad_inside(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        g = torch.func.grad(lambda z: torch.tanh(self.body(z)).float().sum())(x.detach())
        return (g.half() * 1e6).float().mean() + self.body(x).float().mean()

    return Of(forward, body=nn.Linear(8, 8)), eight()


@program()
def vmap_over_samples(device: str) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        each = torch.func.vmap(lambda z: (self.body(z) * 1e6).tanh())
        return each(x).float().mean()

    return Of(forward, body=nn.Linear(8, 8)), eight()


@program()
def on_two_devices_forward(device: str) -> Any:
    return two(
        device, nn.Linear(8, 8), Part(lambda self, x: torch.tanh(self.up(x) * 1e6), up=nn.Linear(8, 8))
    ), eight()


@program()
def on_two_devices_backward_in_the_second(device: str) -> Any:
    return two(device, nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), sick_root())), eight()


@program()
def on_two_devices_backward_in_the_first(device: str) -> Any:
    return two(device, nn.Sequential(nn.Linear(8, 8), sick_root()), nn.Linear(8, 8)), eight()


@program()
def on_two_devices_with_reentrant_checkpoints(device: str) -> Any:
    return two(device, nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), sick_root()), reentrant=True), eight()


@program()
def on_two_devices_and_a_loop_back(device: str) -> Any:
    """From the first to the second and back: backward goes through three device threads' turns."""
    first, second = (f"{device}:0", f"{device}:1") if device == "cuda" else ("cpu", "cpu")

    def forward(self: Any, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x.to(first))).to(second)
        h = torch.tanh(self.b(h)).to(first)
        return self.c(h + torch.sqrt((h - h.detach()).square())).float().mean()

    return (
        Of(forward, a=nn.Linear(8, 8).to(first), b=nn.Linear(8, 8).to(second), c=nn.Linear(8, 1).to(first)),
        eight(),
    )


def two(device: str, a: nn.Module, b: nn.Module, reentrant: bool = False) -> nn.Module:
    first, second = (f"{device}:0", f"{device}:1") if device == "cuda" else ("cpu", "cpu")

    def forward(self: Any, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x.to(first))).to(second)
        h = checkpoint(self.b, h, use_reentrant=True) if reentrant else self.b(h)
        return self.head(h).float().mean()

    return Of(forward, a=a.to(first), b=b.to(second), head=nn.Linear(8, 1).to(second))
