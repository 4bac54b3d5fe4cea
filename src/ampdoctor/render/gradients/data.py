"""The same as JSON (``ampdoctor.gradients/1``) and as CSV, for scripts and spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ampdoctor.facts.floats import FloatFormat
from ampdoctor.facts.plain import to_json
from ampdoctor.facts.zones import elements_by_zone
from ampdoctor.render.gradients.page import Page
from ampdoctor.render.gradients.words import headline, judgement
from ampdoctor.render.options import Options
from ampdoctor.scales.gradient_view import Gradients
from ampdoctor.scales.powers_of_two import GradientTensor, ScalePoint
from ampdoctor.scales.selection import PARAMETERS

SCHEMA = "ampdoctor.gradients/1"


def render_json(page: Page, options: Options) -> str:
    """The document, indented, in ASCII, with a newline at its end."""
    return json.dumps(to_dict(page), indent=2, allow_nan=False) + "\n"


def to_dict(page: Page) -> dict[str, Any]:
    """Everything that the drawings show; None where a figure does not exist."""
    view, environment = page.view, page.report.environment
    window = page.reading.window
    return {
        "schema": SCHEMA,
        "tool": {"version": environment.tool_version},
        "environment": {k: v for k, v in to_json(environment).items() if k != "tool_version"},
        "judgement": judgement(page).lower(),
        "headline": " ".join(headline(page)),
        "format": _format(view.fmt),
        "recorded": {
            "as": list(view.recorded_as),
            "before_rounding": view.before_rounding,
            "passes": [
                {"batch": r.batch, "role": r.role, "loss_scale": 2.0**r.exponent} for r in view.recordings
            ],
            "batches_without": list(view.batches_without),
        },
        "selection": {"kind": view.selection.kind, "layers": list(view.selection.layers)},
        "loss_scale": {
            "wanted": page.wanted,
            "shown": 2.0**view.exponent,
            "window": None if window is None else [2.0**window.low, 2.0**window.high],
            "recommended": None if page.reading.recommended is None else 2.0**page.reading.recommended,
            "verified": page.reading.verified,
        },
        "inf": view.infs,
        "nan": view.nans,
        "all": _gradients(view.whole, page),
        "layers": [_gradients(layer, page) for layer in view.layers],
        "sweep": [_point(p) for p in page.reading.points],
        "runs": [to_json(run) for run in page.reading.runs],
    }


def _format(fmt: FloatFormat) -> dict[str, Any]:
    return {
        "name": fmt.name,
        "flush_at": fmt.flush_at,
        "min_normal": fmt.min_normal,
        "max": fmt.max,
        "overflow_at": fmt.overflow_at,
        "has_infinity": fmt.has_infinity,
    }


def _gradients(gradients: Gradients, page: Page) -> dict[str, Any]:
    fmt = page.view.fmt
    is_module = page.view.selection.kind != PARAMETERS
    return {
        "name": gradients.name,
        "type": page.types.get(gradients.name) if is_module else None,
        "tensors": gradients.tensors,
        "nonzero_in_reference": gradients.nonzero,
        "zeros": {"in_reference_too": gradients.structural_zeros, "came_in": gradients.lost_before},
        "flushed": gradients.flushed,
        "subnormal": gradients.subnormal,
        "normal": gradients.normal,
        "overflowed": gradients.overflowed,
        "overflow_is_exact": gradients.overflow_is_exact,
        "overflowing_tensors": gradients.overflowing,
        "underflow_fraction": gradients.underflow_fraction,
        "bound": gradients.bound,
        "most_flushed": None if gradients.most_flushed is None else _tensor(gradients.most_flushed, page),
        "largest": _tensor(gradients.largest, page),
        "bins": [
            {"exponent": exponent, "zone": zone, "elements": elements}
            for exponent, zone, elements in elements_by_zone(gradients.histogram, fmt)
        ],
    }


def _tensor(tensor: GradientTensor, page: Page) -> dict[str, Any]:
    return {
        "module": tensor.site.module,
        "op": tensor.site.op,
        "forward_op": tensor.forward_op,
        "parameter": tensor.parameter or None,
        "batch": tensor.batch,
        "absmax": tensor.absmax * 2.0**page.view.exponent,
        "source": to_json(tensor.source),
    }


def _point(point: ScalePoint) -> dict[str, Any]:
    return {"loss_scale": 2.0**point.exponent, **to_json(point)}


def render_csv(page: Page, options: Options) -> str:
    """One row per layer and exponent, or with a sweep one row per loss scale; a header on top."""
    return _table(_sweep_rows(page) if page.sweep else _bin_rows(page))


def _bin_rows(page: Page) -> Iterator[Sequence[object]]:
    """Exponents are at the scale shown; elements without one have an empty cell there."""
    yield "layer", "exponent", "zone", "elements"
    view = page.view
    for name, gradients in (("*", view.whole), *((layer.name, layer) for layer in view.layers)):
        yield name, "", "zero in the reference too", gradients.structural_zeros
        yield name, "", "came in as zero", gradients.lost_before
        for exponent, zone, elements in elements_by_zone(gradients.histogram, view.fmt):
            yield name, exponent, zone, elements
    yield "*", "", "inf", view.infs
    yield "*", "", "nan", view.nans


def _sweep_rows(page: Page) -> Iterator[Sequence[object]]:
    yield (
        "loss_scale",
        "exponent",
        "underflow_fraction",
        "bound",
        "overflowing_tensors",
        "overflowed_elements",
        "works",
    )
    for p in page.reading.points:
        yield (
            2**p.exponent,
            p.exponent,
            p.underflow_fraction,
            p.bound or "",
            p.overflowing,
            p.overflowed_elements,
            str(page.reading.works(p.exponent)).lower(),
        )


def _table(rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
