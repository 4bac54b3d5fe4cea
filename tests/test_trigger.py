"""When a step is recorded, on turns written by hand."""

from __future__ import annotations

import math

from ampdoctor.facts.words import RecordedFor
from ampdoctor.live.trigger import Trigger, Turn

NAN, INF = math.nan, math.inf


def reasons(trigger: Trigger, *turns: Turn) -> list[RecordedFor | None]:
    return [trigger.why(turn) for turn in turns]


def taken(loss: float = 1.0, norm: float = 1.0, key: int = 1) -> Turn:
    return Turn(key, False, loss, norm, None)


def skipped(scale: float, loss: float = 1.0) -> Turn:
    return Turn(1, True, loss, INF, scale)


def test_the_first_of_a_row_of_bad_steps() -> None:
    found = reasons(Trigger(), taken(), taken(NAN, NAN), taken(NAN, NAN), taken(), taken(1.0, INF))
    assert found == [None, "loss", None, None, "gradients"]


def test_a_scaler_settles_from_its_start_without_an_alarm() -> None:
    down = [skipped(2.0**k) for k in range(16, 0, -1)]
    assert reasons(Trigger(), *down, taken(), skipped(4.0), taken()) == [None] * 19


def test_below_one_nothing_settles() -> None:
    found = reasons(Trigger(), skipped(2.0), skipped(1.0), skipped(0.5), skipped(0.25))
    assert found == [None, None, "skips", None]


def test_many_skips_in_a_row_once_a_step_was_taken() -> None:
    found = reasons(Trigger(skips_in_a_row=3), taken(), *[skipped(1024.0)] * 4, taken(), skipped(512.0))
    assert found == [None, None, None, "skips", None, None, None]


def test_a_skipped_step_with_a_bad_loss_is_not_the_scale_s() -> None:
    assert reasons(Trigger(), skipped(65536.0, NAN), skipped(32768.0), taken()) == ["loss", None, None]


def test_a_bad_step_between_skips_is_recorded_once() -> None:
    assert reasons(Trigger(), taken(NAN), skipped(8.0), taken(NAN)) == ["loss", None, None]


def test_a_loss_far_above_the_median_of_twenty() -> None:
    trigger = Trigger(loss_factor=10)
    assert trigger.median_loss(1) is None
    assert reasons(trigger, *[taken(2.0)] * 19, taken(50.0)) == [None] * 20  # nineteen say nothing
    assert trigger.median_loss(1) == 2.0
    assert reasons(trigger, taken(20.0), taken(20.5)) == [None, "spike"]
    assert reasons(trigger, taken(2.0, key=2), taken(500.0, key=2)) == [None, None]  # another optimizer's


def test_losses_below_zero_have_no_spike() -> None:
    assert reasons(Trigger(), *[taken(-2.0)] * 20, taken(5.0)) == [None] * 21
