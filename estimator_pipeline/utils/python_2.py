"""Python 2 syntax that Python 3 cannot parse."""

from __future__ import annotations

import re

__all__ = ["why_not_python_3"]

_PYTHON_2 = (
    (r"^\s*print\s+[^(\s=]|^\s*print\s*>>|;\s*print\s+['\"]|:\s*print\s+['\"\w]", "a print statement of Python 2"),
    (r"except\s+[\w.()\s,]+,\s*\w+\s*:", "an except clause of Python 2"),
    (r"`", "backticks of Python 2, which are repr()"),
    (r"^\s*exec\s+[^(]", "an exec statement of Python 2"),
    (r"^\s*raise\s+[\w.]+\s*,", "a raise statement of Python 2, with a comma"),
    (r"\b0[0-7]+\b", "an octal number of Python 2, which is 0o..."),
    (r"<>", "the operator <> of Python 2, which is !="),
    (r"\bur['\"]", "a text ur'...' of Python 2"),
    (r"\d[lL]\b", "a long number of Python 2, with an L"),
)


def why_not_python_3(line: str, message: str) -> str:
    """Return why a line cannot be parsed, from its Python 2 syntax or else from the message of Python's parser."""
    for pattern, why in _PYTHON_2:
        if re.search(pattern, line):
            return why
    if "tab" in message:
        return "tabs and spaces are mixed in its indentation"
    return f"the syntax is not that of Python 3: {message}" if message else "the syntax is not that of Python 3"
