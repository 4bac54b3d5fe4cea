"""Each framework's loss-scale rule, step by step by hand, and torch's against torch's own GradScaler."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampdoctor.facts.scaler_policies import POLICIES, ScalerPolicy, after_step, replay, started, static

TORCH, KERAS, APEX = POLICIES["torch"], POLICIES["keras"], POLICIES["apex"]
DEEPSPEED, MEGATRON = POLICIES["deepspeed"], POLICIES["megatron"]


def run(policy: ScalerPolicy, overflows: str) -> list[float]:
    """The scale after each step of a string like ``x..x``, x an overflow."""
    state, scales = started(policy), []
    for step in overflows:
        state = after_step(policy, state, step == "x")
        scales.append(state.scale)
    return scales


def test_each_starts_at_its_projects_default() -> None:
    assert {name: p.init_scale for name, p in POLICIES.items()} == {
        "torch": 65536.0,
        "keras": 32768.0,
        "deepspeed": 65536.0,
        "apex": 65536.0,
        "megatron": 4294967296.0,
    }


def test_torch_halves_on_every_overflow_and_has_no_bottom() -> None:
    policy = replace(TORCH, init_scale=2.0)
    assert run(policy, "x.xxx") == [1.0, 1.0, 0.5, 0.25, 0.125]


def test_growth_takes_an_interval_without_overflow() -> None:
    policy = replace(TORCH, init_scale=8.0, growth_interval=3)
    assert run(policy, "..x..." + "...") == [8.0, 8.0, 4.0, 4.0, 4.0, 8.0, 8.0, 8.0, 16.0]


def test_torch_does_not_grow_into_infinity() -> None:
    policy = replace(TORCH, init_scale=2.0**127, growth_interval=1)
    assert run(policy, ".") == [2.0**127]
    assert run(replace(policy, init_scale=1.5 * 2.0**127), ".") == [1.5 * 2.0**127]


def test_a_scale_in_fp32_ends_at_its_smallest_number() -> None:
    assert run(replace(TORCH, init_scale=2.0**-148), "xx") == [2.0**-149, 0.0]
    assert run(replace(APEX, init_scale=2.0**-148), "xx") == [2.0**-149, 2.0**-150]


def test_apex_stops_growing_at_its_maximum() -> None:
    policy = replace(APEX, init_scale=2.0**23, growth_interval=1)
    assert run(policy, "...") == [2.0**24, 2.0**24, 2.0**24]


def test_hysteresis_forgives_the_first_overflow_until_the_scale_grows_again() -> None:
    policy = replace(MEGATRON, init_scale=16.0, growth_interval=2)
    #                                   forgiven, halved, halved, grows: forgives again
    assert run(policy, "x.x.x..x.x") == [16.0, 16.0, 8.0, 8.0, 4.0, 4.0, 8.0, 8.0, 8.0, 4.0]


def test_megatron_goes_on_at_its_minimum_and_deepspeed_gives_up() -> None:
    at_bottom = {"init_scale": 2.0, "hysteresis": 1}
    never = [None] * 4
    megatron = replay(replace(MEGATRON, **at_bottom), never)
    deepspeed = replay(replace(DEEPSPEED, **at_bottom), never)
    assert (megatron.scales, megatron.stopped) == ((2.0, 1.0, 1.0, 1.0), False)
    assert (deepspeed.scales, deepspeed.stopped) == ((2.0, 1.0), True)
    assert (deepspeed.skipped, deepspeed.final_scale) == ((0, 1), 1.0)


def test_a_static_scale_skips_and_stays() -> None:
    found = replay(static(1024.0), [10, 9, None, 12])
    assert (found.scales, found.skipped, found.final_scale) == ((1024.0,) * 4, (1, 2), 1024.0)
    assert found.policy.name == "static:1024"


def test_a_replay_finds_the_level_of_its_thresholds() -> None:
    """Nothing above 2^12 is finite: torch needs four skips, keras three, megatron one more than twenty."""
    ceilings = [12] * 30
    assert replay(TORCH, ceilings).skipped == (0, 1, 2, 3)
    assert replay(KERAS, ceilings).skipped == (0, 1, 2)
    assert replay(DEEPSPEED, ceilings).skipped == (0, 1, 2, 3, 4)
    assert replay(MEGATRON, ceilings).skipped == tuple(range(21))
    assert {replay(p, ceilings).final_scale for p in POLICIES.values()} == {4096.0}


@settings(deadline=None)
@given(
    found_inf=st.lists(st.booleans(), max_size=20),
    interval=st.integers(1, 4),
    exponent=st.integers(-140, 126),
)
def test_torchs_rule_is_that_of_its_grad_scaler(found_inf: list[bool], interval: int, exponent: int) -> None:
    policy = replace(TORCH, init_scale=2.0**exponent, growth_interval=interval)
    scaler = torch.amp.GradScaler("cpu", init_scale=policy.init_scale, growth_interval=interval)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler.scale(torch.zeros(()))
    state = started(policy)
    for bad in found_inf:
        weight.grad = torch.tensor([float("inf") if bad else 1.0])
        scaler.step(optimizer)
        scaler.update()
        state = after_step(policy, state, bad)
        assert state.scale == scaler.get_scale()


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda p: p.name)
def test_a_healthy_run_is_never_skipped(policy: ScalerPolicy) -> None:
    assert replay(policy, [32] * 5).skipped == ()
