"""Whether a line of code converts a tensor itself: its cast is then the user's and not autocast's.

Read from the text: while a dispatch mode runs, torch hides whether an autocast kernel made the call.
"""

from __future__ import annotations

import functools
import io
import tokenize

from ampdoctor.facts.site import Source

_METHODS = frozenset({"to", "half", "bfloat16", "float", "double", "type", "type_as"})


def line_converts(source: Source | None) -> bool:
    """A call of a method that converts, or a dtype by name, in its code: comments and texts say nothing."""
    return source is not None and _converts(source.text)


@functools.cache
def _converts(text: str) -> bool:
    words = _words(text)
    if any(word == "dtype" or word.endswith("_dtype") for word in words):
        return True
    return any(
        before == "." and word in _METHODS and after == "("
        for before, word, after in zip(words, words[1:], words[2:], strict=False)
    )


def _words(text: str) -> list[str]:
    """The line's names and signs."""
    words = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NAME, tokenize.OP):
                words.append(token.string)
    except (tokenize.TokenError, SyntaxError):  # One line of a statement that goes on below.
        pass
    return words
