"""The report as JSON: the documented keys, null for what does not exist, strict JSON throughout."""

from __future__ import annotations

import json
import math
from typing import Any

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.render import FORMATS, Options
from trace_builder import birth, candidate, module, parameter, raised, record, reference, trace


def document(**changes: Any) -> Any:
    def no_constants(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = FORMATS["json"](diagnose(trace(**changes)), Options())
    assert text.endswith("}\n")
    return json.loads(text, parse_constant=no_constants)


def overflow() -> Any:
    sites = (
        record("fc", "aten::mm", 0, 2.0),
        record("blocks.1.ff.wo", "aten::mm", 10, 60000.0, inf=18),
        record("fc", "aten::mm", 12, 16.0, phase="backward"),
    )
    sick = candidate(loss=math.nan, sites=sites, parameters=(parameter("w", relative_error=math.inf),))
    modules = (module("fc"), module("blocks.1.ff.wo"))
    return document(modules=modules, births=(birth(),), passes=(reference(), sick))


def test_the_documented_keys_are_there() -> None:
    report = overflow()
    assert report["schema"] == "ampdoctor.report/1"
    assert report["tool"] == {"version": "0.1.0"}
    for key, value in {
        "device": "cpu", "emulates": "cuda", "torch": "2.13.0", "dtype": "float16", "mode": "autocast",
    }.items():  # fmt: skip
        assert report["environment"][key] == value
    assert report["verdict"] == "forward-overflow"
    fault = report["first_fault"]
    assert {key: fault[key] for key in FAULT} == FAULT
    assert fault["source"] | {"function": ""} == {
        "file": "model.py", "line": 33, "text": "return self.wo(h)", "function": "",
    }  # fmt: skip
    assert fault["path"][0] == "blocks.1 add (model.py:40): inf"
    layer = next(row for row in report["layers"] if row["module"] == "fc")
    assert set(layer) >= {"module", "type", "calls", "forward", "gradient"}
    assert set(layer["forward"]) == {"min", "max", "absmax", "headroom_bits", "nan", "inf"}
    assert set(layer["gradient"]) == {"absmax", "underflow_fraction", "subnormal_fraction", "nan", "inf"}
    (row,) = report["parameters"]
    assert row["name"] == "w"
    assert set(row["gradient"]) == {"absmax", "underflow_fraction", "lost_fraction", "relative_error"}
    finding = report["findings"][0]
    assert set(finding) >= {"code", "severity", "module", "op", "source", "message", "evidence", "remedy"}


FAULT = {
    "phase": "forward",
    "value": "inf",
    "cause": "range",
    "module": "blocks.1.ff.wo",
    "op": "aten::mm",
    "exact_value": 66246.1,
    "index": [0, 3, 7],
    "batch": 0,
    "sample": 0,
    "fp32_also_fails": False,
}


def test_the_scale_is_not_recommended_before_it_is_measured() -> None:
    loss_scale = document()["loss_scale"]
    assert {key: loss_scale[key] for key in UNKNOWN} == UNKNOWN
    assert loss_scale["lost_fraction"] == {"65536": 0.0}


UNKNOWN = {
    "configured": 65536.0,
    "recommended": None,
    "window": None,
    "limited_by": None,
    "verified": False,
    "underflow_fraction": {},
    "searched": False,
}


def test_a_scale_that_overflows_has_no_share() -> None:
    sick = candidate(parameters=(parameter("w", inf=1),))
    assert document(passes=(reference(), sick))["loss_scale"]["lost_fraction"] == {"65536": None}


def test_what_does_not_exist_is_null_and_infinity_is_a_word() -> None:
    report = overflow()
    assert report["losses"] == [{"batch": 0, "reference": 2.0, "candidate": "nan"}]
    assert report["parameters"][0]["gradient"]["relative_error"] == "inf"
    assert report["parameters"][0]["gradient"]["underflow_fraction"] is None
    wo = next(row for row in report["layers"] if row["module"] == "blocks.1.ff.wo")
    assert wo["gradient"] is None


def test_a_clean_report_has_no_first_fault() -> None:
    assert document()["first_fault"] is None


def test_an_exception_has_neither_value_nor_element() -> None:
    refused = raised(constant=None, source=None)
    fault = document(passes=(reference(), candidate(loss=None, raised=refused)))["first_fault"]
    assert (fault["value"], fault["cause"], fault["index"], fault["sample"], fault["source"]) == (None,) * 5
