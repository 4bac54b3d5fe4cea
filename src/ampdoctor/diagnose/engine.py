"""``diagnose(trace, policy) -> Report``: every judgement in one call, without side effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampdoctor.diagnose.first_fault import first_fault
from ampdoctor.diagnose.gathering import gathered
from ampdoctor.diagnose.gradient_histogram import gradient_histogram_of
from ampdoctor.diagnose.inferred import INFERRED_ID
from ampdoctor.diagnose.layers import layer_rows, parameter_rows
from ampdoctor.diagnose.loss_scale import loss_scale_of
from ampdoctor.diagnose.ops import op_rows
from ampdoctor.diagnose.outcome import find_pass
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Finding, LossRow, Report
from ampdoctor.diagnose.rules import RULES
from ampdoctor.diagnose.run_up import run_up
from ampdoctor.diagnose.sentence import sentence_of
from ampdoctor.diagnose.verdict import Reading, read
from ampdoctor.diagnose.waivers import waive, waiver_states
from ampdoctor.diagnose.wording import listing
from ampdoctor.facts.trace import OptimizerStep, Trace
from ampdoctor.facts.words import SEVERITIES

DEFAULT_POLICY = Policy()


def diagnose(trace: Trace, policy: Policy = DEFAULT_POLICY, config: str = "") -> Report:
    """The report on a trace: verdict, first fault, findings and tables. ``config`` is the file that asked."""
    reading = read(trace, policy)
    fault = first_fault(reading)
    found = _found(reading)
    return Report(
        environment=trace.environment,
        verdict=reading.verdict,
        headline=sentence_of(reading, fault),
        first_fault=fault,
        run_up=run_up(reading),
        losses=_losses(trace),
        layers=layer_rows(reading),
        parameters=parameter_rows(trace),
        ops=op_rows(trace),
        loss_scale=loss_scale_of(reading),
        findings=_findings(found, reading),
        not_seen=tuple(_not_seen(reading)),
        passes=len(trace.passes) + len(trace.scale_runs),
        seconds=trace.seconds,
        interrupted=trace.interrupted,
        seed=trace.seed,
        gradient_histogram=gradient_histogram_of(trace),
        rules=tuple(rule.code for rule in RULES if policy.applies(rule.code)),
        config=config,
        waivers=tuple(waiver_states(found, policy.waivers, policy.today)),
    )


def _found(reading: Reading) -> list[Finding]:
    """What the selected rules found."""
    return [f for rule in RULES if reading.policy.applies(rule.code) for f in rule.check(reading)]


def _findings(found: Sequence[Finding], reading: Reading) -> tuple[Finding, ...]:
    """Waived ones marked; errors first, the verdict's own before others of its severity."""
    judged = waive(found, reading.policy.waivers, reading.policy.today)
    order = sorted(judged, key=lambda f: (SEVERITIES.index(f.severity), not _is_headline(f, reading)))
    return gathered(order)


def _is_headline(finding: Finding, reading: Reading) -> bool:
    site = reading.basis.birth.site if reading.basis else None
    return site is not None and (finding.module, finding.op) == (site.module, site.op)


def _losses(trace: Trace) -> tuple[LossRow, ...]:
    rows = []
    for batch in dict.fromkeys(p.batch for p in trace.passes):
        reference = find_pass(trace, "reference", batch)
        candidate = find_pass(trace, "candidate", batch, trace.loss_scale)
        ours, theirs = (p.loss if p else None for p in (candidate, reference))
        if ours is not None or theirs is not None:
            rows.append(LossRow(batch, theirs, ours))
    return tuple(rows)


def _not_seen(reading: Reading) -> Iterator[str]:
    """What the scan cannot speak of, a phrase each."""
    trace = reading.trace
    candidates = [p for p in trace.passes if p.role == "candidate"]
    if trace.interrupted:
        yield "what would have come after the interruption"
    if reading.raised is not None:
        yield "what would have come after the exception"
    elif trace.environment.forward_only:
        yield "gradients (the scan is forward only)"
    elif not trace.environment.trainable_parameters:
        yield "gradients (no parameter requires one)"
    elif candidates and not any(p.backward_ran for p in candidates) and not trace.interrupted:
        yield "gradients (the loss depends on no parameter)"
    if any(p.role == "reference" and p.raised for p in trace.passes):
        yield "an FP32 reference (that pass raised)"
    if any(j.birth.id == INFERRED_ID for j in reading.births):
        yield "the birth itself (a second run did not show the fault again)"
    if trace.optimizer_step is not None and trace.optimizer_step.failure:
        yield f"the optimizer's steps ({trace.optimizer_step.failure})"
    elif trace.optimizer_step is not None:
        yield from _steps_not_seen(trace.optimizer_step)
    if trace.environment.emulates or trace.environment.device.startswith("cpu"):
        yield "real GPU kernels (AMP901)"
    trained = sorted({m.type for m in trace.modules if m.only_trained})
    if trained:
        compute = "computes" if len(trained) == 1 else "compute"
        yield f"eval mode, in which {listing(trained)} {compute} something else (model: {{mode: eval}})"
    if trace.environment.own_policy:
        yield f"FSDP's own policy ({trace.environment.own_policy}): the precision that is configured ran"
    inside = [*trace.opaque_ops, *(m.path for m in trace.modules if m.opaque)]
    if inside:
        yield f"the inside of {listing(inside)} (AMP903)"
    if any(m.compiled for m in trace.modules):
        yield "compiled kernels (AMP903)"


def _steps_not_seen(step: OptimizerStep) -> Iterator[str]:
    """Why the optimizer's steps end early, or prove nothing of precision."""
    if step.fp32_diverges_at is not None:
        yield (
            f"the optimizer's steps past {len(step.by_step) - 1}, which leaves weights non-finite (FP32 "
            f"training is not finite either, from step {step.fp32_diverges_at} on: no matter of precision)"
        )
    elif step.stopped:
        yield f"the optimizer's steps from there on ({step.stopped})"
    if step.draws:
        yield f"what rounding takes from {step.optimizer}'s steps (it draws random numbers: they may make up)"


__all__ = ["DEFAULT_POLICY", "diagnose"]
