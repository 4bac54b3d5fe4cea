"""Rules on counts, and the doubts about a measurement."""

from __future__ import annotations

from typing import Any

import pytest

from ampdoctor.diagnose.policy import Policy
from rule_findings import BACKWARD, SICK, findings, of_birth
from trace_builder import (
    bad_tensor,
    birth,
    candidate,
    environment,
    module,
    parameter,
    raised,
    record,
    reference,
    trace,
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
