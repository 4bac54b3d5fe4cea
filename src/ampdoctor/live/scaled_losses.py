"""Which tensors come from a loss that was multiplied by a loss scale."""

from __future__ import annotations

from typing import Any

from torch import Tensor

_NEAR = 64
"""Autograd nodes looked at between the root of backward and the multiplication; it is mostly the first."""


class ScaledLosses:
    """What ``GradScaler.scale`` gave back, by the autograd node that it left behind."""

    def __init__(self) -> None:
        self._by_node: dict[int, tuple[Any, Tensor | None]] = {}
        self._by_hand: set[int] = set()

    def know(self, scaler: Any, outputs: Any, scaled: Any) -> None:
        """Nothing; ``scaled`` is ``outputs`` times the scaler's scale."""
        if len(self._by_node) > 256:  # those of steps gone by
            self._by_node.clear()
        plain = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        for before, after in zip(
            plain, [scaled] if isinstance(scaled, Tensor) else list(scaled), strict=False
        ):
            if isinstance(after, Tensor) and after.grad_fn is not None:
                loss = before.detach() if before.numel() == 1 else None
                self._by_node[after.grad_fn._sequence_nr()] = (scaler, loss)

    def know_by_hand(self, result: Tensor) -> None:
        """Nothing; the script multiplied by a loss scale itself."""
        if len(self._by_hand) > 256:
            self._by_hand.clear()
        if result.grad_fn is not None:
            self._by_hand.add(result.grad_fn._sequence_nr())

    def scaler_of(self, root: Tensor) -> tuple[Any, Tensor | None] | None:
        """The scaler that scaled what ``root`` was made of, and the loss before; None where none did."""
        return next((self._by_node[n] for n in _near(root) if n in self._by_node), None)

    def by_hand(self, roots: list[Tensor]) -> bool:
        """One of these was multiplied by a loss scale without ``GradScaler.scale``."""
        return any(n in self._by_hand for root in roots for n in _near(root))


def _near(root: Tensor) -> list[int]:
    """Sequence numbers of the autograd nodes near the root, nearest first."""
    pending = [root.grad_fn]
    found: list[int] = []
    for node in pending:
        if node is None or len(found) >= _NEAR:
            continue
        found.append(node._sequence_nr())
        pending += [following for following, _ in node.next_functions]
    return found
