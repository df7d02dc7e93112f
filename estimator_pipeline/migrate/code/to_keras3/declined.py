"""Why a program does not become one of Keras 3."""

from __future__ import annotations

__all__ = ["Declined"]


class Declined(Exception):
    """Why a program does not become one of Keras 3.

    Attributes:
        construct: as the text spells it; "" where `pattern` says how the user's file does.
        reason: why.
        pattern: a regular expression.
    """

    def __init__(self, construct: str, reason: str, pattern: str = "") -> None:
        super().__init__(reason)
        self.construct, self.reason, self.pattern = construct, reason, pattern
