"""One rank of a DistributedDataParallel run, on a device that is host memory: what a scan of it says there.

rank.py RANK RANKS FILE DEVICE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import host_cuda  # noqa: E402  (before torch)

host_cuda.install(1)

import process_group  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import ampdoctor  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        h = h * h
        return self.down(h)


WRAPPED: dict[str, dict[str, bool]] = {
    "plain": {},
    "static graph": {"static_graph": True},
    "gradients in buckets": {"gradient_as_bucket_view": True},
}


def main() -> None:
    """Prints, of each way to wrap a model, what this rank's scan says between training steps, and its weights
    and gradients after them."""
    rank, ranks, file, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    process_group.join(file, rank, ranks)
    print("ANSWER", json.dumps({name: trained(rank, device, how) for name, how in WRAPPED.items()}))


def trained(rank: int, device: str, how: dict[str, bool]) -> dict[str, Any]:
    """Three steps, a scan, three steps: what the scan says, and what is there at the end."""
    torch.manual_seed(rank)  # other weights on each rank, until the first rank's are broadcast
    model = nn.parallel.DistributedDataParallel(Net().to(device), **how)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    batch = torch.ones(2, 4, device=device)
    if rank == 1:
        batch[1] = 2000.0  # its square leaves FP16's range, on this rank alone

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().mean()

    def step() -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()

    for _ in range(3):
        step()
    before = [p.detach().clone() for p in model.parameters()]
    report = ampdoctor.scan(model, batch, loss, device=device, loss_scale=1.0)
    assert all(torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))
    for _ in range(3):
        step()
    fault = report.first_fault
    source = None if fault is None else fault.source
    return {
        "verdict": report.verdict,
        "fault": fault and [fault.module, fault.op, source and source.text, list(fault.samples or ())],
        "scanned on": report.environment.device,
        "parameters on": sorted({p.device.type for p in model.parameters()}),
        "weights": [p.flatten().tolist() for p in model.parameters()],
        "gradients": [p.grad.flatten().tolist() for p in model.parameters() if p.grad is not None],
    }


main()
