"""Where each recorded op belongs, that passes agree on it, and that recording waits for no device."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ampdoctor.facts.trace import Pass
from block_models import Block, blocks
from probe_helpers import Calls, pass_of, records, text, traced

# ---------------------------------------------------------------- sites


def keys(seen: Pass) -> list[str]:
    return [r.site.key for r in seen.sites if r.site.op != "aten::_to_copy"]


def test_both_passes_have_the_same_sites_in_the_same_order() -> None:
    trace = traced(blocks(2), torch.randn(2, 4))
    assert keys(pass_of(trace)) == keys(pass_of(trace, "reference"))
    assert len(set(keys(pass_of(trace)))) == len(keys(pass_of(trace)))


def test_an_op_belongs_to_the_innermost_module_whose_forward_makes_it() -> None:
    forward = records(pass_of(traced(blocks(1), torch.randn(2, 4)), "reference"), phase="forward")
    assert [(r.site.module, r.site.op, r.site.output) for r in forward] == [
        ("0.norm", "aten::native_layer_norm", 0),
        ("0.norm", "aten::native_layer_norm", 1),
        ("0.norm", "aten::native_layer_norm", 2),
        ("0.linear", "aten::addmm", 0),
        ("0", "aten::relu", 0),
        ("0", "aten::add", 0),
        ("", "aten::sum", 0),  # the loss, outside any module
    ]


def test_calls_of_an_op_are_numbered_within_its_module_and_phase() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return self.inner(x.exp()).exp() + self.inner(x).exp()

    trace = traced(Calls(forward, inner=Calls(lambda self, x: x.exp().exp())))
    found = records(pass_of(trace, "reference"), "exp")
    assert [(r.site.module, r.site.nth) for r in found] == [
        ("", 0), ("inner", 0), ("inner", 1), ("", 1), ("inner", 2), ("inner", 3), ("", 2),
    ]  # fmt: skip


def test_a_module_with_two_names_goes_by_the_first() -> None:
    linear = nn.Linear(4, 4)
    model = Calls(lambda self, x: self.second(self.first(x)), first=linear, second=linear)
    found = records(pass_of(traced(model), "reference"), "addmm")
    assert [(r.site.module, r.site.nth) for r in found] == [("first", 0), ("first", 1)]


def test_views_and_uninitialised_memory_are_not_recorded() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out.copy_(x.reshape(4, 2).t().reshape(-1).view(2, 4))
        return out[:, :2].unsqueeze(0)

    found = records(pass_of(traced(Calls(forward)), "reference"), phase="forward")
    assert [r.site.op for r in found] == ["aten::clone", "aten::copy_", "aten::sum"]


def test_an_op_with_a_list_of_outputs_has_a_site_for_each() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        a, b = torch._foreach_mul([x, x], 2.0)
        return a + b

    found = records(pass_of(traced(Calls(forward)), "reference"), "_foreach_mul")
    assert [(r.site.nth, r.site.output) for r in found] == [(0, 0), (0, 1)]


# ---------------------------------------------------------------- source lines


def test_the_source_is_the_users_innermost_line() -> None:
    found = records(pass_of(traced(blocks(1), torch.randn(2, 4)), "reference"), phase="forward")
    assert {r.site.op: text(r) for r in found} == {
        "aten::native_layer_norm": "h = self.linear(self.norm(x))",
        "aten::addmm": "h = self.linear(self.norm(x))",
        "aten::relu": "h = F.relu(h)",
        "aten::add": "return x + h",
        "aten::sum": "return model(batch).float().sum()",
    }


def test_a_backward_op_has_the_module_line_and_op_of_its_forward() -> None:
    found = records(pass_of(traced(blocks(1), torch.randn(2, 4)), "reference"), phase="backward")
    assert [(r.site.module, r.site.op, r.forward_op, text(r)) for r in found if r.forward_op] == [
        ("0", "aten::threshold_backward", "aten::relu", "h = F.relu(h)"),
        ("0.linear", "aten::mm", "aten::addmm", "h = self.linear(self.norm(x))"),
        ("0.linear", "aten::mm", "aten::addmm", "h = self.linear(self.norm(x))"),
        ("0.linear", "aten::sum", "aten::addmm", "h = self.linear(self.norm(x))"),
        *[("0.norm", "aten::native_layer_norm_backward", "aten::native_layer_norm",
           "h = self.linear(self.norm(x))")] * 2,
    ]  # fmt: skip


def test_who_called_the_scan_is_not_taken_for_the_model() -> None:
    scaling = records(pass_of(traced(blocks(1), torch.randn(2, 4), loss_scale=8.0)), "ones_like")
    assert [(r.site.phase, r.site.module, r.source) for r in scaling] == [("backward", "", None)]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2.0


def test_the_ops_of_a_function_with_a_backward_of_its_own() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return Double.apply(self.linear(x))

    found = records(pass_of(traced(Calls(forward, linear=nn.Linear(4, 4))), "reference"), "mul")
    inside = [r for r in found if r.site.phase == "forward" or r.forward_op == "aten::mul"]
    assert [(r.site.phase, text(r), r.recomputed) for r in inside[:2]] == [
        ("forward", "return x * 2.0", False),
        ("backward", "return x * 2.0", False),
    ]


def test_gradients_of_two_uses_are_added_where_the_second_arrives() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        h = self.a(x)
        u = self.b(h)
        v = self.c(h)
        return u + v

    model = Calls(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4))
    (added,) = records(pass_of(traced(model), "reference"), "add", "backward")
    assert (added.site.module, text(added), added.forward_op) == ("b", "u = self.b(h)", "aten::addmm")


def test_ops_of_a_gradient_taken_inside_forward_are_backward_ops() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        y = self.linear(x.requires_grad_()).sin()
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + slope

    found = records(pass_of(traced(Calls(forward, linear=nn.Linear(4, 4))), "reference"))
    ops = [(r.site.phase, r.site.module, r.forward_op, text(r)) for r in found]
    line = "y = self.linear(x.requires_grad_()).sin()"
    assert (
        ops.count(("backward", "", "aten::sin", line)) == 5
    )  # cos and mul twice, and the sum of both slopes
    assert ("backward", "linear", "aten::mm", line) in ops  # the gradient of a gradient
    assert not any(r.recomputed for r in found)


def gradients(seen: Pass) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """(parameter, op, dtype, shape) of each record that is a parameter's whole gradient."""
    return [(r.parameter, r.site.op, r.stats.dtype, r.stats.shape) for r in seen.sites if r.parameter]


def test_the_record_that_is_a_parameters_gradient_has_its_name() -> None:
    trace = traced(Calls(lambda self, x: self.a(self.b(x)), a=nn.Linear(4, 3), b=nn.LayerNorm(4)))
    assert gradients(pass_of(trace, "reference")) == [
        ("a.weight", "aten::mm", "float32", (3, 4)),
        ("a.bias", "aten::sum", "float32", (1, 3)),
        ("b.weight", "aten::native_layer_norm_backward", "float32", (4,)),
        ("b.bias", "aten::native_layer_norm_backward", "float32", (4,)),
    ]
    # Under autocast a weight's gradient is made in float16 and widened when it arrives.
    assert [dtype for _, _, dtype, _ in gradients(pass_of(trace))] == [
        "float16", "float16", "float32", "float32",
    ]  # fmt: skip


def test_the_gradient_of_a_weight_used_twice_is_the_sum() -> None:
    trace = traced(Calls(lambda self, x: self.a(self.a(x)), a=nn.Linear(4, 4)))
    for role in ("reference", "candidate"):
        assert [(name, op) for name, op, _, _ in gradients(pass_of(trace, role))] == [
            ("a.bias", "aten::add"),
            ("a.weight", "aten::add"),
        ]


# ---------------------------------------------------------------- activation checkpointing


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_module_has_its_path_and_line(reentrant: bool) -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return checkpoint(self.block, x.requires_grad_(), use_reentrant=reentrant)

    found = records(pass_of(traced(Calls(forward, block=Block()), torch.randn(2, 4)), "reference"))
    again = [(r.site.module, r.site.op, text(r), r.forward_op) for r in found if r.recomputed]
    linear = "h = self.linear(self.norm(x))"
    expected = [
        *[("block.norm", "aten::native_layer_norm", linear, "")] * 3,
        ("block.linear", "aten::addmm", linear, ""),
        ("block", "aten::relu", "h = F.relu(h)", ""),
        ("block", "aten::add", "return x + h", ""),
    ]
    # The kind without reentry stops as soon as it has what backward needs: the sum is not needed.
    assert again == (expected if reentrant else expected[:-1])
    products = [r for r in found if r.site.phase == "backward" and r.forward_op == "aten::addmm"]
    assert {(r.site.module, text(r)) for r in products} == {("block.linear", linear)}


def test_a_recomputed_function_belongs_to_the_module_that_calls_it() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        def part(y: Tensor) -> Tensor:
            y = self.linear(y)
            y = y.sin()
            return y.sin() * y

        return checkpoint(part, x.requires_grad_(), use_reentrant=True)

    inner = Calls(forward, linear=nn.Linear(4, 4))
    found = records(pass_of(traced(Calls(lambda self, x: self.inner(x), inner=inner)), "reference"))
    again = [(r.site.module, r.site.op, text(r)) for r in found if r.recomputed]
    assert again == [
        ("inner.linear", "aten::addmm", "y = self.linear(y)"),
        ("inner", "aten::sin", "y = y.sin()"),
        ("inner", "aten::sin", "return y.sin() * y"),
        ("inner", "aten::mul", "return y.sin() * y"),
    ]
    slopes = [r for r in found if r.site.phase == "backward" and r.forward_op == "aten::sin"]
    assert {(r.site.module, text(r)) for r in slopes} == {
        ("inner", "y = y.sin()"),
        ("inner", "return y.sin() * y"),
    }


# ---------------------------------------------------------------- casts


def test_autocasts_casts_are_told_from_the_users() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        h = self.linear(x)
        return h.float() * 2.0

    casts = records(pass_of(traced(Calls(forward, linear=nn.Linear(4, 4)))), "_to_copy", "forward")
    assert [(r.site.module, r.stats.dtype, r.implicit_cast) for r in casts] == [
        ("linear", "float16", True),
        ("linear", "float16", True),
        ("linear", "float16", True),
        ("", "float32", False),
    ]


def test_without_autocast_every_cast_is_the_users() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        wide = torch.float64
        return x.to(
            wide,
        )

    casts = records(pass_of(traced(Calls(forward), mode="none")), "_to_copy", "forward")
    assert [r.implicit_cast for r in casts] == [False, False]  # and the loss's, back to float32


def test_widening_one_slice_is_not_widening_the_other() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        pair = torch.ones(2, 3, dtype=torch.float16)
        pair[1].mul_(8.0)
        return x * (pair[0].float().sum() + pair[1].float().sum())

    casts = records(pass_of(traced(Calls(forward), mode="none")), "_to_copy", "forward")
    assert [r.stats.absmax for r in casts] == [1.0, 8.0]


# ---------------------------------------------------------------- unusual tensors, ops and threads


def test_the_zeros_of_forward_mode_differentiation_have_no_memory_to_count() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        value, slope = torch.func.jvp(self.linear, (x,), (torch.ones_like(x),))
        return value + slope

    found = records(pass_of(traced(Calls(forward, linear=nn.Linear(4, 4)))), phase="forward")
    assert "aten::_efficientzerotensor" not in {r.site.op for r in found}
    assert found[-1].site.op == "aten::sum"


def test_a_subclass_that_wraps_tensors_is_seen_through() -> None:
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")

    def forward(self: Calls, x: Tensor) -> Tensor:
        both = two_tensor.TwoTensor(x, x * 3.0)
        return (both * 2.0).b

    found = records(pass_of(traced(Calls(forward)), "reference"), "mul", "forward")
    assert [r.stats.absmax for r in found] == [3.0, 2.0, 6.0]  # of both of its tensors


def test_the_branch_that_cond_takes_is_seen_inside() -> None:
    if not hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        pytest.skip("this PyTorch keeps cond from every dispatch mode")

    def forward(self: Calls, x: Tensor) -> Tensor:
        (out,) = torch.cond(x.sum() > 0, lambda t: (t.sin(),), lambda t: (t.cos(),), (x,))
        return out

    trace = traced(Calls(forward), forward_only=True, loss=lambda m, x: m(x))
    assert [r.site.op for r in records(pass_of(trace), "sin")] == ["aten::sin"]
    assert records(pass_of(trace), "cos") == []
    assert trace.opaque_ops == ()


@torch.library.custom_op("ampdoctor_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


def test_the_inside_of_an_op_from_elsewhere_is_a_doubt() -> None:
    trace = traced(Calls(lambda self, x: twice(x)))
    assert trace.opaque_ops == ("ampdoctor_tests::twice",)
    (made,) = records(pass_of(trace), "ampdoctor_tests::twice")
    assert made.stats.absmax == 2.0


def test_a_profilers_marks_are_no_doubt() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        with torch.profiler.record_function("part"):
            return x * 2.0

    assert traced(Calls(forward)).opaque_ops == ()


def test_a_thread_of_the_models_own_does_not_disturb_the_places_of_other_ops() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait(self: Calls, x: Tensor) -> Tensor:
        entered.set()
        assert go_on.wait(10)
        return x

    def forward(self: Calls, x: Tensor) -> Tensor:
        entered.clear(), go_on.clear()
        thread = threading.Thread(target=lambda: self.slow(x))
        thread.start()
        assert entered.wait(10)
        out = x * 2.0  # while ``slow`` runs elsewhere
        go_on.set()
        thread.join()
        return out

    trace = traced(Calls(forward, slow=Calls(wait)))
    (product,) = records(pass_of(trace), "mul", "forward")
    assert product.site.module == ""
    assert {m.path: m.calls for m in trace.modules} == {"": 1, "slow": 1}
