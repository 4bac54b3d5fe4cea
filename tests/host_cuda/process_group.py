"""A process group in Python, over a store: gloo crashes on CUDA tensors that lie in host memory."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future


class StoreGroup(dist.ProcessGroup):
    """What DistributedDataParallel asks of a process group; each exchange goes through the store."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.store, self.of, self.ranks, self.exchanges = store, rank, size, 0

    def exchange(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's values, in the order of the ranks, on the host."""
        self.exchanges += 1
        bytes_ = io.BytesIO()
        torch.save(torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()), bytes_)
        self.store.set(f"{self.exchanges}.{self.of}", bytes_.getvalue())
        names = (f"{self.exchanges}.{rank}" for rank in range(self.ranks))
        return [torch.load(io.BytesIO(self.store.get(name))) for name in names]

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Any:
        for tensor in tensors:
            tensor.copy_(torch.stack(self.exchange(tensor)).sum(0).to(tensor.dtype))
        return _done(tensors)

    def broadcast(self, tensors: list[Tensor], options: Any) -> Any:
        for tensor in tensors:
            tensor.copy_(self.exchange(tensor)[options.rootRank])
        return _done(tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None) -> Any:
        for into, tensor in zip(outputs, inputs, strict=True):
            for output, value in zip(into, self.exchange(tensor), strict=True):
                output.copy_(value)
        return _done(outputs)

    def getBackendName(self) -> str:
        return "store"


def _done(value: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(value)
    return _create_work_from_future(future)


def join(file: str, rank: int, size: int) -> None:
    """This process is that rank of a group which meets in this file."""

    def make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> StoreGroup:
        return StoreGroup(store, rank, size)

    dist.Backend.register_backend("store", make, devices=["cpu", "cuda"])
    dist.init_process_group("store", store=dist.FileStore(file, size), rank=rank, world_size=size)
