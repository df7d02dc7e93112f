"""Removal of terminal control sequences from untrusted text, such as logs.

Such sequences can set the window title, write to the clipboard, create links, move the cursor over earlier output, or
simulate keyboard input (ECMA-48 and xterm: https://invisible-island.net/xterm/ctlseqs/ctlseqs.html).
"""

from __future__ import annotations

import re

__all__ = ["harmless"]

_SEQUENCE = re.compile(
    # OSC, DCS, SOS, PM and APC strings, up to their terminator or the end of the line.
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    # CSI sequences: cursor, erasing, modes, reports, and colours, which are kept.
    r"|(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~]?)"
    # Short escape sequences.
    r"|\x1b[ -/]*[0-~]?"
    # Other control characters, except tab and line feed.
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_COLOURS = re.compile(r"[0-9;:]*")


def harmless(text: str) -> str:
    """Remove control sequences from a text, except colours."""
    return _SEQUENCE.sub(_keep_colours, text)


def _keep_colours(match: re.Match[str]) -> str:
    return match[0] if match["final"] == "m" and _COLOURS.fullmatch(match["parameters"]) else ""
