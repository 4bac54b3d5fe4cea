"""Remedies of the cases, followed to the letter by a program: the fault they are for is gone.

What a program can follow is an edit of the line that the finding names (another number, a cast, an eps);
where a remedy leaves the form to its reader, no edit is made up here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ampdoctor.diagnose.report import Finding, Report
from case_runner import CASES, case_config, model_cases, run_case, run_config

Edit = Callable[[str, Finding], str]


def larger_eps(text: str, finding: Finding) -> str:
    """``use one that FP16 can hold (better 6.1e-5)``: the number, on its line, or where its name gets it."""
    match = re.search(r"better ([\d.e-]+)\)", finding.remedy)
    assert match is not None, finding.remedy
    return re.sub(
        rf"(?<![\w.]){float(finding.evidence['constant']):.0e}".replace("e-0", "e-0?"), match[1], text
    )


def lowest_value(text: str, finding: Finding) -> str:
    """``Mask with torch.finfo(x.dtype).min``: in place of the number on the line."""
    assert "torch.finfo(x.dtype).min" in finding.remedy
    assert finding.source is not None
    line = finding.source.text
    named = re.search(r"(\w+)\.dtype", line) or re.match(r"(\w+) =", line)
    assert named is not None
    return text.replace(line, re.sub(r"-1e\d+", f"torch.finfo({named[1]}.dtype).min", line))


def eps_inside(text: str, finding: Finding) -> str:
    """``Put an eps inside the root``"""
    assert "eps inside the root" in finding.remedy
    assert finding.source is not None
    line = finding.source.text
    edited = line.replace(".sqrt()", ".add(1e-4).sqrt()").replace(
        "power.float() **", "(power.float() + 1e-4) **"
    )
    return text.replace(line, edited)


def float_on_the_input(text: str, finding: Finding) -> str:
    """``call .float() on its input on this line``"""
    assert ".float() on its input" in finding.remedy
    assert finding.source is not None
    line = finding.source.text
    return text.replace(line, line.replace("rfft(x,", "rfft(x.float(),"))


def float_on_the_inputs_of_the_line(text: str, finding: Finding) -> str:
    """``compute this line in FP32 (x.float(), then back to half)``"""
    assert "x.float()" in finding.remedy
    assert finding.source is not None
    line = finding.source.text
    return text.replace(line, line.replace("x.pow(2)", "x.float().pow(2)").replace("a * a", "a.float() * a"))


def clamped_argument(text: str, finding: Finding) -> str:
    """``Clamp the argument: exp is inf from 88.7 on in FP32``"""
    assert "Clamp the argument" in finding.remedy
    assert finding.source is not None
    line = finding.source.text
    edited = re.sub(r"torch\.exp\((.*)\)$", r"torch.exp((\1).clamp(max=80.0))", line)
    return text.replace(
        line, edited.replace("self.logit_scale.exp()", "self.logit_scale.clamp(max=80.0).exp()")
    )


FOLLOWED: list[tuple[str, str, Edit]] = [
    ("gcn_degree", "AMP106", larger_eps),
    ("lfq_entropy", "AMP106", larger_eps),
    ("orpo_odds", "AMP106", larger_eps),
    ("minmax_distillation_eps", "AMP106", larger_eps),
    ("var_rsqrt_tiny_eps", "AMP106", larger_eps),
    ("mask_minus_1e9_raises", "AMP106", lowest_value),
    ("mask_zero_times_neg_inf", "AMP106", lowest_value),
    ("std_of_constant_group", "AMP202", eps_inside),
    ("spectral_magnitude_sqrt", "AMP202", eps_inside),
    ("fno_fft", "AMP107", float_on_the_input),
    ("rmsnorm_square_half", "AMP101", float_on_the_inputs_of_the_line),
    ("siglip_scale_100", "AMP102", clamped_argument),
    ("icepop_inf_times_zero", "AMP102", clamped_argument),
]


def the_error(report: Report, code: str) -> Finding:
    return next(f for f in report.findings if (f.severity, f.code) == ("error", code))


@pytest.mark.parametrize(("slug", "code", "edit"), FOLLOWED, ids=[slug for slug, _, _ in FOLLOWED])
def test_a_remedy_followed_to_the_letter_cures_the_fault(
    slug: str, code: str, edit: Edit, tmp_path: Path
) -> None:
    if not next(case for case in model_cases() if case.slug == slug).fails:
        pytest.skip("does not fail in this version of torch")
    finding = the_error(run_case(slug), code)
    text = (CASES / slug / "case.py").read_text()
    edited = edit(text, finding)
    assert edited != text
    (tmp_path / "case.py").write_text(edited)
    report = run_config(case_config(slug, "cuda").located(tmp_path, slug))[1]
    errors = [
        f"{f.code} {f.source.text if f.source else ''}" for f in report.findings if f.severity == "error"
    ]
    assert not any(error.startswith(code) for error in errors), errors
