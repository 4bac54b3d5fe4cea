"""One rank of a DistributedDataParallel run, on a device that is host memory: what a scan of it says there.

rank.py RANK RANKS FILE DEVICE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

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


def main() -> None:
    """Prints what this rank's weights, gradients and scan are."""
    rank, ranks, file, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    process_group.join(file, rank, ranks)
    torch.manual_seed(rank)  # other weights on each rank, until the first rank's are broadcast
    model = nn.parallel.DistributedDataParallel(Net().to(device))
    batch = torch.ones(2, 4, device=device)
    if rank == 1:
        batch[1] = 2000.0  # its square leaves FP16's range, on this rank alone

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().mean()

    loss(model, batch).backward()
    gradients = [p.grad.flatten().tolist() for p in model.parameters() if p.grad is not None]
    report = ampdoctor.scan(model, batch, loss, device=device, loss_scale=1.0)
    # No second step: DDP then reads timers of CUDA, which a CPU build does not have.
    fault = report.first_fault
    told = None if fault is None else [fault.module, fault.op, fault.source.text, list(fault.samples)]
    weights = [p.flatten().tolist() for p in model.parameters()]
    print("ANSWER", json.dumps([report.verdict, told, weights, gradients]))


main()
