"""Batches of every make that a script hands to its model: recorded without a touch, and run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from script_runner import run, urgent
from test_run_loop import script

LOOP = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = model

    def forward(self, batch):
        return self.body(batch.x)


net = Net()
for _ in range(2):
    batch = Batch(torch.randn(16, 8), torch.randint(0, 4, (16,)))
    optimizer.zero_grad()
    loss = F.cross_entropy(net(batch), batch.y)
    loss.backward()
    optimizer.step()
    assert isinstance(batch.x, torch.Tensor)
    print(loss.item())
"""

WHOLE = {
    "a frozen dataclass": """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    y: torch.Tensor
""",
    "one whose attributes cannot be set": """
class Batch:
    def __init__(self, x, y):
        vars(self).update(x=x, y=y)
    def __setattr__(self, name, value):
        raise TypeError(name)
""",
    "a named tuple that checks what it is made of": """
import collections
class Batch(collections.namedtuple("Pair", "x y")):
    def __new__(cls, x, y):
        assert x.dim() == 2
        return super().__new__(cls, x, y)
""",
    "a mapping whose copies share what it holds": """
import collections.abc
class Batch(collections.abc.MutableMapping):
    def __init__(self, x, y):
        self.held = {"x": x, "y": y}
    def __getitem__(self, key): return self.held[key]
    def __setitem__(self, key, value): self.held[key] = value
    def __delitem__(self, key): del self.held[key]
    def __iter__(self): return iter(self.held)
    def __len__(self): return len(self.held)
    x = property(lambda self: self.held["x"])
    y = property(lambda self: self.held["y"])
""",
    "one that refers to itself": """
class Batch:
    def __init__(self, x, y):
        self.x, self.y, self.me = x, y, [self]
""",
    "one with what torch.max returns": """
class Batch:
    def __init__(self, x, y):
        self.best, self.y = torch.stack([x, x]).max(0), y
    x = property(lambda self: self.best.values)
""",
}
REFUSED = {
    "one that copies to itself": """
class Batch:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __copy__(self):
        return self
""",
    "one that cannot be copied": """
class Batch:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __copy__(self):
        raise RuntimeError("one of a kind")
""",
    "a tuple that is made of two": """
class Batch(tuple):
    def __new__(cls, x, y):
        return super().__new__(cls, (x, y))
    x = property(lambda self: self[0])
    y = property(lambda self: self[1])
""",
}


@pytest.mark.parametrize("batch", WHOLE)
def test_a_batch_is_recorded_and_left_as_it_is(batch: str, tmp_path: Path) -> None:
    report, ended, printed = run(script(tmp_path, WHOLE[batch] + LOOP))
    assert (ended.status, ended.said, urgent(report)) == (0, "", [])
    (examined,) = report.examined
    assert examined.report.losses[0].reference == float(printed.split()[0])


@pytest.mark.parametrize("batch", REFUSED)
def test_a_batch_that_cannot_be_copied_is_said_and_the_script_goes_on(batch: str, tmp_path: Path) -> None:
    report, ended, printed = run(script(tmp_path, REFUSED[batch] + LOOP))
    assert (ended.status, ended.said, len(printed.split())) == (0, "", 2)
    assert report.examined == ()
    assert report.not_seen == ("2 of the losses (a Batch with tensors in it cannot be copied)",)
