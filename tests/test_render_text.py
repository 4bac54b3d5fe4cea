"""The report as text: what a person reads, in 80 columns, on any terminal."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.wording import element, listing, number, percent, scale
from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import ZeroOrigin
from ampdoctor.render import FORMATS, Options
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
    source,
    step,
    trace,
)

SICK = {"loss": math.nan, "parameters": (parameter("w", nan=100, absmax=None),)}


def t5() -> Report:
    """The overflow of a feed-forward layer, and what led to it."""
    sites = (
        record("embed", "aten::embedding", 0, 2.0),
        record("blocks.1.ff.wi", "aten::mm", 1, 1024.0),
        record("blocks.1.ff.wo", "aten::mm", 10, 60000.0, inf=18),
        record("final", "aten::mul", 11, None, dtype="float32", nan=4),
        record("blocks.1.ff.wi", "aten::mm", 12, 16.0, phase="backward", flushed=1),
    )
    modules = (
        module("", "T5"),
        module("embed", "Embedding"),
        module("blocks.1.ff.wi"),
        module("blocks.1.ff.wo"),
        module("final", "RMSNorm"),
    )
    return diagnose(
        trace(modules=modules, births=(birth(),), passes=(reference(), candidate(**SICK, sites=sites)))
    )


def text(report: Report, **options: Any) -> str:
    return FORMATS["text"](report, Options(**options))


def shown(**changes: Any) -> str:
    """The text about a trace whose candidate is NaN."""
    return text(diagnose(trace(**({"passes": (reference(), candidate(**SICK))} | changes))))


def test_the_whole_report_reads_top_to_bottom() -> None:
    assert text(t5()) == REPORT


REPORT = """\
 ampdoctor  t5.yaml
 torch 2.13.0 · cpu, emulating CUDA · float16 autocast · 1 batch

 OVERFLOW in forward. blocks.1.ff.wo leaves the FP16 range; FP32 is fine.

 Born at    blocks.1.ff.wo (Linear)   aten::mm   forward
            model.py:33   return self.wo(h)
 Value      inf; exactly 66,246 (FP16 ends at 65,504)
            element [0, 3, 7] of sample 0; 18 of 1,536 elements
 Inputs     float16 3x4: absmax 1,204
            float16 3x4: absmax 46.1
 Reaches    blocks.1 add -> final mul (becomes NaN) -> top level
            nll_loss_forward -> loss and 1 gradient (w)

 Run-up     embed                2  15.0 bits
            blocks.1.ff.wi   1,024   6.0 bits   x512
            blocks.1.ff.wo  66,246       none  x64.7  <- here

 Loss       FP16 nan   FP32 2

 Loss scale configured 65,536   no other helps: the fault is in forward
            other scales were not tried: every scale has the fault

 Findings   error AMP101 forward overflow   blocks.1.ff.wo   model.py:33
              The exact value is 66,246; FP16 ends at 65,504. Only sample 0 of 2
              does this.
              Keep blocks.1.ff.wo in FP32 (torch.autocast("cuda", enabled=False)
              around it, .float() on its inputs); look at that sample first; or
              train in BF16.  ampdoctor explain AMP101
            info AMP901 CUDA's autocast policy and rounding were emulated on a
            CPU; no GPU kernel ran.

 Layers                          calls  absmax   headroom  grad max  underflow
  blocks.1.ff.wo Linear              1     inf       none         -          -
  blocks.1.ff.wi Linear              1   1,024   6.0 bits    2.4e-4     20.0 %
  embed Embedding                    1       2  15.0 bits         -          -
  final RMSNorm                      1     nan          -         -          -

 2 passes, 1.9 s. Weights, buffers and RNG are as they were.
 Not seen: real GPU kernels (AMP901).
 headroom: bits to the format's end; underflow: what its own ops round to 0
"""


@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_asked(unicode: bool) -> None:
    names = ["x" * 90, "encoder.layers.11.self_attention.query_key_value.projection.inner"]
    sites = tuple(record(name, "aten::mm", i, 40000.0) for i, name in enumerate(names))
    modules = tuple(module(name) for name in names)
    path = tuple(step(name, "aten::add") for name in names)
    fault = birth(names[0], path=path, source=source(text="y = " + "a + " * 40 + "b"))
    report = diagnose(
        trace(modules=modules, births=(fault,), passes=(reference(), candidate(**SICK, sites=sites)))
    )
    lines = text(report, unicode=unicode).splitlines()
    assert max(len(line) for line in lines) <= 80
    assert any(("…" if unicode else "...") in line and "xxxx" in line for line in lines)


def test_ascii_terminals_get_ascii() -> None:
    accented = diagnose(trace(environment=environment(title="modèle.yaml")))
    assert text(accented, unicode=False).isascii()
    assert "mod\\xe8le.yaml" in text(accented, unicode=False)
    assert "modèle.yaml" in text(accented)


def test_colour_is_only_written_when_asked_for() -> None:
    assert "\x1b" not in text(t5())
    coloured = text(t5(), color=True)
    assert "\x1b[1;31mOVERFLOW in forward.\x1b[0m" in coloured


def test_a_users_strings_stay_what_they_are() -> None:
    """Neither rich's markup nor a terminal's escapes act."""
    hostile = "[red]x[/red]\x1b[31m\n\t:smile:"
    out = shown(births=(birth(hostile, source=source(text=hostile)),), modules=(module(hostile),))
    assert "[red]x[/red]\\x1b[31m\\n\\t:smile:" in out.replace("\n", "").replace("            ", "")
    assert "\x1b" not in out


def test_all_layers_come_in_the_models_order() -> None:
    sites = tuple(record(f"layer{i}", "aten::mm", i, 2.0**i) for i in range(10))
    modules = tuple(module(f"layer{i}") for i in range(10))
    report = diagnose(trace(modules=modules, passes=(reference(), candidate(sites=sites))))
    worst = text(report)
    assert "Layers (worst 8 of 10)" in worst
    assert "layer0" not in worst
    whole = text(report, all_layers=True)
    assert [line.split()[0] for line in whole.splitlines() if line.startswith("  layer")] == [
        f"layer{i}" for i in range(10)
    ]


def test_a_source_path_is_relative_to_the_base() -> None:
    report = diagnose(
        trace(
            births=(birth(source=source(file="/home/me/project/models/t5.py")),),
            passes=(reference(), candidate(**SICK)),
        )
    )
    assert " models/t5.py:33 " in text(report, base="/home/me/project")
    assert " t5.py:33 " in text(report, base="/elsewhere")


def test_a_root_is_shown_with_its_own_line() -> None:
    zero = ZeroOrigin(Site("forward", "head", "aten::rsub", 0), source(12, "1 - p"), 3, 2e-4, None)
    out = shown(births=(birth("head", "aten::log", zero_origin=zero, rerun="inf", exact_value=math.inf),))
    assert " Root       became zero in head   aten::rsub\n            model.py:12   1 - p\n" in out


def test_a_bad_input_came_in() -> None:
    came_in = birth(
        origin="batch", name='["ctx"]', site=None, source=None, value="nan", shape=(4, 8), index=(3, 2),
        count=3, samples=(3,), exact_value=None, reference="same",
    )  # fmt: skip
    out = shown(births=(came_in,), bad_tensors=(bad_tensor(),), passes=(reference(**SICK), candidate(**SICK)))
    assert ' BAD INPUT. batch["ctx"] holds NaN before anything runs (sample 3).\n' in out
    assert ' Came in    batch["ctx"]\n' in out
    assert "            element [3, 2] of sample 3; 3 of 32 elements\n" in out


def test_an_exception_was_raised() -> None:
    refused = raised(constant=None, op="aten::bmm", message="expected same dtype\nsecond line")
    out = shown(passes=(reference(), candidate(loss=None, raised=refused, parameters=())))
    assert " RAISES in FP16 only. attn: RuntimeError: expected same dtype\n" in out
    assert " Raised at  attn   aten::bmm   forward\n" in out
    assert "second line" not in out
    assert " Value " not in out


def test_an_implicit_cast_is_said_to_be_autocasts() -> None:
    assert " a cast to FP16 that autocast puts in\n" in shown(births=(birth(implicit_cast=True),))


def test_an_absorbed_value_ends_where_it_was_absorbed() -> None:
    absorbed = birth(
        reaches_loss=False, reaches_gradients=(), path=(), absorbed_at=step("norm", "aten::rsqrt", "finite")
    )
    out = shown(births=(absorbed,), passes=(reference(loss=4.0), candidate(loss=3.0)))
    assert " Reaches    absorbed by norm rsqrt\n" in out


def test_many_findings_are_cut_and_counted() -> None:
    births = tuple(birth(f"m{i}", id=i, order=i, source=source(i)) for i in range(12))
    assert "and 2 more: --format json lists all" in shown(births=births)


def test_information_takes_one_line_per_rule() -> None:
    modules = tuple(module(f"expert{i}", calls=0) for i in range(6))
    out = text(diagnose(trace(modules=modules)))
    assert "info AMP902 a module never ran: expert0, expert1, expert2, expert3" in out
    assert " and 2 more" in out


def test_a_forward_only_scan_speaks_of_no_scale() -> None:
    report = diagnose(
        trace(
            environment=environment(forward_only=True),
            passes=(
                reference(loss=None, parameters=(), backward_ran=False),
                candidate(loss=None, parameters=(), backward_ran=False, sites=(record("fc", "aten::mm", 0),)),
            ),
        )
    )
    out = text(report)
    assert " CLEAN. Nothing in the FP16 forward overflows or is undefined.\n" in out
    assert "Loss" not in out
    assert "gradients (the scan is forward only)" in out


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"interrupted": True}, "what would have come after the interruption"),
        ({"environment": environment(trainable_parameters=0)}, "gradients (no parameter requires one)"),
        (
            {"passes": (reference(), candidate(backward_ran=False, sites=(record("fc", "aten::mm", 0),)))},
            "gradients (the loss depends on no parameter)",
        ),
        ({"opaque_ops": ("mamba::scan",)}, "the inside of mamba::scan (AMP903)"),
        ({"modules": (module("", compiled=True),)}, "compiled kernels (AMP903)"),
        ({"passes": (reference(raised=raised()), candidate())}, "an FP32 reference (that pass raised)"),
    ],
)
def test_what_was_not_seen_is_said(changes: dict[str, Any], phrase: str) -> None:
    assert phrase in diagnose(trace(**changes)).not_seen


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "?"), (0.0, "0"), (66246.1, "66,246"), (-9999999.0, "-9,999,999"), (1e7, "1.0e7"),
        (2.912, "2.91"), (0.0031, "3.1e-3"), (0.05, "0.05"), (312.4, "312"), (1e-40, "1.0e-40"),
        (math.inf, "inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_numbers_have_few_figures(value: float | None, words: str) -> None:
    assert number(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(65536.0, "65,536"), (1.0, "1"), (0.25, "2^-2"), (2.0**30, "2^30"), (1000.5, "1,000"), (0.3, "0.3")],
)
def test_scales_are_whole_or_powers_of_two(value: float, words: str) -> None:
    assert scale(value) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "0.0 %"), (1.0, "100.0 %"), (1e-5, "<0.1 %"), (0.9999, ">99.9 %"), (0.0627, "6.3 %"), (None, "?")],
)
def test_a_share_is_never_rounded_to_nothing_or_all(share: float | None, words: str) -> None:
    assert percent(share) == words


def test_lists_end_with_a_count() -> None:
    assert listing(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
    assert listing([0, 3]) == "0, 3"


def test_a_tensor_without_dimensions_has_one_element() -> None:
    assert element(()) == "a single value"
