"""Which loss scales work, predicted from recorded histograms and then run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ampdoctor.facts.environment import Settling
from ampdoctor.facts.trace import Pass, ScaleRun, SiteRecord
from ampdoctor.scales.gradient_harm import harmed
from ampdoctor.scales.powers_of_two import (
    HIGHEST,
    LOWEST,
    GradientTensor,
    ceiling_of,
    gradient_tensors,
    is_power_of_two,
    limiting,
    recommended_in,
    top_below,
)
from ampdoctor.scales.recordings import is_finite, recorded_tensors

RunAt = Callable[[int, float], Pass]
"""(batch, loss scale) -> the candidate's pass there."""
_BELOW_ONE = (-8, -16, -24)
"""Exponents tried for a recording where even 2^0 overflows."""
_MOST_CORRECTIONS = 8
"""Wrong predictions after which the search takes what it has seen."""


@dataclass
class ScaleSearch:
    """The runs it took, and of each batch the finite pass whose histograms say most about other scales."""

    references: Sequence[Pass]
    candidates: Sequence[Pass]
    """The passes at one scale, one per batch, in the references' order."""
    run_at: RunAt
    margin_bits: float
    underflow_limit: float
    recordings: dict[int, Pass] = field(default_factory=dict)
    """Batch -> the finite pass to read. A batch without one has no scale that works."""
    _known: dict[tuple[int, float], Pass] = field(default_factory=dict)

    @property
    def runs(self) -> tuple[ScaleRun, ...]:
        """What each run says, in the order made."""
        return tuple(scale_run(run, self._twin(run.batch)) for run in self._known.values())

    def settle(self) -> Settling | None:
        """Where GradScaler settles from the candidates' scale, which overflows; None where it does not.

        The scale is found by running, and so is the one above it. The passes there are the candidates then.
        """
        start = self.candidates[0].loss_scale
        self._record()
        predicted = self._ceiling()
        if predicted is None or len(self.recordings) < len(self.candidates):
            return None
        # what limits comes first: where it overflows, the others need not run
        order = sorted((c.batch for c in self.candidates), key=lambda batch: batch != predicted[0])

        def works(skips: int) -> bool:
            return all(is_finite(self._at(batch, start / 2**skips)) for batch in order)

        most = math.frexp(start)[1] - 1 - LOWEST
        skips = max(1, min(most, math.ceil(math.log2(start) - predicted[1])))
        while skips <= most and not works(skips):
            skips += 1
        if skips > most:
            return None
        while skips > 1 and works(skips - 1):
            skips -= 1
        self.candidates = [self._at(c.batch, start / 2**skips) for c in self.candidates]
        return Settling(start / 2**skips, skips)

    def run(self) -> None:
        """Finds the ceiling, runs the first scale past it and the recommended one, and the low end."""
        self._record()
        for batch in [c.batch for c in self.candidates if c.batch not in self.recordings]:
            self._record_below_one(batch)
        if len(self.recordings) < len(self.candidates) or any(
            p.loss_scale < 2.0**LOWEST for p in self.recordings.values()
        ):
            return
        best = self._recommended()
        if best is not None:
            self._low_end(best)

    def _record(self) -> None:
        """A recording of each batch: its candidate, else its run at the lowest scale, if that is finite."""
        for candidate in self.candidates:
            self._know(candidate)
            searched = is_power_of_two(candidate.loss_scale) and candidate.loss_scale >= 2.0**LOWEST
            if is_finite(candidate) and searched:
                self.recordings[candidate.batch] = candidate
            elif is_finite(lowest := self._at(candidate.batch, 2.0**LOWEST)):
                self.recordings[candidate.batch] = lowest

    def _record_below_one(self, batch: int) -> None:
        """No scale of 1 or more works: what would, is read from a recording at a scale that is no cure."""
        for exponent in _BELOW_ONE:
            run = self._at(batch, 2.0**exponent)
            if is_finite(run):
                self.recordings[batch] = run
                return

    def _recommended(self) -> int | None:
        """The exponent that was proven to work; None where the search did not end."""
        worst_known = HIGHEST + 1
        for _ in range(_MOST_CORRECTIONS):
            predicted = self._ceiling()
            if predicted is None:
                return None
            batch, ceiling = predicted
            ceiling = min(ceiling, worst_known - 1)
            if ceiling < HIGHEST:
                past = self._at(batch, 2.0 ** (ceiling + 1))
                if is_finite(past):
                    self._read(past)
                    if self._ceiling() == predicted:
                        return None  # what overflows by prediction does not overflow: nothing to go on
                    continue
            top = top_below(ceiling, self.margin_bits)
            if top is None:
                return None
            chosen = recommended_in(LOWEST, top)
            passes = [self._at(c.batch, 2.0**chosen) for c in self.candidates]
            if all(map(is_finite, passes)):
                for p in passes:
                    self._read(p)
                if self._ceiling() == predicted:
                    return chosen
                continue  # a recording that had lost much saw no ceiling, or a wrong one
            worst_known = chosen
        return None

    def _low_end(self, best: int) -> None:
        """Runs scales down from ``best`` to the lowest that harms no parameter: most often that is 2^0."""
        errors = {
            p.batch: {q.name: q.relative_error for q in p.parameters}
            for p in (self._at(c.batch, 2.0**best) for c in self.candidates)
        }

        def works(exponent: int) -> bool:
            passes = [self._at(c.batch, 2.0**exponent) for c in self.candidates]
            return all(is_finite(p) and not harmed(p.parameters, errors[p.batch]) for p in passes)

        if not works(best) or works(LOWEST):
            return
        bad, good = LOWEST, best
        while good - bad > 1:
            middle = (good + bad) // 2
            if works(middle):
                good = middle
            else:
                bad = middle

    def _ceiling(self) -> tuple[int, int] | None:
        """(batch, exponent) of the lowest ceiling among the batches; None without low-precision gradients."""
        first = limiting(self._tensors())
        return None if first is None else (first.batch, ceiling_of(first.absmax, first.fmt))

    def _tensors(self) -> list[GradientTensor]:
        return recorded_tensors([*self.references, *self.candidates, *self.recordings.values()])

    def _read(self, recorded: Pass) -> None:
        """Prefers a recording at a higher scale to one below it: less of it was flushed."""
        known = self.recordings.get(recorded.batch)
        if known is None or known.loss_scale < recorded.loss_scale:
            self.recordings[recorded.batch] = recorded

    def _at(self, batch: int, scale: float) -> Pass:
        known = self._known.get((batch, scale))
        if known is None:
            known = self.run_at(batch, scale)
            self._know(known)
        return known

    def _know(self, run: Pass) -> None:
        self._known[run.batch, run.loss_scale] = run

    def _twin(self, batch: int) -> Pass | None:
        return next((p for p in self.references if p.batch == batch), None)


def overflows(run: Pass, reference: Pass | None) -> list[SiteRecord]:
    """The backward tensors that are not finite here and are in the reference, in the order they were made.

    What is infinite in FP32 as well is so by design: a mask's -inf that a gradient formula reads.
    """
    by_design = {
        r.site
        for r in (reference.sites if reference else ())
        if r.site.phase == "backward" and not r.stats.is_finite
    }
    suspects = (r for r in run.sites if r.site.phase == "backward" and not r.stats.is_finite)
    broken = [r for r in suspects if r.site not in by_design and not _carried(r)]
    return sorted(broken, key=lambda r: r.order)


def _carried(record: SiteRecord) -> bool:
    """A cast, which has no twin in the reference, of values that were infinite before it."""
    return record.site.op == "aten::_to_copy" and record.stats.overflowed == 0


def scale_run(run: Pass, reference: Pass | None) -> ScaleRun:
    """What a pass says about its loss scale."""
    finite = is_finite(run)
    zeroed = nonzero = 0
    if finite:
        for tensor in gradient_tensors(run, reference):
            if tensor.rounds:
                kept = tensor.stats.nonzero
                nonzero += tensor.nonzero
                zeroed += max(0, tensor.nonzero - kept)
    return ScaleRun(
        batch=run.batch,
        loss_scale=run.loss_scale,
        finite=finite,
        overflow=None if finite else next(iter(overflows(run, reference)), None),
        zeroed=zeroed,
        nonzero=nonzero,
        parameters=run.parameters if finite else (),
    )
