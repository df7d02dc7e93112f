"""The words of the product's messages, as tests/messages/texts holds them; `make messages` takes them as they are now.

Other tests hold codes and fields, not words.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ACCEPT", "TEXTS", "blocks", "hold"]

ACCEPT = "ESTIMATOR_PIPELINE_ACCEPT_MESSAGES"
TEXTS = Path(__file__).resolve().parents[1] / "messages" / "texts"
_HEAD = "=== "


def blocks(text: str) -> dict[str, str]:
    """From a case to its message."""
    found = re.split(rf"^{_HEAD}(.+)\n", text, flags=re.MULTILINE)[1:]
    return {name: message.rstrip("\n") for name, message in zip(found[::2], found[1::2], strict=True)}


def hold(name: str, messages: Mapping[str, str]) -> None:
    """Holds messages against texts/NAME.txt, or writes them there where `ACCEPT` is set."""
    path = TEXTS / f"{name}.txt"
    text = "\n".join(f"{_HEAD}{case}\n{message}\n" for case, message in messages.items())
    if os.environ.get(ACCEPT):
        path.write_text(text, encoding="utf-8")
    known = path.read_text(encoding="utf-8") if path.is_file() else ""
    differ = "\n".join(difflib.unified_diff(known.splitlines(), text.splitlines(), path.name, "now", lineterm="", n=2))
    assert text == known, f"the messages are others; `make messages` accepts them:\n{differ}"
