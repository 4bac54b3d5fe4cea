"""A second scan in the same process is refused, wherever it is started, and the first is none the worse."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import ampdoctor
from ampdoctor.errors import ProbeError
from probe_helpers import traced


def linear_scan() -> object:
    return ampdoctor.scan(nn.Linear(2, 1), torch.ones(1, 2), lambda m, x: m(x).sum())


@pytest.mark.parametrize("start", [linear_scan, lambda: traced(nn.Linear(2, 1), torch.ones(1, 2))])
def test_a_scan_inside_a_scan_is_refused(start: Callable[[], object]) -> None:
    refusals: queue.SimpleQueue[str] = queue.SimpleQueue()  # a list would be put back

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with pytest.raises(ProbeError, match="started inside it") as caught:
            start()
        refusals.put(caught.value.message)
        raise KeyboardInterrupt

    try:
        trace = traced(nn.Linear(2, 1), torch.ones(1, 2), loss=loss)
        assert trace.interrupted
    finally:
        assert linear_scan() is not None
    assert refusals.qsize() == 1


def test_a_scan_on_another_thread_is_refused_and_spoils_nothing() -> None:
    refused: queue.SimpleQueue[str] = queue.SimpleQueue()  # a list would be put back

    def other() -> None:
        try:
            linear_scan()
        except ProbeError as error:
            refused.put(error.message)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return model(x).sum()

    model = nn.Linear(2, 1)
    report = ampdoctor.scan(model, torch.full((1, 2), 1e6), loss)
    alone = ampdoctor.scan(model, torch.full((1, 2), 1e6), lambda m, x: m(x).sum())
    assert report.verdict == alone.verdict == "forward-overflow"
    assert refused.get_nowait() == "another thread of this process is running a scan"
