"""Reader of shell scripts: plain assignments and plain command lines. No shell expands or runs anything.

All else (loops, conditions, functions, sourced files, ...) is only listed, and a variable that it may set has no known
value after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from estimator_pipeline.migrate.configs.formats.shell_words import LISTS, VARIABLE, Word, split_commands, value_of

__all__ = ["ASSIGNMENT", "KEYWORDS", "read_commands"]

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# Expansions that may set a variable: ${A:=1}, $((A=1)), $[A=1].
_SETTING = re.compile(r"\$\{[^}]*=|\$\(\([^)]*(?:[^=!<>]=[^=]|\+\+|--)|\$\[")
_OPENING, _CLOSING = ("if", "for", "while", "until", "case", "select", "{", "function"), ("fi", "done", "esac", "}")
KEYWORDS = (*_OPENING, *_CLOSING, "then", "else", "elif", "do", "!", "time")
# Commands after which later assignments are not certain either: they set attributes or run at later commands.
_LASTING = ("alias", "declare", "eval", "local", "readonly", "shopt", "trap", "typeset")
# Commands that set no variable of the script. A path is a separate program, which cannot.
_HARMLESS = re.compile(
    r"wait|set [-+][euxoC]+( pipefail| errexit| nounset| xtrace)*|(\[|cd|echo|mkdir|rm|ls|cp|mv|ln|cat|tee|date|sleep|"
    r"true|test|git|pip3?|conda|module|ulimit|tensorboard|apt-get|nvidia-smi|hostname|chmod|tar|gsutil|aws|gcloud|srun|"
    r"mpirun|mpiexec|horovodrun|nohup|env|exec|nice|timeout|sudo|docker|python[\d.]*|[^\s$`'\"]*/[^\s]*)( .*)?",
    re.DOTALL,
)


def read_commands(text: str, *, source: str) -> Iterator[tuple[list[Word], bool]]:
    """Yield the commands and assignments of a script in order, with the values of plain variables.

    Yields:
        The words, and whether the command is plain: outside of control flow, lists and pipelines.

    Raises:
        ConfigError: A quote is not closed.
    """
    known: dict[str, str] = {}
    blocks = parentheses = 0
    certain = True
    for words, before, after in split_commands(text, source=source):
        parentheses = max(0, parentheses + (before == "(") - (before == ")"))
        names = [word.text for word in words if not word.redirection]
        # A function may be called by any later command.
        certain &= not (after == "(" and names and not names[-1].endswith("="))
        if any(_SETTING.search(word.text) for word in words):
            known.clear()
        while names and names[0] in KEYWORDS:
            keyword = names.pop(0)
            blocks += (keyword in _OPENING) - (keyword in _CLOSING)
            certain &= blocks >= 0 and keyword != "function"
            if keyword in ("for", "select", "case"):
                known.pop("".join(names[:1]), None)
                names = []
        straight = certain and blocks == parentheses == 0
        plain = straight and not {before, after} & {*LISTS, "(", ")"} and after != "&"
        start = next((i for i, name in enumerate(names) if not ASSIGNMENT.fullmatch(name)), len(names))
        export = names[:1] == ["export"] and not any(name.startswith("-") for name in names)
        assigned: dict[str, str | None] = {}
        valued = []
        for word in words:
            usable = {name: value for name, value in known.items() if straight and name not in assigned}
            value = value_of(word.text, usable, whole=start == len(names))
            variable = VARIABLE.fullmatch(word.text)
            held = usable.get(variable[1] or variable[2]) if variable and value is None else None
            # The shell splits the value of an unquoted variable into words, which may be none.
            split = held.split() if held and not re.search(r"[*?\[\]~\\]", held) else [value]
            valued += [word._replace(value=part) for part in split]
            if (start == len(names) or export) and (pair := ASSIGNMENT.fullmatch(word.text)):
                assigned[pair[1]] = value.partition("=")[2] if value is not None and plain else None
        if words:
            yield valued, plain
        for name, value in assigned.items():
            known.pop(name, None)
            certain &= name != "IFS"
            if value is not None:
                known[name] = value
        if names[start:] and not export and not _HARMLESS.fullmatch(" ".join(names[start:])):
            known.clear()
            certain &= names[start] not in _LASTING
