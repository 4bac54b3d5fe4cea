"""How each parameter's gradient stands: raw, scaled, unscaled, mixed; told by identity and version alone."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ampdoctor.facts.words import GradientKind


@dataclass
class Standing:
    """One parameter's gradient, as last seen."""

    parameter: weakref.ref[Tensor]
    signature: tuple[int, int] | None = None
    """Identity and version of the gradient; None: there is none."""
    kind: GradientKind | None = None
    since: int = 0
    """The order of the earliest backward that it holds."""
    unscaled_at: int = 0
    """The order of the event that divided it last."""


class GradientBook:
    """Standing of the gradients of every parameter that an optimizer has."""

    def __init__(self) -> None:
        self._standings: dict[int, Standing] = {}
        self.stale = True
        """The script has called something since gradients were last looked at, and may have changed them."""
        self.scaled_since: Callable[[Tensor], int | None] = lambda _: None
        """Of a gradient that the script put there: since which event it carries the scale; None: not."""
        self._counted: dict[GradientKind, int] | None = None
        """How many of all stand how; None: to be counted."""
        self._clipped: tuple[list[int], Tensor] | None = None
        """Whose gradients were clipped together last, and their norm since; None where one has changed."""

    def know(self, parameters: Iterable[Tensor]) -> None:
        """Nothing; these parameters are followed from now on."""
        for parameter in parameters:
            known = self._standings.get(id(parameter))
            if known is None or known.parameter() is not parameter:
                self._standings[id(parameter)] = Standing(weakref.ref(parameter))
                self._counted, self.stale = None, True

    def knows(self, tensor: object) -> bool:
        """The tensor is a parameter that is followed."""
        known = self._standings.get(id(tensor))
        return known is not None and known.parameter() is tensor

    def parameters(self) -> list[Tensor]:
        """All that are followed and still there."""
        return [p for s in self._standings.values() if (p := s.parameter()) is not None]

    def refresh(self) -> None:
        """Nothing; gradients that the script removed or changed since are marked so."""
        if not self.stale:
            return
        self.stale = False
        gone = []
        for key, standing in self._standings.items():
            parameter = standing.parameter()
            if parameter is None:
                gone.append(key)
                continue
            gradient, before = (
                parameter.grad,
                standing.signature,
            )  # spelt out: this is most of the watch's cost
            if gradient is None:
                if before is None:
                    continue
            elif before is not None and before[0] == id(gradient) and before[1] == gradient._version:
                continue
            standing.signature = None if gradient is None else (id(gradient), gradient._version)
            since = None if gradient is None else self.scaled_since(gradient)
            standing.kind = None if gradient is None else "edited" if since is None else "scaled"
            standing.since = standing.since if since is None else since
            self._changed()
        for key in gone:
            del self._standings[key]
            self._changed()

    def counts(self, parameters: Collection[Tensor] | None = None) -> dict[GradientKind, int]:
        """How many gradients stand how, of these parameters or of all."""
        if parameters is not None and {id(p) for p in parameters} != self._standings.keys():
            return _counted(self._of(parameters))
        if self._counted is None:
            self._counted = _counted(self._standings.values())
        return dict(self._counted)

    def earliest(self, parameters: Iterable[Tensor], kind: GradientKind) -> int | None:
        """The order of the earliest backward that gradients of this kind hold; None where there are none."""
        orders = [s.since for s in self._of(parameters) if s.kind == kind]
        return min(orders, default=None)

    def unscaled_at(self, parameters: Iterable[Tensor]) -> int | None:
        """The order of the earliest event that divided gradients that are still unscaled; None for none."""
        return min((s.unscaled_at for s in self._of(parameters) if s.kind == "unscaled"), default=None)

    def cleared(self, parameters: Iterable[Tensor]) -> None:
        """Nothing; these gradients were set to zero or None."""
        for parameter in parameters:
            standing = self._standings.get(id(parameter))
            if standing is None:
                continue
            gradient = parameter.grad
            standing.kind = None
            standing.signature = None if gradient is None else (id(gradient), gradient._version)
        self._changed()

    def backward(self, order: int, scaled: bool) -> list[tuple[Tensor, GradientKind | None, int]]:
        """What this backward added to: (parameter, how its gradient stood before, since when)."""
        touched = []
        kind: GradientKind = "scaled" if scaled else "raw"
        self._changed()
        for standing in self._standings.values():
            parameter = standing.parameter()
            if parameter is None or (gradient := parameter.grad) is None:
                continue
            signature, before = (id(gradient), gradient._version), standing.kind
            if signature == standing.signature:
                continue
            touched.append((parameter, before, standing.since))
            standing.signature = signature
            if before is None:
                standing.since, standing.kind = order, kind
            elif before != kind and before != "edited":
                standing.kind = "mixed"
        return touched

    def unscaled(self, parameters: Iterable[Tensor], order: int) -> None:
        """Nothing; these gradients were divided by the scale."""
        following: dict[GradientKind, GradientKind] = {
            "scaled": "unscaled",
            "raw": "overdivided",
            "unscaled": "overdivided",
        }
        for parameter in parameters:
            standing = self._standings.get(id(parameter))
            if standing is None:
                continue
            gradient, before = parameter.grad, standing.kind
            standing.signature = None if gradient is None else (id(gradient), gradient._version)
            if before is not None:
                standing.kind = following.get(before, before)
                standing.unscaled_at = order
        self._changed()

    def clipped(self, parameters: Iterable[Tensor], norm: Tensor, largest: float) -> None:
        """Nothing; these gradients, of this 2-norm, were just clipped to ``largest`` by clip_grad_norm_."""
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)  # as torch does it
        self._clipped = [id(p) for p in parameters], norm * factor

    def norm(self, parameters: Iterable[Tensor]) -> Tensor | None:
        """The 2-norm of these gradients; known without reading them where they were just clipped."""
        if self._clipped is not None and self._clipped[0] == [id(p) for p in parameters]:
            return self._clipped[1]
        return norm_of(parameters)

    def kept(self, parameters: Iterable[Tensor]) -> None:
        """Nothing; what changed these gradients is known, and they stand as before."""
        for parameter in parameters:
            standing = self._standings.get(id(parameter))
            if standing is None:
                continue
            gradient = parameter.grad
            standing.signature = None if gradient is None else (id(gradient), gradient._version)

    def _changed(self) -> None:
        self._counted = self._clipped = None

    def _of(self, parameters: Iterable[Tensor]) -> list[Standing]:
        return [s for p in parameters if (s := self._standings.get(id(p))) is not None]


def _counted(standings: Iterable[Standing]) -> dict[GradientKind, int]:
    return dict(collections.Counter(s.kind for s in standings if s.kind is not None))


def norm_of(parameters: Iterable[Tensor]) -> Tensor | None:
    """The 2-norm of all gradients, where they lie; None without gradients."""
    gradients = [p.grad.detach() for p in parameters if p.grad is not None]
    dense = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    if not dense:
        return None
    norms = [n.float() for n in torch._foreach_norm(dense)]
    device = norms[0].device
    total: Tensor = torch.linalg.vector_norm(torch.stack([n.to(device) for n in norms]))
    return total
