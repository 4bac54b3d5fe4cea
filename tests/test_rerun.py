"""One op run once more in float64: what it draws from is left alone."""

from __future__ import annotations

import torch

from ampdoctor.load.seeds import states
from ampdoctor.probe.births.rerun import generators, rerun_in_float64

NORMAL = torch.ops.aten.normal_.default


def test_a_generator_of_the_users_is_drawn_from_again_and_left_as_it_was() -> None:
    own = torch.Generator().manual_seed(3)
    given, named = (torch.zeros(32, dtype=torch.float16), 0.0, 1e6), {"generator": own}
    drawn = states(generators(NORMAL, given, named))
    assert [g for g, _ in drawn] == [own, torch.default_generator]
    NORMAL(*given, **named)
    after, default = own.get_state(), torch.get_rng_state()
    exact = rerun_in_float64(NORMAL, (torch.zeros(32, dtype=torch.float16), 0.0, 1e6), named, 0, drawn)
    assert torch.equal(own.get_state(), after) and torch.equal(torch.get_rng_state(), default)
    expected = torch.zeros(32, dtype=torch.float64).normal_(
        0.0, 1e6, generator=torch.Generator().manual_seed(3)
    )
    assert exact is not None and torch.equal(exact, expected)


def test_an_op_that_draws_nothing_has_no_generator() -> None:
    assert generators(torch.ops.aten.add.Tensor, (torch.zeros(2), torch.zeros(2)), {}) == []
