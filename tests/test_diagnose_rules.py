"""What each rule says: message, evidence and remedy for the facts it is about."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import ampdoctor.diagnose.rules
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rules import RULES
from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import Trace, ZeroOrigin
from trace_builder import (
    bad_tensor,
    birth,
    candidate,
    environment,
    module,
    operand,
    parameter,
    raised,
    record,
    reference,
    source,
    step,
    trace,
)

SICK = {"loss": math.nan, "parameters": (parameter("w", nan=100, absmax=None),)}


def findings(t: Trace, code: str, policy: Policy | None = None) -> list[Finding]:
    return [f for f in diagnose(t, policy or Policy()).findings if f.code == code]


def of_birth(code: str, **facts: Any) -> Finding:
    """The one finding of that code about one fault in an otherwise healthy reference."""
    passes = (reference(), candidate(**SICK))
    (finding,) = findings(trace(births=(birth(**facts),), passes=passes), code)
    return finding


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


BACKWARD: dict[str, Any] = {
    "phase": "backward",
    "forward_op": "aten::addmm",
    "reaches_loss": False,
    "samples": None,
}


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


# ---------------------------------------------------------------- counts


def test_103_speaks_of_each_module_once_and_of_its_loudest_tensor() -> None:
    sites = (
        record("fc", "aten::mm", 0, 40000.0),
        record("fc", "aten::add", 1, 2.0**15.5),
        record("ok", "aten::mm", 2, 32752.0),
    )
    t = trace(passes=(reference(), candidate(sites=sites)))
    (finding,) = findings(t, "AMP103")
    assert (finding.severity, finding.module, finding.op) == ("warning", "fc", "aten::add")
    assert finding.message == "The largest value is 46,341: 0.5 bits below the end of FP16, 65,504."


def test_103_keeps_to_the_limit_of_the_module() -> None:
    t = trace(passes=(reference(), candidate(sites=(record("dec.0", "aten::mm", 0, 20000.0),))))
    assert findings(t, "AMP103") == []
    assert len(findings(t, "AMP103", Policy(headroom_bits=2.0))) == 1
    assert findings(t, "AMP103", Policy(headroom_bits=2.0, module_headroom=(("dec.*", 1.0),))) == []


def test_103_does_not_repeat_an_overflow() -> None:
    sites = (record("blocks.1.ff.wo", "aten::mm", 0, 60000.0, inf=1),)
    t = trace(births=(birth(),), passes=(reference(), candidate(**SICK, sites=sites)))
    assert findings(t, "AMP103") == []


@pytest.mark.parametrize(
    ("tensor", "severity"),
    [
        (bad_tensor(kind="parameter", name="fc.weight", batch=None, samples=None), "error"),
        (bad_tensor(kind="parameter", name="fc.weight", batch=None, nan=0, inf=1, samples=None), "error"),
        (bad_tensor(), "info"),
        (bad_tensor(kind="buffer", name="bn.running_mean", batch=None, samples=None), "info"),
    ],
)
def test_105_of_a_tensor_that_reached_nothing(tensor: Any, severity: str) -> None:
    (finding,) = findings(trace(bad_tensors=(tensor,)), "AMP105")
    assert finding.severity == severity


def test_105_names_tensor_sample_and_element() -> None:
    (finding,) = findings(trace(bad_tensors=(bad_tensor(),)), "AMP105")
    assert (
        finding.message
        == 'batch["ctx"] holds 3 NaN in sample 3, first at element [3, 2], before anything ran.'
    )
    assert finding.remedy.startswith("Drop or mend sample 3;")


def test_105_of_a_weight_names_its_module() -> None:
    bad = bad_tensor(kind="parameter", name="fc.weight", batch=None, samples=None)
    (finding,) = findings(trace(bad_tensors=(bad,)), "AMP105")
    assert finding.module == "fc"


def test_107_of_an_emulated_refusal_says_so() -> None:
    refused = raised(
        type="EmulatedRefusal",
        constant=None,
        op="aten::binary_cross_entropy",
        message="CUDA autocast refuses it. Use another.",
        emulated_refusal=True,
    )
    t = trace(passes=(reference(), candidate(loss=None, raised=refused, parameters=())))
    (finding,) = findings(t, "AMP107")
    assert finding.message == "CUDA autocast refuses it. On a GPU this raises; here the refusal is emulated."
    assert finding.remedy == "Use binary_cross_entropy_with_logits on the logits (drop the sigmoid)."


def test_107_of_a_dtype_mismatch_converts_one_side() -> None:
    mixed = raised(constant=None, op="aten::mm", message="expected m1 and m2 to have the same dtype")
    t = trace(passes=(reference(), candidate(loss=None, raised=mixed, parameters=())))
    (finding,) = findings(t, "AMP107")
    assert finding.message == "RuntimeError in forward: expected m1 and m2 to have the same dtype"
    assert finding.remedy.startswith("Convert one side on this line")


def test_203_names_the_worst_parameter_and_where_it_begins() -> None:
    sites = (
        record("head", "aten::mm", 3, phase="backward", forward_op="aten::addmm", numel=100, flushed=5),
        record(
            "fc", "aten::mm", 4, phase="backward", forward_op="aten::addmm", numel=100, flushed=40, zeros=50
        ),
        record("embed", "aten::mm", 5, phase="backward", numel=100, flushed=90, zeros=95),
    )
    worst = parameter("fc.weight", lost=80, relative_error=0.9)
    lossy = candidate(loss_scale=1.0, sites=sites, parameters=(worst, parameter("fc.bias")))
    t = trace(passes=(reference(), lossy), environment=environment(loss_scale=1.0))
    (finding,) = findings(t, "AMP203")
    assert finding.message == (
        "At scale 1, 1 parameter loses much of the gradient to rounding: worst fc.weight (80.0 %); "
        "40.0 % of all elements. It begins in the backward of addmm of fc."
    )
    assert finding.remedy.startswith("Use a loss scale: torch.amp.GradScaler")
    assert finding.evidence["parameters"] == {"fc.weight": 0.8}


# ---------------------------------------------------------------- doubts about the measurement


def test_901_says_whose_autocast_ran() -> None:
    assert "emulated" in findings(trace(), "AMP901")[0].message
    own = findings(trace(environment=environment(emulates=None)), "AMP901")
    assert own[0].message.startswith("The CPU's own autocast ran")
    assert findings(trace(environment=environment(device="cuda:0", emulates=None)), "AMP901") == []


def test_a_kernel_that_could_not_be_compiled_is_said() -> None:
    gpu = environment(device="cuda:0", emulates=None, kernel_refusal="CompilationError: no ptxas")
    (found,) = findings(trace(environment=gpu), "AMP901")
    assert (found.severity, found.title) == ("info", "counted without the fused kernel")
    assert "(CompilationError: no ptxas)" in found.message


def test_902_names_the_outermost_module_that_never_ran() -> None:
    modules = (
        module("", "Net"),
        module("pooler", "Pooler", calls=0, parameters=0),
        module("pooler.dense", calls=0),
        module("blocks", "ModuleList", calls=0, parameters=0),
        module("act", "ReLU", calls=0, parameters=0),
        module("attn.out_proj", calls=0),
    )
    used = parameter("attn.out_proj.weight")
    t = trace(modules=modules, passes=(reference(), candidate(parameters=(used,))))
    (finding,) = findings(t, "AMP902")
    assert (finding.module, finding.message) == ("pooler", "Pooler with 12 weights was never called.")


def test_902_reads_each_module_once() -> None:
    """8,000 modules that never ran, one below the other ten deep: a second where pairs took minutes."""
    paths = [".".join(f"m{i}" for _ in range(depth)) for i in range(800) for depth in range(1, 11)]
    modules = (module("", "Net"), *(module(path, calls=0, parameters=1) for path in paths))
    found = findings(trace(modules=modules), "AMP902")
    assert [f.module for f in found] == [f"m{i}" for i in range(800)]
    assert {f.evidence["parameters"] for f in found} == {10}


def test_902_keeps_silent_where_the_pass_did_not_end() -> None:
    t = trace(modules=(module("a", calls=0),), passes=(reference(), candidate(raised=raised())))
    assert findings(t, "AMP902") == []


def test_903_names_opaque_ops_and_modules_and_compiled_ones() -> None:
    modules = (module("scan", "RecursiveScriptModule", opaque=True), module("net", compiled=True))
    found = findings(trace(modules=modules, opaque_ops=("mamba::scan",)), "AMP903")
    assert [(f.module, f.op) for f in found] == [("", "mamba::scan"), ("scan", ""), ("net", "")]


def test_904_and_905_follow_from_repeated_runs() -> None:
    assert [f.severity for f in findings(trace(observer_changed_loss=True), "AMP904")] == ["warning"]
    assert [f.severity for f in findings(trace(deterministic=False), "AMP905")] == ["warning"]
    assert findings(trace(deterministic=None, observer_changed_loss=None), "AMP905") == []


def test_a_scale_that_is_too_high_without_a_search_gets_a_remedy_without_dots() -> None:
    """Where no other scale was tried the remedy says so; it is never a call that cannot be typed."""
    finding = of_birth("AMP201", **BACKWARD)
    assert "which one works was not measured here" in finding.remedy
    assert "..." not in finding.remedy
