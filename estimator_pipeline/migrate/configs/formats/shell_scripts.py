"""Reader of shell scripts: plain assignments and plain command lines. No shell expands or runs anything.

All else (loops, conditions, functions, sourced files, ...) is only listed, and a variable that it may set has no known
value after it. Grammar: https://pubs.opengroup.org/onlinepubs/9699919799/utilities/V3_chap02.html. The standard
library's shlex removes quotes without a trace, but `'$LR'` is text and `$LR` is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from estimator_pipeline.errors import ConfigError

__all__ = ["ASSIGNMENT", "Word", "read_commands"]

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_QUOTES = _SUBSTITUTION = "(?!)"
for _ in range(3):  # nested, as in "$(cd "$(dirname "$0")" && pwd)"
    _QUOTES = rf'"(?:[^"\\`$]|\\.|\$(?!\()|`[^`"]*`|{_SUBSTITUTION})*"'
    _SUBSTITUTION = rf"\$\((?:[^()'\"`\\$]|\\.|'[^']*'|\$(?!\()|{_QUOTES}|{_SUBSTITUTION})*\)"
_VARIABLE = r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})"
_SHELL = (
    rf"\$'(?:[^'\\]|\\.)*'|\$\(\([^'\"`()]*\)\)|{_SUBSTITUTION}|`[^`]*`|\$\{{[^{{}}'\"`\\]*\}}|"
    r"\$[^'\"({ \t\n]?|[{}*?\[\]~]"
)
_PIECE = re.compile(rf"[^ \t\n'\"\\$`;&|<>(){{}}*?\[\]~]+|\\.|'[^']*'|{_QUOTES}|{_VARIABLE}|{_SHELL}", re.DOTALL)
_QUOTED_PIECE = re.compile(rf"[^\\$`]+|\\[\\$\"`\n]?|{_VARIABLE}|[$`]", re.DOTALL)
_TOKEN = re.compile(
    rf"(?P<blank>[ \t]+|\\\n|#[^\n]*)|(?P<redirection>(?:\d*[<>]|&>)[<>&|]*[ \t]*)|"
    rf"(?P<operator>&&|\|\||;;|[;&|()\n])|(?P<word>(?:{_PIECE.pattern})+)|(?P<unreadable>[^\n]+)",
    re.DOTALL,
)
_HEREDOC = re.compile(r"(<<-?[ \t]*(['\"\\]?)(\w+)[^\n]*)\n((?:[^\n]*\n)*?)[ \t]*\3[ \t]*(?=\n|\Z)")
# An unquoted variable with such a value is one word: the shell neither splits it nor reads it as a pattern.
_ONE_WORD = re.compile(r"[^ \t\n*?\[\]~\\]+")
# Expansions that may set a variable: ${A:=1}, $((A=1)), $[A=1].
_SETTING = re.compile(r"\$\{[^}]*=|\$\(\([^)]*(?:[^=!<>]=[^=]|\+\+|--)|\$\[")
_OPENING, _CLOSING = ("if", "for", "while", "until", "case", "select", "{", "function"), ("fi", "done", "esac", "}")
_KEYWORDS = (*_OPENING, *_CLOSING, "then", "else", "elif", "do", "!", "time")
# Commands after which later assignments are not certain either: they set attributes or run at later commands.
_LASTING = ("alias", "declare", "eval", "local", "readonly", "shopt", "trap", "typeset")
# Commands that set no variable of the script. A path is a separate program, which cannot.
_HARMLESS = re.compile(
    r"wait|set [-+][euxoC]+( pipefail| errexit| nounset| xtrace)*|(\[|cd|echo|mkdir|rm|ls|cp|mv|ln|cat|tee|date|sleep|"
    r"true|test|git|pip3?|conda|module|ulimit|tensorboard|apt-get|nvidia-smi|hostname|chmod|tar|gsutil|aws|gcloud|srun|"
    r"mpirun|mpiexec|horovodrun|nohup|env|exec|nice|timeout|sudo|docker|python[\d.]*|[^\s$`'\"]*/[^\s]*)( .*)?",
    re.DOTALL,
)


class Word(NamedTuple):
    """A word as it is written, its line, and its value; None: only the shell can compute it."""

    text: str
    line: int
    value: str | None = None
    redirection: bool = False


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
    for words, before, after in _split(text, source):
        parentheses = max(0, parentheses + (before == "(") - (before == ")"))
        names = [word.text for word in words if not word.redirection]
        # A function may be called by any later command.
        certain &= not (after == "(" and names and not names[-1].endswith("="))
        if any(_SETTING.search(word.text) for word in words):
            known.clear()
        while names and names[0] in _KEYWORDS:
            keyword = names.pop(0)
            blocks += (keyword in _OPENING) - (keyword in _CLOSING)
            certain &= blocks >= 0 and keyword != "function"
            if keyword in ("for", "select", "case"):
                known.pop("".join(names[:1]), None)
                names = []
        straight = certain and blocks == parentheses == 0
        plain = straight and not {before, after} & {"&&", "||", "|", "(", ")"} and after != "&"
        start = next((i for i, name in enumerate(names) if not ASSIGNMENT.fullmatch(name)), len(names))
        export = names[:1] == ["export"] and not any(name.startswith("-") for name in names)
        assigned: dict[str, str | None] = {}
        valued = []
        for word in words:
            usable = {name: value for name, value in known.items() if straight and name not in assigned}
            value = _value(word.text, usable, whole=start == len(names))
            variable = re.fullmatch(_VARIABLE, word.text)
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


def _split(text: str, source: str) -> Iterator[tuple[list[Word], str, str]]:
    """Yield the words of each command, and the operators before and after it."""
    # The lines of a here-document are text. They become empty, so that the numbers of lines remain.
    text = _HEREDOC.sub(lambda match: match[1] + "\n" * match[0].count("\n"), text)
    words: list[Word] = []
    line, before, redirection = 1, "\n", ""
    for token in _TOKEN.finditer(text + "\n"):
        if token["unreadable"]:
            raise ConfigError(
                f"{source}, line {line}: a quote is not closed, or the last line is continued.",
                code="file/bad-format",
                found=f"{token[0]!r:.70}",
                hint="close the quote, or complete the line.",
            )
        if token["redirection"]:
            redirection = token[0]
        elif token["word"]:
            words.append(Word(redirection + token[0], line, None, bool(redirection)))
            redirection = ""
        elif token["operator"]:
            yield words, before, token[0]
            words, before, redirection = [], token[0], ""
        line += token[0].count("\n")


def _value(text: str, known: Mapping[str, str], *, whole: bool) -> str | None:
    """Return a word without quotes and with its variables replaced; None: only the shell can compute it."""

    def replaced(piece: re.Match[str], whole: bool = whole) -> str:
        first, name = piece[0][0], piece[1] or piece[2]
        if name and (whole or _ONE_WORD.fullmatch(known[name])):
            return known[name]
        if first in "$`" or (piece.re is _PIECE and first in "{}*?[]~"):
            raise KeyError(piece[0])
        if first == '"' and piece.re is _PIECE:
            return _QUOTED_PIECE.sub(lambda inner: replaced(inner, True), piece[0][1:-1])
        if first == "'" and piece.re is _PIECE:
            return piece[0][1:-1]
        return piece[0][1:].strip("\n") if first == "\\" and len(piece[0]) > 1 else piece[0]

    try:
        return _PIECE.sub(replaced, text)
    except KeyError:
        return None
