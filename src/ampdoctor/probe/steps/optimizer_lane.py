"""An optimizer with weights of its own: two of them step one model in turn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.errors import AmpDoctorError, is_out_of_memory
from ampdoctor.facts.site import Source
from ampdoctor.probe.watch.location import line_that_makes, source_of
from ampdoctor.probe.watch.op_arguments import flat

__ampdoctor_calls_user_code__ = True
"""The user's lines end at frames of this module; see ``watch.location``."""


class NoStep(Exception):
    """No step could be taken; the message says why."""


class Lane:
    """An optimizer and the weights it steps. They lie in the model until another's are placed."""

    def __init__(
        self,
        model: nn.Module,
        build: Callable[[nn.Module], torch.optim.Optimizer],
        wide: bool = False,
        watch: AbstractContextManager[Any] | None = None,
    ) -> None:
        """``wide``: its weights are copies in FP32 (or wider), from which the optimizer is built."""
        named = {n: p for n, p in model.named_parameters() if p.requires_grad and p.is_floating_point()}
        self.parameters = named
        self.data = {n: p.data.to(wider(p.dtype), copy=True) if wide else p.data for n, p in named.items()}
        self.place()
        with makers() as made, watch or nullcontext():
            self.optimizer = build(model)
        self._keep()
        self.source = made.get(id(self.optimizer))
        self.eps = {id(p): g.get("eps") for g in self.optimizer.param_groups for p in g["params"]}

    @property
    def name(self) -> str:
        """The optimizer's class."""
        return type(self.optimizer).__name__

    def holds(self, name: str) -> bool:
        """The parameter stands in one of the optimizer's groups."""
        return id(self.parameters[name]) in self.eps

    def step(self, gradients: Mapping[str, Tensor], watch: AbstractContextManager[Any], role: str) -> None:
        """Nothing; the weights have moved by these gradients. Raises NoStep where the optimizer raises."""
        if _asks_for_closure(self.optimizer):
            raise NoStep(f"{self.name}.step() asks for a closure, and steps are taken here without one")
        self.place()
        for name, parameter in self.parameters.items():
            parameter.grad = gradients.get(name)
        try:
            with watch:
                self.optimizer.step()
        except AmpDoctorError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # Of the user's optimizer, or torch's refusal of these dtypes: the rest of the scan stands.
            raise NoStep(f"{self.name}.step() raises{role} {type(error).__name__}: {error}") from error
        self._keep()

    def carries(self, name: str, exact: Tensor) -> bool:
        """Whether the optimizer keeps what rounding takes from a parameter that should stand at ``exact``.

        A tensor of its own that is the weight, in full digits; or one that makes it up, element by element no
        larger than what the weight's format leaves out.
        """
        weight, parameter = self.data[name], self.parameters[name]
        off = torch.linalg.vector_norm(exact.double() - weight.double())
        spacing = spacing_of(weight)
        for tensor in flat(list(vars(self.optimizer).values())):
            if not isinstance(tensor, Tensor) or tensor is parameter or tensor.shape != weight.shape:
                continue
            if not tensor.is_floating_point():
                continue
            made_up = [tensor.double()] if tensor.itemsize > weight.itemsize else []
            if bool((tensor.abs().double() <= spacing.double()).all()):
                made_up += [weight.double() + tensor.double(), weight.double() - tensor.double()]
            if any(torch.linalg.vector_norm(exact.double() - m) < 0.5 * off for m in made_up):
                return True
        return False

    def place(self) -> None:
        """Nothing; the model has this lane's weights, and no gradients."""
        for name, parameter in self.parameters.items():
            parameter.grad = None
            parameter.data = self.data[name]

    def _keep(self) -> None:
        """An optimizer may have put its parameters into memory of its own."""
        self.data = {n: p.data for n, p in self.parameters.items()}


def wider(dtype: torch.dtype) -> torch.dtype:
    """FP32, or the dtype itself where it is wider."""
    return torch.promote_types(dtype, torch.float32)


def spacing_of(weights: Tensor) -> Tensor:
    """The distance from each weight to the next larger magnitude of its dtype, in FP32 (or wider)."""
    info = torch.finfo(weights.dtype)
    values = weights.to(wider(weights.dtype))
    _, exponents = torch.frexp(values)  # |x| = f * 2^e with 1/2 <= f < 1
    steps = torch.ldexp(torch.full_like(values, info.eps), exponents - 1)
    steps = torch.where(values == 0, torch.zeros_like(steps), steps)  # frexp gives zero the exponent of 1/2
    return steps.clamp(min=info.smallest_normal * info.eps)


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """No tensor holds inf or NaN."""
    if not tensors:
        return True
    device = tensors[0].device  # the host waits once
    return bool(torch.stack([torch.isfinite(t).all().to(device) for t in tensors]).all())


def _asks_for_closure(optimizer: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


@contextmanager
def makers() -> Iterator[dict[int, Source | None]]:
    """id() of every optimizer made while open -> the user's line that makes it."""
    found: dict[int, Source | None] = {}
    original: Callable[..., None] = torch.optim.Optimizer.__init__

    def init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        found[id(optimizer)] = source_of(line_that_makes(optimizer))
        original(optimizer, *args, **kwargs)

    torch.optim.Optimizer.__init__ = init  # type: ignore[assignment, method-assign]
    try:
        yield found
    finally:
        torch.optim.Optimizer.__init__ = original  # type: ignore[method-assign]
