"""A recorded pass over tensors without values: whatever would make the host wait for a device raises here.

``FakeTensorMode`` refuses every op whose result the host must know (``.item()``, ``nonzero``, a mask as an
index); ``Crossings`` notes what it lets pass and a GPU waits for as well: copies between host and device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes import one_pass
from ampdoctor.probe.passes.one_pass import Run, run_pass
from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch import exponents, fused, observer
from ampdoctor.probe.watch.op_arguments import flat


class Layer(nn.Module):
    """A transformer's, in 16 dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        weights = ((q @ k.transpose(-1, -2)) / 8**0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.dropout(F.gelu(self.up(self.norms[1](x))), 0.1, self.training))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.layers = nn.Sequential(Layer(), Layer())
        self.head = nn.Linear(16, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.layers(self.embed(tokens)))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = images.contiguous(memory_format=torch.channels_last)
        return self.head(self.body(x).flatten(1)).float().square().mean()


class Crossings(TorchDispatchMode):
    """Counts ops that move elements between devices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        copies = "copy" in func._schema.name  # any other op takes a number of the host's into its kernel
        given = {t.device for t in flat((args, kwargs)) if isinstance(t, Tensor) and (copies or t.dim())}
        there = {t.device for t in flat(made) if isinstance(t, Tensor)}
        if len(given | there) > 1:
            self.found[func._schema.name] += 1
        return made

    def tensor(self, *args: Any, original: Any = torch.tensor, **kwargs: Any) -> Tensor:
        """``torch.tensor``, which no mode sees copy to the device."""
        made: Tensor = original(*args, **kwargs)
        if made.device.type != "cpu":
            self.found["torch.tensor"] += 1
        return made


@contextmanager
def fake_tensors() -> Iterator[Crossings]:
    """Everything made inside has no values; observers see it all the same, and count as on a device."""

    def has_own_dispatch(cls: type, original: Any = observer._has_own_dispatch) -> bool:
        return not issubclass(cls, FakeTensor) and bool(original(cls))

    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(), Crossings() as crossings:
        patch.setattr(observer, "_has_own_dispatch", has_own_dispatch)
        patch.setattr(observer, "is_tracing", lambda: False)
        patch.setattr(torch, "tensor", crossings.tensor)
        # Its own would copy the mode as well.
        patch.setattr(FakeTensor, "__deepcopy__", lambda self, memo: self.detach().clone(), raising=False)
        patch.setattr(exponents, "on_host", lambda x: False)
        patch.setattr(fused, "_kernel", lambda: None)  # a kernel wants values
        # After the pass, and once for all buffers, the host asks which were written to.
        patch.setattr(one_pass, "written_buffers", lambda model, before: {})
        yield crossings


def recorded(
    build: type[nn.Module],
    batch: Tensor,
    device: str,
    role: str,
    crossings: Crossings,
    kind: type[observer.Observer] = observer.Observer,
) -> Run:
    """The run of a pass over fake tensors on ``device``; the crossings are those from its first op on."""

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        crossings.found.clear()  # weights and batch were brought to the device
        loss: Tensor = model(batch)
        return loss

    with torch.device(device):
        model = build()
    precision = Precision(
        "reference" if role == "reference" else "candidate",
        "none" if role == "reference" else "autocast",
        torch.float32 if role == "reference" else torch.float16,
        torch.device(device), False, 1024.0,
    )  # fmt: skip
    workload = Workload("test", model, (batch,), step)
    return run_pass(workload, batch, precision, 0, kind)


def all_passes(device: str, kind: type[observer.Observer] = observer.Observer) -> dict[str, Any]:
    """Of each model and role: tensors counted in forward and backward, their devices, and the crossings."""
    answer: dict[str, Any] = {}
    for build in (Transformer, Convolutions):
        for role in ("reference", "candidate"):
            with fake_tensors() as crossings:
                shape = (2, 5) if build is Transformer else (2, 3, 8, 8)
                batch = torch.zeros(shape, device=device, dtype=torch.long if len(shape) == 2 else None)
                run = recorded(build, batch, device, role, crossings, kind)
            phases = Counter(site.phase for site, *_ in run.observer._records)
            answer[f"{build.__name__} {role}"] = {
                "raised": None if run.raised is None else [run.raised.type, run.raised.message],
                "backward": run.backward_ran,
                "counted": dict(phases),
                "dtypes": sorted({row.dtype for row in run.observer.tally._rows}),
                "crossings": dict(crossings.found),
            }
    return answer
