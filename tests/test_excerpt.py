"""The lines around a line of the user's program."""

from __future__ import annotations

import linecache
from pathlib import Path

from ampdoctor.facts.excerpt import Excerpt, read_excerpt
from ampdoctor.facts.site import Source

PROGRAM = """\
import torch


class Block:
    def forward(self, x):
        if self.norm:
\t\tx = self.norm(x)
        return self.fc(x)

    def other(self):
        pass


LAST = 1
"""


def excerpt(tmp_path: Path, line: int, program: str = PROGRAM) -> Excerpt | None:
    file = tmp_path / "model.py"
    file.write_text(program)
    return read_excerpt(Source(str(file), line, program.splitlines()[line - 1].strip()))


def test_three_lines_on_each_side(tmp_path: Path) -> None:
    assert excerpt(tmp_path, 8) == Excerpt(
        5,
        (
            "def forward(self, x):",
            "    if self.norm:",
            "    x = self.norm(x)",
            "    return self.fc(x)",
            "",
            "def other(self):",
            "    pass",
        ),
    )


def test_it_stops_where_other_code_begins(tmp_path: Path) -> None:
    found = excerpt(tmp_path, 5)
    assert found is not None
    assert (found.first, found.lines[0]) == (4, "class Block:")
    found = excerpt(tmp_path, 11)
    assert found is not None
    assert found.lines[-1] == "    pass"


def test_at_the_ends_of_the_file(tmp_path: Path) -> None:
    first, last = excerpt(tmp_path, 1), excerpt(tmp_path, 14)
    assert first == Excerpt(1, ("import torch", "", "", "class Block:"))
    assert last is not None
    assert (last.first, last.lines[-1]) == (11, "LAST = 1")


def test_a_file_that_changed_since_shows_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("a = 1\nb = 2\n")
    source = Source(str(file), 2, "b = 2")
    assert read_excerpt(source) == Excerpt(1, ("a = 1", "b = 2"))
    file.write_text("# a new first line\na = 1\nb = 2\n")
    assert read_excerpt(source) is None


def test_what_is_not_there_shows_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("a = 1\n")
    assert read_excerpt(Source(str(tmp_path / "none.py"), 1, "a = 1")) is None
    assert read_excerpt(Source("<string>", 1, "a = 1")) is None
    assert read_excerpt(Source(str(file), 0, "a = 1")) is None
    assert read_excerpt(Source(str(file), 2, "a = 1")) is None
    assert read_excerpt(Source(str(file), 1, "")) is None


def test_the_cell_of_a_notebook() -> None:
    """Notebooks put their cells where tracebacks look for lines."""
    name, cell = "<ipython-input-7>", ["x = 1\n", "y = x / 0\n"]
    linecache.cache[name] = (11, None, cell, name)
    try:
        assert read_excerpt(Source(name, 2, "y = x / 0")) == Excerpt(1, ("x = 1", "y = x / 0"))
    finally:
        del linecache.cache[name]
