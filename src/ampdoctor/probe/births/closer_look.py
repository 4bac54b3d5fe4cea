"""A batch in which something is not finite, looked at again: the births of it, as facts."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field, replace

from ampdoctor.errors import ProbeError
from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import Birth, Pass, Raised, SiteRecord
from ampdoctor.load.workload import Workload
from ampdoctor.probe.births.bad_tensors import batch_size
from ampdoctor.probe.births.birth_facts import Seen, describe_births
from ampdoctor.probe.births.cast_weights import blame_the_cast
from ampdoctor.probe.births.low_scale import depends_on_scale, reach_as_at
from ampdoctor.probe.births.newborn import Newborn
from ampdoctor.probe.births.reference_twins import ReferenceWatch
from ampdoctor.probe.births.second_look import SecondLook
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import Precision
from ampdoctor.probe.watch.nonfinite import Exact, with_counts
from ampdoctor.scales.powers_of_two import ROOT_SCALE


@dataclass
class CloserLook:
    """The second looks at one candidate pass, which are runs of the workload."""

    workload: Workload
    seen: Pass
    """The candidate that is not sound."""
    precision: Precision
    """Of that pass."""
    reference: Precision
    seed: int
    interrupted: bool = False
    """The user stopped one of the runs: what follows from it is not known."""
    counted: Pass = field(init=False)
    """The candidate, with exact counts of what is not finite."""

    def births(self, exact: Pass | None) -> list[Birth]:
        """The births of the pass, numbered from 0. ``exact``: the batch's pass in the reference.

        Raises ProbeError where the model cannot run while its values are followed.
        """
        self.counted = self.seen
        look = self._look(self.precision)
        self.counted = replace(self.seen, sites=tuple(_with_counts(r, look.exact) for r in self.seen.sites))
        index, size = self.seen.batch, batch_size(self.workload.batches[self.seen.batch])
        seen = [Seen(look, index, size, self.precision.loss_scale, look.births)]
        high = self.precision.loss_scale > ROOT_SCALE
        if high and depends_on_scale(look.births) and not self.interrupted:
            # A scale that is too high overflows before the real fault shows: look at a low one first.
            root = self._look(replace(self.precision, loss_scale=ROOT_SCALE))
            reach_as_at(look.births, root.births)
            births = [b for b in root.births if b.in_phase("backward")]
            seen.append(Seen(root, index, size, ROOT_SCALE, births))
        by_site: dict[Site, list[Newborn]] = collections.defaultdict(list)
        for birth in (birth for item in seen for birth in item.births):
            if birth.site is not None:
                by_site[birth.site].append(birth)
        twins = {}
        if by_site and not self.interrupted:
            watch = run_pass(
                self.workload, self.workload.batches[index], self.reference, self.seed,
                lambda locator, precision: ReferenceWatch(locator, precision, by_site),
            )  # fmt: skip
            twins = watch.observer.twins
            self.interrupted |= watch.interrupted
        # The look's own run is over: what the model holds now is what its user built.
        blame_the_cast(look.births, self.workload.model)
        return [_without_false_samples(fact) for fact in describe_births(seen, twins, exact)]

    def _look(self, precision: Precision) -> SecondLook:
        batch = self.workload.batches[self.seen.batch]
        run = run_pass(self.workload, batch, precision, self.seed, SecondLook)
        self.interrupted |= run.interrupted
        if run.raised is not None and self.seen.raised is None:
            raise ProbeError(
                f"the model runs, and cannot while its values are followed: {run.raised.type}: "
                f"{run.raised.message}",
                f"{where_raised(run.raised)}; report it as a bug of ampdoctor's",
                run.raised.traceback,
            )
        return run.observer


def where_raised(raised: Raised) -> str:
    """``in head, forward, at model.py:33: self.wo(h)``."""
    place = f"in {raised.module or 'the model or loss'}, {raised.phase}"
    if raised.source is not None:
        place += f", at {raised.source.file}:{raised.source.line}: {raised.source.text}"
    return place


def _without_false_samples(birth: Birth) -> Birth:
    """The first dimension of a weight or a buffer counts no samples, be it as long as the batch."""
    return birth if birth.origin == "batch" or not birth.name else replace(birth, samples=None)


def _with_counts(record: SiteRecord, counts: dict[Site, Exact]) -> SiteRecord:
    exact = counts.get(record.site)
    if exact is None:
        return record
    return replace(record, stats=with_counts(record.stats, exact))
