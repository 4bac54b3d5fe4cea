"""The cheapest format for each module: chosen by range, then widened where a run lacks bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ampdoctor.facts.floats import FLOAT16, FLOAT_FORMATS, FloatFormat
from ampdoctor.probe.passes.module_formats import matches, scaling_of
from ampdoctor.probe.plan import ModuleFormats
from ampdoctor.probe.trials.format_ranges import Ranges, Values
from ampdoctor.remedy.ddmin import ddmin
from ampdoctor.scales.powers_of_two import HIGHEST_RECOMMENDED, ceiling_of

FORMATS = {
    "fp8": ("float8_e4m3fn", "float8_e5m2"),
    "fp16": ("float16",),
    "bf16": ("bfloat16",),
    "fp32": ("float32",),
}
"""What ``--formats`` names."""
_WIDTHS = (FORMATS["fp8"], FORMATS["fp16"] + FORMATS["bf16"], FORMATS["fp32"])
"""From cheap to dear; of those as wide, the one with more mantissa bits first."""

SIDES = ("forward", "gradient")
Entry = tuple[str, str]
"""A module's path, and which of ``SIDES``."""


@dataclass(frozen=True)
class Choices:
    """For each entry three formats whose range holds its values: the cheapest, the cheapest of at least 16
    bits, and of 32; the widest allowed where there is none."""

    by_entry: Mapping[Entry, tuple[str, ...]]
    loss_scale: float
    """At which gradients in FP16 were judged."""

    def table(self, levels: Mapping[Entry, int]) -> tuple[ModuleFormats, ...]:
        """The formats of each module, with each entry at the first, second or third of its own."""
        return tuple(
            ModuleFormats(path, *(self.by_entry[path, side][levels[path, side]] for side in SIDES))
            for path in dict.fromkeys(path for path, _ in self.by_entry)
        )


def choices(
    ranges: Mapping[str, Ranges], allowed: Sequence[str], limit: float, margin_bits: float
) -> Choices:
    """What each module's range allows, of the words of ``FORMATS`` in ``allowed``.

    ``limit``: the share of a tensor's elements that may become zero.
    """
    names = {name for word in allowed for name in FORMATS[word]}
    usable = [[name for name in width if name in names] for width in _WIDTHS]
    widest = [width[-1] for width in usable if width][-1]
    scale = _loss_scale(ranges.values(), margin_bits)

    def first(tensors: list[Values], shift: int, widths: list[list[str]]) -> str:
        for name in (name for width in widths for name in width):
            if all(holds(t, FLOAT_FORMATS[name], shift, limit) for t in tensors):
                return name
        return widest

    found: dict[Entry, tuple[str, ...]] = {}
    for path, seen in ranges.items():
        for side, tensors, shift in (("forward", seen.forward, 0), ("gradient", seen.gradient, scale)):
            found[path, side] = tuple(first(tensors, shift, usable[level:]) for level in range(3))
    return Choices(found, 2.0**scale)


def holds(values: Values, fmt: FloatFormat, shift: int, limit: float) -> bool:
    """Whether the tensor times 2^shift lies in the format's range: nothing overflows, few become zero."""
    scaling = scaling_of(values.absmax, fmt)
    by = scaling if fmt.bits == 8 else shift
    histogram = values.histogram.shift(by)
    if histogram.overflowed(fmt) or values.absmax >= fmt.overflow_at * 2.0**-by:
        return False
    return histogram.flushed(fmt) <= limit * histogram.nonzero


def narrowest(
    found: Choices, works: Callable[[tuple[ModuleFormats, ...]], bool]
) -> tuple[ModuleFormats, ...] | None:
    """A table that works and of which no entry that was moved up can be moved down; None where none does.

    First what must go to 32 bits, with all else at 16 or more; then, with that, what must leave 8.
    """
    moved: dict[Entry, int] = {}
    for level in (1, 0):
        settled = {**dict.fromkeys(found.by_entry, level), **moved}

        def holds_with(wider: Sequence[Entry], settled: Mapping[Entry, int] = settled) -> bool:
            return works(found.table({**settled, **{entry: settled[entry] + 1 for entry in wider}}))

        movable = [
            entry for entry, names in found.by_entry.items()
            if settled[entry] == level and names[level] != names[level + 1]
        ]  # fmt: skip
        if not holds_with(()) and not holds_with(movable):
            return None
        moved |= dict.fromkeys(ddmin(movable, holds_with), level + 1)
    return found.table({**dict.fromkeys(found.by_entry, 0), **moved})


def with_patterns(table: Sequence[ModuleFormats]) -> tuple[ModuleFormats, ...]:
    """The same table with ``blocks.*.mlp`` for the modules of numbered blocks, where they all agree."""
    kept: dict[str, ModuleFormats] = {}
    for item in table:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", item.path)
        alike = [o for o in table if matches(pattern, o.path)]
        agree = len(alike) > 1 and len({(o.forward, o.gradient) for o in alike}) == 1
        path = pattern if agree and pattern != "*" else item.path
        kept[path] = ModuleFormats(path, item.forward, item.gradient)
    return tuple(kept.values())


def uses_fp16_gradients(table: Sequence[ModuleFormats]) -> bool:
    """Whether the table needs a loss scale: the 8-bit formats have scales of their own."""
    return any(item.gradient == FLOAT16.name for item in table)


def _loss_scale(ranges: Iterable[Ranges], margin_bits: float) -> int:
    """The exponent of the scale that takes the largest gradient to the end of FP16's range, less a margin."""
    largest = max((v.absmax for seen in ranges for v in seen.gradient), default=0.0)
    return min(max(ceiling_of(largest, FLOAT16) - round(margin_bits), 0), HIGHEST_RECOMMENDED)
