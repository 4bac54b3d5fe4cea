"""Models that return what they are told, and the step that a config's loss makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ampdoctor.config import Config
from ampdoctor.load.loss import build_step


class Model(torch.nn.Module):
    """Returns what it is told, and remembers how it was called."""

    def __init__(self, output: Any = None) -> None:
        super().__init__()
        self.output = output
        self.called: Any = None


class TakesOne(Model):
    def forward(self, x: Any) -> Any:
        self.called = x
        return self.output


class TakesTwo(Model):
    def forward(self, x: Any, y: Any = None) -> Any:
        self.called = (x, y)
        return self.output


ONE, TWO = torch.tensor(1.0), torch.tensor(2.0)


def step_of(loss: Any) -> Callable[[torch.nn.Module, Any], Any]:
    values: dict[str, Any] = {"model": {"target": "a.py:b"}, "data": {"target": "a.py:b"}, "loss": loss}
    return build_step(Config.model_validate(values))


X = torch.zeros(1)


LOSS_CODE = """
    import torch

    def build_model():
        return torch.nn.Linear(2, 1)

    def good(model, batch, factor=1.0):
        return model(batch["x"]).sum() * 0 + factor

    def nothing(model, batch): pass
    def number(model, batch): return model(batch["x"]).mean().item()
    def losses(model, batch): return [model(batch["x"]).mean(), model(batch["x"]).sum()]
    def by_name(model, batch): return {"box": model(batch["x"]).mean()}
    def with_outputs(model, batch): return torch.tensor(2.0), model(batch["x"])
    def in_a_dict(model, batch): return {"loss": torch.tensor(2.0), "accuracy": 0.5}
    def of_output(pred, target, factor=1.0): return factor * (pred * 0 + target - 1).sum()
    criterion = torch.nn.MSELoss(reduction="sum")
    def vector(model, batch): return model(batch["x"]).squeeze(-1)
    def empty(model, batch): return torch.ones(0)
    def integer(model, batch): return torch.tensor(3)
    def one_argument(output): return output
    def raises(model, batch): raise ZeroDivisionError("mine")

    class Criterion:
        def __init__(self, model, batch): pass
    """
