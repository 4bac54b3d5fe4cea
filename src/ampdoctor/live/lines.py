"""The user's lines around an event: the innermost, the loop's own, the ``if`` that it stands under."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from types import CodeType, FrameType

from ampdoctor.facts.site import Source
from ampdoctor.probe.watch.location import CALLS_USER_CODE, Line, _is_user_code, source_of

Stack = tuple[Line, ...]
"""The user's lines, innermost first."""


def user_stack(depth: int = 12) -> Stack:
    """The user's lines that led here, innermost first, at most ``depth``."""
    frame: FrameType | None = sys._getframe(1)
    lines: list[Line] = []
    while frame is not None and len(lines) < depth:
        if _is_user_code(frame):
            lines.append((frame.f_code, frame.f_lineno))
        elif CALLS_USER_CODE in frame.f_globals:
            break
        frame = frame.f_back
    return tuple(lines)


def loop_line(stack: Stack, other: Stack) -> Line | None:
    """The line of ``stack`` in the innermost function that both stacks have in common; None for none."""
    common: Line | None = None
    for line, theirs in zip(reversed(stack), reversed(other), strict=False):
        if line[0] is not theirs[0]:
            break
        common = line
        if line[1] != theirs[1]:
            break
    return common


def condition_of(line: Line | None) -> Source | None:
    """The innermost ``if`` in the same function whose body holds the line."""
    if line is None:
        return None
    code, number = line
    found = [(start, first) for start, first, last in _ifs(code.co_filename, code) if first <= number <= last]
    if not found:
        return None
    return source_of((code, max(found)[0]))


@functools.cache
def _ifs(file: str, code: CodeType) -> tuple[tuple[int, int, int], ...]:
    """(line, first line of the body, last line) of each ``if`` in the function that ``code`` is of."""
    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # not Python's own source, such as a notebook's cell
        return ()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    scope: ast.AST = tree
    for node in ast.walk(tree):
        # a decorated function's code begins at its decorator
        if isinstance(node, functions) and code.co_name in (getattr(node, "name", "<lambda>"),):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            if first == code.co_firstlineno:
                scope = node
    found = []
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        if isinstance(node, (*functions, ast.ClassDef)):
            continue
        if isinstance(node, ast.If) and not _is_main_guard(node):
            found.append((node.lineno, node.body[0].lineno, node.body[-1].end_lineno or 0))
        pending += ast.iter_child_nodes(node)
    return tuple(found)


def _is_main_guard(node: ast.If) -> bool:
    return "__name__" in ast.unparse(node.test)
