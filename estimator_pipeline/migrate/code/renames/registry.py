"""The registry of the converter's rules, by the rule names in the catalogue.

The scan reports a construct as "automatic" if the rule of its row is registered here and accepts the construct, or if
a general rule accepts it. Scan and converter use the same decision, so the scan promises no more than the converter
does.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["GENERAL", "RULES", "GeneralRule", "RenameRule", "decide", "register", "register_general"]


class RenameRule(Protocol):
    """A rule that converts one construct of the catalogue."""

    name: str

    def refuses(self, construct: Any) -> str:
        """Return why a construct cannot be converted, in a sentence; "" if it can."""


class GeneralRule(RenameRule, Protocol):
    """A rule that is not tied to a row and checks every construct."""

    def concerns(self, construct: Any) -> bool:
        """Return whether the rule applies to a construct."""

    def writes(self, construct: Any) -> str:
        """Return a short description of the converted code."""


RULES: dict[str, RenameRule] = {}
"""Name -> rule, as named in the rows of the catalogue."""

GENERAL: dict[str, GeneralRule] = {}
"""Name -> rule that checks every construct, in this order, after the rule of the row."""


def register(rule: RenameRule) -> RenameRule:
    """Register a rule under its unique name."""
    _free(rule.name)
    RULES[rule.name] = rule
    return rule


def register_general(rule: GeneralRule) -> GeneralRule:
    """Register a rule that checks every construct, under its unique name."""
    _free(rule.name)
    GENERAL[rule.name] = rule
    return rule


def _free(name: str) -> None:
    if name in RULES or name in GENERAL:
        raise ValueError(f"the rule {name!r} is registered already")


def decide(construct: Any) -> tuple[str, str, str]:
    """Return (rule, description of the converted code, reason why no rule converts the construct)."""
    reason = ""
    if construct.row.rule in RULES:
        reason = RULES[construct.row.rule].refuses(construct)
        if not reason:
            return construct.row.rule, "", ""
    for name, rule in GENERAL.items():
        if rule.concerns(construct):
            general_reason = rule.refuses(construct)
            if not general_reason:
                return name, rule.writes(construct), ""
            reason = reason or general_reason
    return "", "", reason
