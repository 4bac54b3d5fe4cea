"""Modules that the candidate runs in FP32: what they compute, what goes in and out, what stays behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampdoctor.errors import ConfigError
from ampdoctor.facts.trace import Trace
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import candidate
from ampdoctor.probe.plan import Plan, WideModule
from ampdoctor.probe.watch.observer import Observer
from probe_helpers import Calls, pass_of, records, traced, workload

CPU = torch.device("cpu")


def linear(weight: float) -> nn.Linear:
    """One input, one output, no bias."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def two(second: float = 512.0) -> nn.Sequential:
    """256 times ``second``: 131,072 by default, past FP16's 65,504."""
    return nn.Sequential(linear(256.0), linear(second))


def loss_and_dtypes(trace: Trace) -> tuple[float | None, list[str]]:
    """The candidate's loss, and the dtypes of its forward products."""
    seen = pass_of(trace)
    return seen.loss, [r.stats.dtype for r in records(seen, "mm", "forward")]


def run(model: nn.Module, *wide: WideModule, **plan: Any) -> Trace:
    return traced(model, torch.ones(1, 1), wide_modules=wide, **plan)


def test_under_autocast_only_the_chosen_module_is_wide() -> None:
    assert loss_and_dtypes(run(two())) == (float("inf"), ["float16", "float16"])
    assert loss_and_dtypes(run(two(), WideModule("1"))) == (131072.0, ["float16", "float32"])


def test_what_comes_back_in_low_precision_overflows_there() -> None:
    cast_back = run(two(), WideModule("1", casts_back=True))
    assert loss_and_dtypes(cast_back) == (float("inf"), ["float16", "float32"])
    assert loss_and_dtypes(run(two(2.0), WideModule("1", casts_back=True))) == (512.0, ["float16", "float32"])


def test_all_modules_inside_a_chosen_one_are_wide() -> None:
    model = nn.Sequential(two(), linear(1.0))
    loss, dtypes = loss_and_dtypes(run(model, WideModule("0")))
    assert dtypes == ["float32", "float32", "float16"]
    assert loss == float("inf")  # the last one cannot take 131,072 in


def test_in_half_the_chosen_modules_weights_are_as_built() -> None:
    third = 1 / 3  # 0.3333740234375 in FP16
    model = nn.Sequential(linear(1.0), linear(third))
    loss, dtypes = loss_and_dtypes(run(model, WideModule("1"), mode="half"))
    assert dtypes == ["float16", "float32"]
    assert loss == float(torch.tensor(third))
    loss, dtypes = loss_and_dtypes(run(model, mode="half"))
    assert (loss, dtypes) == (0.333251953125, ["float16", "float16"])


def test_in_half_a_module_after_it_takes_what_was_cast_back() -> None:
    model = nn.Sequential(linear(1.0), linear(3.0), linear(1.0))
    loss, dtypes = loss_and_dtypes(run(model, WideModule("1", casts_back=True), mode="half"))
    assert (loss, dtypes) == (3.0, ["float16", "float32", "float16"])
    refused = pass_of(run(model, WideModule("1"), mode="half")).raised
    assert refused is not None and refused.module == "2"


def test_weights_that_the_user_built_in_half_are_widened() -> None:
    assert loss_and_dtypes(run(two().half(), WideModule("1"), mode="none")) == (None, [])  # FP32 meets FP16
    model = Calls(lambda m, x: m.b(m.a(x.half())), a=linear(256.0).half(), b=linear(512.0).half())
    assert loss_and_dtypes(run(model, WideModule("b"), mode="none"))[1] == ["float16", "float32"]


def test_the_casts_are_the_modules_own() -> None:
    seen = pass_of(run(two(), WideModule("1")))
    widened = [r for r in records(seen, "_to_copy", "forward") if r.stats.dtype == "float32"]
    assert [r.site.module for r in widened if r.site.module] == ["1"]


def test_a_recomputed_module_is_wide_again() -> None:
    def forward(m: Calls, x: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(m.inner, x, use_reentrant=False)

    model = Calls(forward, inner=two())
    seen = pass_of(run(model, WideModule("inner.0")))
    assert seen.raised is None and seen.backward_ran
    again = [r.stats.dtype for r in records(seen, "mm", "backward") if r.recomputed]
    assert again == ["float32"]  # checkpoint stops once it has what backward needs: the second one's input


def test_inputs_by_name_and_in_containers_are_widened() -> None:
    class Inner(nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor], *, more: dict[str, Tensor]) -> Tensor:
            assert pair[0].dtype == pair[1].dtype == more["x"].dtype == torch.float32
            assert more["ids"].dtype == torch.int64
            return pair[0] + pair[1] + more["x"]

    def forward(m: Calls, x: Tensor) -> Any:
        low = x.half()
        return m.inner((low, low), more={"x": low, "ids": torch.ones(1, dtype=torch.int64)})

    seen = pass_of(run(Calls(forward, inner=Inner()), WideModule("inner")))
    assert seen.raised is None and seen.loss == 3.0


def test_the_reference_stays_what_it_is() -> None:
    plain, wide = run(two()), run(two(), WideModule("1"))
    assert pass_of(plain, "reference").sites == pass_of(wide, "reference").sites


def test_a_path_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="the model has no module 'head'"):
        run(two(), WideModule("head"))


def test_nothing_stays_behind() -> None:
    model, call = two(), nn.Module.__call__
    before = [(id(p), p.dtype, p.data_ptr()) for p in model.parameters()]
    plan = Plan(mode="half", wide_modules=(WideModule("1", True),))
    done = run_pass(workload(model), torch.ones(1, 1), candidate(plan, CPU, 1.0), 0, Observer)
    assert done.raised is None
    assert [(id(p), p.dtype, p.data_ptr()) for p in model.parameters()] == before
    assert nn.Module.__call__ is call
