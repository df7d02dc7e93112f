"""The error that reports why a program cannot be converted to Keras 3."""

from __future__ import annotations

__all__ = ["NotInKeras3"]


class NotInKeras3(Exception):
    """The program cannot be converted to Keras 3.

    Attributes:
        construct: The unsupported construct as written in the Keras 2 text; "" if only `pattern` is known.
        reason: Why it is not convertible.
        pattern: A regular expression that finds the construct in the user's file.
    """

    def __init__(self, construct: str, reason: str, pattern: str = "") -> None:
        super().__init__(reason)
        self.construct, self.reason, self.pattern = construct, reason, pattern
