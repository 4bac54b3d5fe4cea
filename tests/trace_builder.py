"""Small traces by hand: sensible defaults, so that a test spells out only the facts it is about."""

from __future__ import annotations

import math
from typing import Any

from ampdoctor.facts.environment import Environment
from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.site import Site, Source
from ampdoctor.facts.stats import TensorStats
from ampdoctor.facts.trace import (
    BadTensor,
    Birth,
    ModuleRecord,
    OperandFact,
    ParameterGradient,
    Pass,
    Raised,
    SiteRecord,
    Step,
    Trace,
)


def source(line: int = 33, text: str = "return self.wo(h)", file: str = "model.py") -> Source:
    return Source(file, line, text, "forward")


def stats(absmax: float | None = 1.0, numel: int = 4, **changes: Any) -> TensorStats:
    """One FP16 tensor whose elements all have the magnitude ``absmax``."""
    exponent = math.floor(math.log2(absmax)) if absmax else 0
    counts = {exponent: numel} if absmax else {}
    values: dict[str, Any] = {
        "dtype": "float16",
        "shape": (numel,),
        "min": None if absmax is None else -absmax,
        "max": absmax,
        "absmax": absmax,
        "nan": 0,
        "inf": 0,
        "zeros": 0 if absmax else numel,
        "flushed": 0,
        "overflowed": 0,
        "histogram": ExponentHistogram(counts, zeros=0 if absmax else numel),
    }
    return TensorStats(**(values | changes))


def record(
    module: str, op: str, order: int, absmax: float | None = 1.0, phase: str = "forward", **changes: Any
) -> SiteRecord:
    """One site; keys of TensorStats (nan, inf, dtype ...) go to its stats, the rest to the record."""
    nth = changes.pop("nth", 0)
    own = {k: changes.pop(k) for k in list(changes) if k in SiteRecord.__dataclass_fields__}
    values: dict[str, Any] = {
        "site": Site(phase, module, op, nth),
        "order": order,
        "stats": stats(absmax, **changes),
        "source": source(),
    }
    return SiteRecord(**(values | own))


def parameter(name: str, **changes: Any) -> ParameterGradient:
    """A gradient that agrees with the reference."""
    values: dict[str, Any] = {
        "name": name,
        "numel": 100,
        "dtype": "float32",
        "absmax": 0.5,
        "nan": 0,
        "inf": 0,
        "zeros": 0,
        "reference_absmax": 0.5,
        "reference_nonzero": 100,
        "lost": 0,
        "relative_error": 0.001,
        "cosine": 1.0,
        "reference_norm": 1.0,
    }
    return ParameterGradient(**(values | changes))


def reference(**changes: Any) -> Pass:
    values: dict[str, Any] = {
        "role": "reference",
        "batch": 0,
        "mode": "none",
        "dtype": "float32",
        "loss_scale": 1.0,
        "loss": 2.0,
        "loss_dtype": "float32",
        "raised": None,
        "sites": (),
        "parameters": (parameter("w"),),
        "seconds": 0.25,
        "backward_ran": True,
    }
    return Pass(**(values | changes))


def candidate(**changes: Any) -> Pass:
    values: dict[str, Any] = {
        "role": "candidate",
        "mode": "autocast",
        "dtype": "float16",
        "loss_scale": 65536.0,
    }
    return reference(**(values | changes))


def operand(**changes: Any) -> OperandFact:
    values: dict[str, Any] = {
        "dtype": "float16",
        "shape": (3, 4),
        "absmax": 1204.0,
        "zeros": 0,
        "infs": 0,
        "nans": 0,
        "made_by": None,
    }
    return OperandFact(**(values | changes))


def step(module: str, op: str, value: str = "inf", phase: str = "forward", line: int = 40) -> Step:
    return Step(phase, module, op, source(line, "x = x + y"), value, 100)


def birth(
    module: str = "blocks.1.ff.wo", op: str = "aten::mm", phase: str = "forward", **changes: Any
) -> Birth:
    """An FP16 matmul that leaves the range and reaches the loss."""
    values: dict[str, Any] = {
        "id": 0,
        "origin": "op",
        "batch": 0,
        "loss_scale": 65536.0,
        "value": "inf",
        "dtype": "float16",
        "order": 10,
        "site": Site(phase, module, op, 0),
        "source": source(),
        "backward_source": None,
        "forward_op": "",
        "implicit_cast": False,
        "name": "",
        "shape": (2, 3, 256),
        "index": (0, 3, 7),
        "count": 18,
        "samples": (0,),
        "exact_value": 66246.1,
        "rerun": "finite",
        "reference": "finite",
        "reference_value": 66240.0,
        "operands": (operand(), operand(absmax=46.1)),
        "constant": None,
        "zero_origin": None,
        "parents": (),
        "reaches_loss": True,
        "reaches_gradients": ("w",),
        "path": (
            step("blocks.1", "aten::add"),
            step("final", "aten::mul", "nan"),
            step("", "aten::nll_loss_forward", "nan"),
        ),
        "absorbed_at": None,
    }
    return Birth(**(values | changes))


def bad_tensor(**changes: Any) -> BadTensor:
    values: dict[str, Any] = {
        "kind": "batch",
        "name": '["ctx"]',
        "batch": 0,
        "dtype": "float32",
        "shape": (4, 8),
        "nan": 3,
        "inf": 0,
        "index": (3, 2),
        "samples": (3,),
    }
    return BadTensor(**(values | changes))


def raised(**changes: Any) -> Raised:
    values: dict[str, Any] = {
        "type": "RuntimeError",
        "message": "value cannot be converted to type at::Half without overflow",
        "phase": "forward",
        "module": "attn",
        "op": "aten::masked_fill",
        "source": source(21, "scores = scores.masked_fill(keep == 0, -1e9)"),
        "emulated_refusal": False,
        "constant": -1e9,
        "traceback": "",
    }
    return Raised(**(values | changes))


def environment(**changes: Any) -> Environment:
    values: dict[str, Any] = {
        "tool_version": "0.1.0",
        "torch_version": "2.13.0",
        "python_version": "3.11.9",
        "device": "cpu",
        "device_name": "",
        "emulates": "cuda",
        "mode": "autocast",
        "dtype": "float16",
        "loss_scale": 65536.0,
        "title": "t5.yaml",
        "forward_only": False,
        "batches": 1,
        "trainable_parameters": 1000,
    }
    return Environment(**(values | changes))


def module(path: str, type: str = "Linear", calls: int = 1, **changes: Any) -> ModuleRecord:
    values: dict[str, Any] = {"parameters": 12, "opaque": False, "compiled": False}
    return ModuleRecord(path=path, type=type, calls=calls, **(values | changes))


def trace(**changes: Any) -> Trace:
    """A healthy scan of one linear layer."""
    values: dict[str, Any] = {
        "environment": environment(),
        "modules": (module("", "Net"), module("fc")),
        "bad_tensors": (),
        "passes": (
            reference(sites=(record("fc", "aten::mm", 0, dtype="float32"),)),
            candidate(sites=(record("fc", "aten::mm", 0),)),
        ),
        "births": (),
        "opaque_ops": (),
        "refused_ops": (),
        "deterministic": True,
        "observer_changed_loss": False,
        "seed": 0,
        "seconds": 1.9,
    }
    return Trace(**(values | changes))
