"""What each rule says: message, evidence and remedy for the facts it is about."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import ampdoctor.diagnose.rules
from ampdoctor.diagnose.rules import RULES
from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import ZeroOrigin
from rule_findings import BACKWARD, SICK, findings, of_birth
from trace_builder import (
    birth,
    candidate,
    environment,
    operand,
    parameter,
    reference,
    source,
    step,
    trace,
)

# ---------------------------------------------------------------- the list and its pages


def test_every_rule_file_is_listed_once_in_order() -> None:
    folder = Path(ampdoctor.diagnose.rules.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    listed = [rule.check.__module__.rpartition(".")[2] for rule in RULES]
    assert sorted(listed) == sorted(files)
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_page_says_what_how_and_what_to_do_in_80_columns(rule: Any) -> None:
    lines = rule.page.splitlines()
    assert lines[0].startswith(f"{rule.code}: ")
    assert {"What it means", "How it is found", "What to do"} <= set(lines)
    assert max(len(line) for line in lines) <= 80
    assert rule.severity in ("error", "warning", "info")


# ---------------------------------------------------------------- births


def test_101_gives_the_exact_value_and_keeps_the_layer_in_fp32() -> None:
    finding = of_birth("AMP101", samples=(0, 1), path=())
    assert finding.message == "The exact value is 66,246; FP16 ends at 65,504."
    assert finding.remedy == (
        'Keep blocks.1.ff.wo in FP32 (torch.autocast("cuda", enabled=False) around it, .float() on its '
        "inputs); "
        "or train in BF16."
    )
    assert (finding.severity, finding.count) == ("error", 1)
    assert finding.evidence["largest"] == 65504.0
    assert finding.evidence["samples"] == [0, 1]


def test_101_names_the_one_sample_that_does_it() -> None:
    assert of_birth("AMP101", samples=(1,)).message.endswith("Only sample 1 of 2 does this.")


def test_101_says_that_the_cast_is_autocasts() -> None:
    remedy = of_birth("AMP101", op="aten::_to_copy", implicit_cast=True).remedy
    assert remedy.startswith("Autocast puts this cast in, the line converts nothing: keep")


def test_101_in_half_mode_speaks_of_the_line() -> None:
    t = trace(
        births=(birth("norm", "aten::pow"),),
        passes=(reference(), candidate(**SICK)),
        environment=environment(mode="half"),
    )
    (finding,) = findings(t, "AMP101")
    assert finding.remedy.startswith("Compute this line of norm in FP32 (x.float(), then back to half)")


def test_101_of_a_product_of_activations_scales_before_it() -> None:
    made = step("attn", "aten::mm")
    remedy = of_birth(
        "AMP101", op="aten::bmm", operands=(operand(made_by=made), operand(made_by=made))
    ).remedy
    assert "scale one factor down before the product" in remedy


def test_101_does_not_recommend_bf16_for_what_it_cannot_hold_either() -> None:
    assert "BF16" not in of_birth("AMP101", exact_value=1e39).remedy


def test_the_same_place_is_one_finding_however_often() -> None:
    births = tuple(birth(id=i, order=i, batch=i, samples=(i,)) for i in range(3))
    passes = tuple(p for i in range(3) for p in (reference(batch=i), candidate(batch=i, **SICK)))
    (finding,) = findings(trace(births=births, passes=passes), "AMP101")
    assert finding.count == 3
    assert finding.evidence["batches"] == [0, 1, 2]
    assert finding.evidence["samples"] == [0, 1, 2]
    assert "It happens 3 times here." in finding.message


def test_of_births_in_one_place_the_furthest_says_how_bad_it_is() -> None:
    calls = (
        birth(id=0, order=0, samples=(0, 1), exact_value=70_000.0),
        birth(id=1, order=1, samples=(0, 1), exact_value=-4 * 65504.0),
    )
    passes = (reference(), candidate(**SICK))
    (finding,) = findings(trace(births=calls, passes=passes), "AMP101")
    assert finding.message.startswith(
        "The exact value is 70,000; FP16 ends at 65,504. It happens 2 times here, at worst with 262,016."
    )
    assert finding.amounts.by == "2.0 bits past 65,504"


def test_other_lines_of_the_same_module_are_other_findings() -> None:
    births = (birth(id=0), birth(id=1, order=11, source=source(34)))
    t = trace(births=births, passes=(reference(), candidate(**SICK)))
    assert [f.source and f.source.line for f in findings(t, "AMP101")] == [33, 34]


def test_102_has_advice_for_the_op() -> None:
    t = trace(
        births=(birth("attn", "aten::_softmax", value="nan", rerun="nan", reference="same"),),
        passes=(reference(**SICK), candidate(**SICK)),
    )
    (finding,) = findings(t, "AMP102")
    assert finding.message.startswith("_softmax gives NaN on these inputs; FP32 has it in the same place.")
    assert finding.remedy.startswith("Leave at least one position per row unmasked")


FLUSH: dict[str, Any] = {"rerun": "inf", "exact_value": math.inf, "samples": (0, 1), "reference_value": -8.5}


def root(op: str, constant: float | None = None, **changes: Any) -> ZeroOrigin:
    values: dict[str, Any] = {
        "site": Site("forward", "head", op, 0),
        "source": source(12),
        "zeros": 2,
        "reference_absmax": 1.0,
        "made_by": None,
        "constant": constant,
    }
    return ZeroOrigin(**(values | changes))


def test_104_follows_the_zero_to_its_line() -> None:
    finding = of_birth("AMP104", op="aten::log", zero_origin=root("aten::rsub"), **FLUSH)
    assert finding.message == (
        "log meets a value that FP16 rounded away; FP32 has -8.5. It became zero at model.py:12 (head, rsub)."
    )


def test_104_of_a_difference_from_one_warns_of_bf16() -> None:
    remedy = of_birth("AMP104", op="aten::log", zero_origin=root("aten::rsub"), **FLUSH).remedy
    assert remedy == (
        "Compute model.py:12 and what goes into it in FP32, or use logsigmoid / "
        "binary_cross_entropy_with_logits on the logits. "
        "BF16 is no cure: it rounds next to 1 more coarsely."
    )


def test_104_of_something_small_lets_bf16_hold_it() -> None:
    remedy = of_birth("AMP104", op="aten::div", zero_origin=root("aten::var"), **FLUSH).remedy
    assert remedy.endswith("BF16 would hold it too.")


def test_104_names_the_op_that_made_what_a_cast_zeroed() -> None:
    cast = root("aten::_to_copy", made_by=step("attn", "aten::exp", "finite", line=15))
    message = of_birth("AMP104", op="aten::div", zero_origin=cast, **FLUSH).message
    assert "It became zero at model.py:12 (head, _to_copy), made by exp at model.py:15." in message


def test_zeros_beside_a_log1p_explain_nothing() -> None:
    """log1p(-p) fails where p became 1; that some other p became 0 is not its root."""
    finding = of_birth("AMP104", op="aten::log1p", zero_origin=root("aten::sigmoid"), **FLUSH)
    assert "It became zero" not in finding.message
    assert finding.remedy.endswith("BF16 is no cure: it rounds next to 1 more coarsely.")


def test_104_and_106_name_an_eps_that_vanished() -> None:
    births = (birth("head", "aten::div", zero_origin=root("aten::add", 1e-8), **FLUSH),)
    t = trace(births=births, passes=(reference(), candidate(**SICK)))
    (result,), (constant,) = findings(t, "AMP104"), findings(t, "AMP106")
    assert (result.severity, constant.severity) == ("info", "error")  # one fault, at the line of its cause
    assert constant.remedy.startswith("The eps of model.py:12 is 0 in FP16: add it in FP32")
    assert constant.message == (
        "The eps 1.0e-8 is 0 in FP16, which keeps nothing at or below 3.0e-8: div gives inf."
    )
    assert (constant.module, constant.op, constant.evidence["constant"]) == ("head", "aten::add", 1e-8)


def test_an_eps_that_fp16_holds_did_not_vanish() -> None:
    births = (birth("head", "aten::div", zero_origin=root("aten::add", 1e-5), **FLUSH),)
    assert findings(trace(births=births, passes=(reference(), candidate(**SICK))), "AMP106") == []


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {
                "op": "aten::_to_copy",
                "shape": (),
                "index": (),
                "exact_value": -1e16,
                "operands": (operand(),),
            },
            "The constant -1.0e16 does not exist in FP16 and becomes inf.",
        ),
        (
            {"op": "aten::add", "exact_value": -65540.0, "operands": (operand(), operand(absmax=65504.0))},
            "A mask of FP16's lowest value has no room below it: the sum is -65,540 and becomes inf."
            " Only sample 0 of 2 does this.",
        ),
    ],
)
def test_106_of_masks(facts: dict[str, Any], message: str) -> None:
    assert of_birth("AMP106", **facts).message == message


def test_a_sum_that_overflows_upwards_is_no_mask() -> None:
    saturated = {"op": "aten::add", "exact_value": 68108.0, "operands": (operand(absmax=65504.0), operand())}
    assert of_birth("AMP101", **saturated).module == "blocks.1.ff.wo"


def test_a_lone_activation_that_is_cast_is_no_constant() -> None:
    """exp(logit_scale) has one element too, but an op made it."""
    made = operand(shape=(), made_by=step("", "aten::exp"))
    assert of_birth("AMP101", op="aten::_to_copy", shape=(), index=(), operands=(made,)).code == "AMP101"


def test_201_recommends_a_lower_scale() -> None:
    finding = of_birth("AMP201", **BACKWARD)
    assert finding.message == (
        "The backward of addmm overflows at scale 65,536. The exact value is 66,246; FP16 ends at 65,504."
    )
    assert finding.remedy.startswith("Start with a lower scale")


def test_201_of_a_half_loss_wants_the_loss_in_fp32() -> None:
    half = candidate(loss_dtype="float16", parameters=(parameter("w", inf=1),))
    (finding,) = findings(trace(births=(birth(**BACKWARD),), passes=(reference(), half)), "AMP201")
    assert finding.remedy.startswith("Compute the loss in FP32")


def test_201_is_silent_about_a_place_that_overflows_at_scale_one_as_well() -> None:
    births = (birth(id=0, **BACKWARD), birth(id=1, loss_scale=1.0, **BACKWARD))
    t = trace(births=births, passes=(reference(), candidate(**SICK)))
    assert findings(t, "AMP201") == []
    assert len(findings(t, "AMP204")) == 1


def test_201_beside_another_fault_is_a_warning() -> None:
    births = (birth("a", id=0), birth("b", id=1, **BACKWARD))
    (finding,) = findings(trace(births=births, passes=(reference(), candidate(**SICK))), "AMP201")
    assert finding.severity == "warning"


def test_204_of_a_division_wants_a_larger_eps() -> None:
    remedy = of_birth("AMP204", **(BACKWARD | {"loss_scale": 1.0, "forward_op": "aten::div"})).remedy
    assert "raise the eps in the divisor (1e-3 in FP16)" in remedy


def test_202_of_a_root_wants_the_eps_inside() -> None:
    facts = BACKWARD | {"forward_op": "aten::sqrt", "value": "inf", "rerun": "inf", "reference": "same"}
    t = trace(births=(birth(**facts),), passes=(reference(**SICK), candidate(**SICK)))
    (finding,) = findings(t, "AMP202")
    assert finding.message == "The derivative of sqrt is inf here, in FP32 too."
    assert (
        finding.remedy
        == "Put an eps inside the root: sqrt(x + eps), (x + eps) ** p. Outside it does not help."
    )
