"""Text of others on a terminal: a log, an exception, a job's name may hold what a terminal would obey.

Such sequences set a window's title, write to the clipboard, make links, move the cursor over what was shown, or have
the terminal type (ECMA-48 and xterm's control sequences: https://invisible-island.net/xterm/ctlseqs/ctlseqs.html).
"""

from __future__ import annotations

import re

__all__ = ["harmless"]

_SEQUENCE = re.compile(
    # Commands to the terminal itself, to their end or to that of the line: OSC, DCS, SOS, PM, APC.
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    # Control sequences: cursor, erasing, modes, reports; and colours, which are kept.
    r"|(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~]?)"
    # Two characters and a few more.
    r"|\x1b[ -/]*[0-~]?"
    # What is left of control characters, all but tab and line feed.
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_COLOURS = re.compile(r"[0-9;:]*")


def harmless(text: str) -> str:
    """The text without what a terminal would obey; colours stay."""
    return _SEQUENCE.sub(_kept, text)


def _kept(found: re.Match[str]) -> str:
    return found[0] if found["final"] == "m" and _COLOURS.fullmatch(found["parameters"]) else ""
