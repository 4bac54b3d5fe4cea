"""What comes out of a pass against the reference: errors, losses of gradient, and what does not count."""

from __future__ import annotations

import math

import pytest

from ampdoctor.diagnose.cause import cause_of
from ampdoctor.diagnose.outcome import (
    gradient_damage,
    gradient_error,
    is_healthy,
    is_materially_wrong,
    loss_error,
    share_lost,
)
from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import ZeroOrigin
from trace_builder import birth, candidate, environment, operand, parameter, raised, reference, trace

ZERO = ZeroOrigin(Site("forward", "", "aten::rsub", 0), None, 1, 1.0, None)


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"rerun": "finite", "reference": "finite"}, "range"),
        ({"rerun": "finite", "reference": "absent"}, "range"),
        ({"rerun": "inf", "reference": "finite"}, "flush"),
        ({"rerun": "nan", "reference": "finite"}, "flush"),
        ({"rerun": "inf", "reference": "absent"}, "genuine"),
        ({"rerun": "inf", "reference": "absent", "zero_origin": ZERO}, "flush"),
        ({"rerun": "inf", "reference": "same"}, "genuine"),
        # that FP32 has the event too decides, even where float64 would not
        ({"rerun": "finite", "reference": "same"}, "genuine"),
        # no float64 kernel: the FP32 value or the inputs decide
        ({"rerun": "not-run", "reference": "finite", "reference_value": 65520.0}, "range"),
        ({"rerun": "not-run", "reference": "finite", "reference_value": 3.0}, "range"),
        (
            {
                "rerun": "not-run",
                "reference": "finite",
                "reference_value": 3.0,
                "operands": (operand(zeros=1),),
            },
            "flush",
        ),
        ({"rerun": "not-run", "reference": "absent", "reference_value": None, "value": "nan"}, "genuine"),
    ],
)
def test_the_cause_follows_from_the_rerun_and_the_reference(facts: dict[str, object], cause: str) -> None:
    assert cause_of(birth(**facts), reference_fails=False) == cause


def test_a_pass_is_healthy_with_a_finite_loss_and_finite_gradients() -> None:
    assert is_healthy(candidate())
    assert not is_healthy(candidate(loss=math.inf))
    assert not is_healthy(candidate(parameters=(parameter("w", inf=1),)))
    assert not is_healthy(candidate(raised=raised()))
    assert not is_healthy(candidate(loss=None))
    assert is_healthy(candidate(loss=None, parameters=()), forward_only=True)


def test_the_loss_error_is_relative_to_the_reference() -> None:
    assert loss_error(candidate(loss=3.0), reference(loss=4.0)) == 0.25
    assert loss_error(candidate(loss=math.nan), reference(loss=4.0)) is None
    assert loss_error(candidate(loss=1.0), reference(loss=0.0)) is None


def test_the_gradient_error_weighs_parameters_by_their_norm() -> None:
    """Errors of 0.5 * 3 and 1.0 * 4 in a gradient of norm 5: sqrt(1.5^2 + 4^2) / 5."""
    parts = (
        parameter("a", relative_error=0.5, reference_norm=3.0),
        parameter("b", relative_error=1.0, reference_norm=4.0),
        parameter("c", relative_error=None, reference_norm=0.0),
    )
    assert gradient_error(parts) == pytest.approx(math.sqrt(1.5**2 + 4**2) / 5)
    assert gradient_error(()) is None


def test_one_percent_of_loss_error_is_material() -> None:
    assert not is_materially_wrong(candidate(loss=2.015625), reference(loss=2.0))
    assert is_materially_wrong(candidate(loss=2.03125), reference(loss=2.0))


def test_a_gradient_that_the_format_holds_and_that_is_off_is_material() -> None:
    off = parameter("w", relative_error=0.3)
    assert is_materially_wrong(candidate(parameters=(off,)), reference())
    held = parameter("w", relative_error=0.3, reference_absmax=2.0**-14 / 65536)
    assert is_materially_wrong(candidate(parameters=(held,)), reference())
    too_small = parameter("w", relative_error=0.3, reference_absmax=2.0**-15 / 65536)
    assert not is_materially_wrong(candidate(parameters=(too_small,)), reference())


def test_lost_elements_count_against_those_nonzero_in_the_reference() -> None:
    """20 of 80 and 0 of 20: a quarter of one parameter, a fifth of all."""
    damaged = parameter("a", numel=100, reference_nonzero=80, lost=20, relative_error=0.3)
    whole = parameter("b", reference_nonzero=20)
    one_pass = candidate(parameters=(damaged, whole))
    assert share_lost(one_pass) == 0.2
    damage = gradient_damage(trace(passes=(one_pass,)), {})
    assert damage is not None
    assert [p.name for p in damage.damaged] == ["a"]


def test_noise_around_zero_is_no_gradient() -> None:
    """A bias in front of a BatchNorm: 1e-8 next to 0.5, all of it lost, nothing is."""
    noise = parameter("fc.bias", reference_absmax=1e-8, lost=100, relative_error=1.0)
    damage = gradient_damage(trace(passes=(candidate(parameters=(noise, parameter("fc.weight"))),)), {})
    assert damage is not None
    assert (damage.lost_fraction, damage.damaged) == (0.0, ())


def test_lost_elements_that_did_not_matter_are_no_damage() -> None:
    """A router's bias: 2 of 6 elements lost, but they were 1e-22, and the gradient agrees to 5e-4."""
    router = parameter("router.bias", numel=6, reference_nonzero=6, lost=2, relative_error=5e-4)
    damage = gradient_damage(trace(passes=(candidate(parameters=(router,)),)), {})
    assert damage is not None
    assert damage.damaged == ()


def test_an_error_that_a_better_scale_cures_is_damage_whatever_the_share() -> None:
    """An error of 0.3 that 0.14 can replace was underflow; where 0.16 stays, it is plain rounding."""
    off = parameter("w", lost=2, relative_error=0.3)
    for at_best, damaged in ((0.14, 1), (0.16, 0), (None, 0)):
        damage = gradient_damage(trace(passes=(candidate(parameters=(off,)),)), {0: {"w": at_best}})
        assert damage is not None
        assert len(damage.damaged) == damaged


def test_damage_is_of_the_configured_scale_and_the_worst_batch() -> None:
    lossy = parameter("w", lost=90, relative_error=0.9)
    passes = (
        candidate(batch=0, loss_scale=1.0, parameters=(lossy,)),
        candidate(batch=0),
        candidate(batch=1, parameters=(parameter("w", lost=30, relative_error=0.4),)),
    )
    damage = gradient_damage(trace(passes=passes, environment=environment(batches=2)), {})
    assert damage is not None
    assert (damage.batch, damage.lost_fraction) == (1, 0.3)


def test_nothing_to_compare_is_no_damage() -> None:
    unknown = parameter("w", lost=None, reference_nonzero=None, reference_absmax=None, relative_error=None)
    assert gradient_damage(trace(passes=(candidate(parameters=(unknown,)),)), {}) is None
    assert gradient_damage(trace(passes=()), {}) is None
