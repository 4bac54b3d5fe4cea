"""In a process of its own, where CUDA is host memory: prints as JSON what scans say there and on the CPU."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import host_cuda  # noqa: E402  (before torch)

host_cuda.install(2)

import more_programs  # noqa: E402, F401
import torch  # noqa: E402
from programs import PROGRAMS  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._device import _device_constructors  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from ampdoctor.diagnose.engine import diagnose  # noqa: E402
from ampdoctor.facts.trace import Trace  # noqa: E402
from ampdoctor.load.workload import Workload  # noqa: E402
from ampdoctor.probe.plan import Plan  # noqa: E402
from ampdoctor.probe.scan import probe  # noqa: E402
from case_runner import case_config, run_config  # noqa: E402

DEVICES = ("cpu", "cuda")


class Root(nn.Module):
    """The root of a square at 0: its gradient is infinite, times the square's, 0: NaN at any scale."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt((x - x.detach()).square())


class Block(nn.Module):
    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), last

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(torch.tanh(self.a(x)))


class Blocks(nn.Module):
    """Three blocks and a head; ``how`` says what runs them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        sick = how != "gradient penalty"
        self.how = how
        self.blocks = nn.ModuleList(Block(Root() if sick and i == 2 else nn.Linear(4, 4)) for i in range(3))
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "gradient penalty":
            x = x.detach().requires_grad_()
            y = x
            for block in self.blocks:
                y = block(y)
            y = self.head(y)
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return y.float().mean() + gradient.float().square().sum()
        for block in self.blocks:
            x = (
                block(x)
                if self.how == "plain"
                else checkpoint(block, x, use_reentrant=self.how == "reentrant")
            )
        return self.head(x).float().mean()


def scanned(how: str, device: str) -> dict[str, Any]:
    """Verdict, first fault and the place of every tensor of the candidate's last pass."""
    workload = Workload(how, Blocks(how), (torch.randn(8, 4, requires_grad=True),), lambda m, x: m(x))
    trace = probe(workload, Plan(device=device, loss_scale=1.0))
    return {**said(trace), "sites": sites(trace)}


def said(trace: Trace) -> dict[str, Any]:
    report = diagnose(trace)
    fault = report.first_fault
    source = fault.source if fault is not None else None
    return {
        "verdict": report.verdict,
        "fault": None if fault is None else [fault.phase, fault.module, fault.op],
        "line": None if source is None else source.text,
        "device": trace.environment.device,
    }


def sites(trace: Trace) -> list[Any]:
    """Of each tensor of the first candidate pass: phase, module, op, which, and the line."""
    candidate = next(p for p in trace.passes if p.role == "candidate")
    return [
        [r.site.phase, r.site.module, r.site.op, r.site.nth, r.source.text if r.source else None]
        for r in candidate.sites
    ]


class MadeOnTheDevice(TorchFunctionMode):
    """Tensors made without a device being named lie on this one, as under ``torch.set_default_device``, which
    refuses the seeded draws of a batch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _device_constructors() and not kwargs.keys() & {"device", "generator"}:
            kwargs = {**kwargs, "device": "cuda"}
        return func(*args, **kwargs)


def case(slug: str, device: str) -> dict[str, Any]:
    """What is said of a case of tests/cases. On the device its code is what a user of CUDA would write:
    ``torch.autocast("cuda")``; a name with ``+device`` makes its own tensors there too."""
    slug, _, on_device = slug.partition("+")
    config = case_config(slug, "cuda")
    precision = config.precision.model_copy(update={"device": device})
    config = config.model_copy(update={"precision": precision})
    code = (config.directory / "case.py").read_text()
    made = MadeOnTheDevice() if on_device and device == "cuda" else nullcontext()
    with tempfile.TemporaryDirectory() as folder, made:
        (Path(folder) / "case.py").write_text(code.replace('"cpu"', f'"{device}"'))
        try:
            return said(run_config(config.located(Path(folder), slug))[0])
        except Exception as error:  # said in the parent's words: which case the bench cannot run
            return {"error": f"{type(error).__name__}: {error}"[:300]}


def program(name: str, device: str) -> dict[str, Any]:
    """What is said of a program, its findings and its births among it."""
    workload, plan = PROGRAMS[name](device)
    trace = probe(workload, Plan(device=device, **plan))
    births = [
        [b.site.phase, b.site.module, b.site.op, b.source.text if b.source else None, b.reaches_loss]
        for b in trace.births
        if b.site is not None
    ]
    findings = [[f.code, f.severity, f.module] for f in diagnose(trace).findings if f.code != "AMP901"]
    return {**said(trace), "births": births, "findings": findings}


if __name__ == "__main__":
    kind, *names = sys.argv[1:]
    if kind == "scenario":
        import memory  # noqa: F401
        import scenarios  # noqa: F401
        from asked import SCENARIOS

        print("ANSWER" + json.dumps({name: SCENARIOS[name]() for name in names}))
        sys.exit()
    run = {"case": case, "program": program, "scan": scanned}[kind]
    names = names or list(PROGRAMS)
    answers = {name: {device: run(name, device) for device in DEVICES} for name in names}
    print("ANSWER" + json.dumps(answers))
