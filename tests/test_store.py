"""Traces in files: what goes in comes out, and what is no trace is refused with a reason."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticSerializationError

from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.plain import to_json
from ampdoctor.facts.site import Site
from ampdoctor.facts.stats import TensorStats
from ampdoctor.facts.trace import Trace, ZeroOrigin
from ampdoctor.files import TooLarge, write_atomically
from ampdoctor.store.codec import FileError, from_bytes, to_bytes
from ampdoctor.store.traces import SCHEMA, read_trace, write_trace
from trace_builder import bad_tensor, birth, candidate, raised, record, reference, step, trace


def read(document: dict[str, object]) -> Trace:
    """The trace in a file that holds this."""
    return from_bytes(Trace, json.dumps({"schema": SCHEMA, **document}).encode(), SCHEMA)


def rich_trace() -> Trace:
    """Every record type, every optional both ways, both infinities."""
    origin = ZeroOrigin(Site("forward", "head", "aten::rsub", 1), None, 3, 2.5e-4, None)
    return trace(
        bad_tensors=(bad_tensor(), bad_tensor(kind="parameter", name="w", batch=None, samples=None)),
        passes=(
            reference(loss=math.inf, sites=(record("fc", "aten::mm", 0, 3.0, dtype="float32"),)),
            candidate(loss=-math.inf, sites=(record("fc", "aten::mm", 0, None, inf=4, max=math.inf),)),
            candidate(loss=None, raised=raised(source=None, constant=-math.inf), parameters=()),
        ),
        births=(
            birth(zero_origin=origin, absorbed_at=step("final", "aten::reciprocal", "finite")),
            birth(
                id=1, origin="buffer", site=None, source=None, samples=None, exact_value=None, parents=(0,)
            ),
        ),
        deterministic=None,
    )


@pytest.mark.parametrize("name", ["scan.json", "scan.json.gz"])
def test_a_trace_comes_back_equal(tmp_path: Path, name: str) -> None:
    write_trace(rich_trace(), tmp_path / name)
    assert read_trace(tmp_path / name) == rich_trace()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_gz_is_compressed_and_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    write_trace(rich_trace(), first)
    write_trace(rich_trace(), second)
    assert first.read_bytes() == second.read_bytes()
    assert json.loads(gzip.decompress(first.read_bytes()))["schema"] == "ampdoctor.trace/1"


def test_non_finite_numbers_are_words_in_the_file(tmp_path: Path) -> None:
    before = rich_trace()
    odd = replace(before.passes[1], loss=math.nan)
    path = tmp_path / "scan.json"
    write_trace(replace(before, passes=(before.passes[0], odd, before.passes[2])), path)
    document = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert [p["loss"] for p in document["passes"]] == ["inf", "nan", None]
    assert document["passes"][1]["sites"][0]["stats"]["max"] == "inf"


def test_a_file_has_what_every_json_document_has(tmp_path: Path) -> None:
    path = tmp_path / "scan.json"
    write_trace(rich_trace(), path)
    assert json.loads(path.read_text()) == {"schema": SCHEMA, **to_json(rich_trace())}


def test_half_a_character_is_spelled_out(tmp_path: Path) -> None:
    """A name that no JSON holds: Python reads a file's name that is no UTF-8 so."""
    path = tmp_path / "scan.json"
    write_trace(trace(opaque_ops=("a\udc80", "é")), path)
    assert read_trace(path).opaque_ops == ("a\\udc80", "é")


floats = st.floats(allow_nan=False)
histograms = st.builds(
    ExponentHistogram,
    st.dictionaries(st.integers(-149, 128), st.integers(1, 10**12)),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(
    st.builds(
        TensorStats,
        dtype=st.text(),
        shape=st.lists(st.integers(0, 10**9)).map(tuple),
        min=st.none() | floats,
        max=st.none() | floats,
        absmax=st.none() | floats,
        nan=st.integers(0),
        inf=st.integers(0),
        zeros=st.integers(0),
        flushed=st.none() | st.integers(0),
        overflowed=st.none() | st.integers(0),
        histogram=histograms,
    )
)
def test_any_stats_survive_json(stats: TensorStats) -> None:
    assert from_bytes(TensorStats, to_bytes(stats, SCHEMA), SCHEMA) == stats


def test_nan_survives_json() -> None:
    stats = replace(rich_trace().passes[0].sites[0].stats, max=math.nan)
    read_back = from_bytes(TensorStats, to_bytes(stats, SCHEMA), SCHEMA)
    assert read_back.max is not None
    assert math.isnan(read_back.max)


def test_a_key_from_a_later_minor_version_is_passed_over() -> None:
    assert read(to_json(trace()) | {"temperature": 21}) == trace()


def test_a_missing_key_with_a_default_takes_it() -> None:
    document = to_json(trace())
    del document["interrupted"]
    assert read(document).interrupted is False


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a trace: it holds no readable JSON"),
        (b"{'a'", "is not a trace: it holds no readable JSON"),
        (b"[" * 100_000, "is not a trace: it holds no readable JSON"),
        (b"\x1f\x8b broken", "is not a trace: it cannot be unpacked"),
        (b"\x89PNG\xff", "is not a trace: it holds no readable JSON"),
        (b"[1, 2]", 'it has no "schema"'),
        (b'{"schema": "ampdoctor.report/1"}', "its \"schema\" is 'ampdoctor.report/1'"),
        (b'{"schema": "ampdoctor.trace/2"}', 'another version ("ampdoctor.trace/2")'),
        (b'{"schema": "ampdoctor.trace/1"}', "is damaged: environment is missing"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        read_trace(path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seconds": "soon"}, "seconds should be a number"),
        ({"seconds": True}, "seconds should be a number"),
        ({"seed": 1.5}, "seed should be a valid integer"),
        ({"seed": "5"}, "seed should be a valid integer"),
        ({"births": {}}, "births should be a valid array"),
        ({"environment": None}, "environment should be an object"),
        ({"interrupted": 1}, "interrupted should be a valid boolean"),
        ({"opaque_ops": [7]}, "opaque_ops[0] should be a valid string"),
    ],
)
def test_a_damaged_value_is_named(change: dict[str, object], reason: str) -> None:
    with pytest.raises(FileError) as caught:
        read(to_json(trace()) | change)
    assert str(caught.value) == f"is damaged: {reason}"


def test_a_value_that_nothing_can_be_reckoned_with_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(rich_trace(), path)
    whole = json.loads(path.read_text())
    run_at = whole["environment"]
    for change, reason in (
        (
            {"environment": {**run_at, "dtype": "float7"}},
            "environment.dtype is 'float7', no known format",
        ),
        ({"environment": {**run_at, "loss_scale": 0}}, "environment.loss_scale is 0.0, no loss scale"),
        (
            {"passes": [whole["passes"][0], {**whole["passes"][1], "loss_scale": "nan"}]},
            "passes[1].loss_scale is nan, no loss scale",
        ),
    ):
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(FileError) as caught:
            read_trace(path)
        assert str(caught.value) == f"is damaged: {reason}"


def test_a_damaged_value_deep_inside_has_its_whole_path() -> None:
    document = to_json(trace())
    document["passes"][1]["sites"][0]["stats"]["histogram"]["counts"] = {"zero": 1}
    with pytest.raises(FileError) as caught:
        read(document)
    where = "passes[1].sites[0].stats.histogram.counts.zero (the key)"
    assert str(caught.value).startswith(f"is damaged: {where} should be a valid integer")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "scan.json"
    path.write_text("old")
    with pytest.raises(PydanticSerializationError):
        write_trace(replace(trace(), seed=object()), path)  # type: ignore[arg-type]
    assert path.read_text() == "old"


def test_a_file_that_unpacks_without_end_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of zeros is a kilobyte packed; the limit stands at 100,000 here, to be quick."""
    monkeypatch.setattr("ampdoctor.store.traces._LARGEST", 100_000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(1_000_000)))
    with pytest.raises(TooLarge):
        read_trace(tmp_path / "bomb.gz")


@pytest.mark.parametrize("at", ["write_bytes", "replace"])
def test_a_process_killed_while_it_writes_leaves_the_old_file(at: str, tmp_path: Path) -> None:
    """SIGKILL inside the write, and between the write and the exchange of the files."""
    path = tmp_path / "trace.json"
    path.write_text("old")
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from ampdoctor.files import write_atomically\n"
        "def killed(self, data):\n"
        "    if sys.argv[2] == 'write_bytes': self.open('wb').write(data[:3])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "setattr(Path, sys.argv[2], killed)\n"
        "write_atomically(Path(sys.argv[1]), b'new and longer')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path), at], check=False)
    assert (ended.returncode, path.read_text()) == (-9, "old")
    write_atomically(path, b"new")
    assert path.read_text() == "new"
