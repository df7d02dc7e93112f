"""The rules of the converter, by the names that the rows of the catalogue give them.

The scan says "automatic" of a construct where its row names a rule, the rule is registered here, and the rule accepts
the construct as it stands in the program; or where a general rule, which asks every construct, does. So the scan cannot
promise what the converter does not do.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["GENERAL", "RULES", "GeneralRule", "RenameRule", "decide", "register", "register_general"]


class RenameRule(Protocol):
    """How one construct is converted."""

    name: str

    def refuses(self, construct: Any) -> str:
        """Why this one cannot be converted, in a sentence; "" where it can."""


class GeneralRule(RenameRule, Protocol):
    """A rule that no row names: it looks at every construct."""

    def concerns(self, construct: Any) -> bool:
        """Whether the construct is this rule's business at all."""

    def writes(self, construct: Any) -> str:
        """What stands there afterwards, in a few words."""


RULES: dict[str, RenameRule] = {}
"""Name -> rule, by the names of the catalogue's rows."""

GENERAL: dict[str, GeneralRule] = {}
"""Name -> rule that looks at every construct; asked in this order, after the rule of the row."""


def register(rule: RenameRule) -> RenameRule:
    """Add a rule; a name can be taken once."""
    _free(rule.name)
    RULES[rule.name] = rule
    return rule


def register_general(rule: GeneralRule) -> GeneralRule:
    """Add a rule that looks at every construct; a name can be taken once."""
    _free(rule.name)
    GENERAL[rule.name] = rule
    return rule


def _free(name: str) -> None:
    if name in RULES or name in GENERAL:
        raise ValueError(f"the rule {name!r} is registered already")


def decide(construct: Any) -> tuple[str, str, str]:
    """(rule, what it writes, refusal): a rule's name where one converts the construct, a sentence where it refuses."""
    refused = ""
    if construct.row.rule in RULES:
        refused = RULES[construct.row.rule].refuses(construct)
        if not refused:
            return construct.row.rule, "", ""
    for name, rule in GENERAL.items():
        if rule.concerns(construct):
            no = rule.refuses(construct)
            if not no:
                return name, rule.writes(construct), ""
            refused = refused or no
    return "", "", refused
