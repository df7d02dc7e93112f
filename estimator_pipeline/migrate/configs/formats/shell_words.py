"""Words of a shell script, as the POSIX shell and bash divide and quote them.

Grammar: https://pubs.opengroup.org/onlinepubs/9699919799/utilities/V3_chap02.html. The standard library's shlex removes
quotes without a trace, but `'$LR'` is text and `$LR` is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from estimator_pipeline.migrate.configs.documents import bad

__all__ = ["LISTS", "VARIABLE", "Word", "split_commands", "value_of"]

LISTS = ("&&", "||", "|", "|&")
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
    rf"(?P<blank>[ \t]+|\\\n|#[^\n]*)|(?P<redirection>(?:\d*<<-|(?:\d*[<>]|&>)[<>&|]*)[ \t]*)|"
    rf"(?P<operator>&&|\|[|&]?|;;|[;&()\n])|(?P<word>(?:{_PIECE.pattern})+)|(?P<unreadable>[^\n]+)",
    re.DOTALL,
)
VARIABLE = re.compile(_VARIABLE)
_HEREDOC = re.compile(r"\d*<<-?[ \t]*")
# An unquoted variable with such a value is one word: the shell neither splits it nor reads it as a pattern.
_ONE_WORD = re.compile(r"[^ \t\n*?\[\]~\\]+")


class Word(NamedTuple):
    """A word as it is written, its line, and its value; None: only the shell can compute it."""

    text: str
    line: int
    value: str | None = None
    redirection: bool = False


def split_commands(text: str, *, source: str) -> Iterator[tuple[list[Word], str, str]]:
    """Yield the words of each command, and the operators before and after it.

    Raises:
        ConfigError: A quote is not closed.
    """
    words: list[Word] = []
    line, before, redirection = 1, "\n", ""
    text += "\n"
    at = heredocs = 0  # the end of the last here-document
    while token := _TOKEN.match(text, at):
        at = token.end()
        if token["unreadable"]:
            problem = f"{source}, line {line}: a quote is not closed, or the last line is continued"
            raise bad(problem, f"{token[0]!r:.70}", "close the quote, or complete the line")
        if token["redirection"]:
            redirection = token[0]
        elif token["word"]:
            shown = redirection + token[0]
            if _HEREDOC.fullmatch(redirection) and not token[0].isdigit():  # not ((1 << 2))
                start = max(heredocs, re.compile(r"(?<!\\)\n").search(text, at).end())  # type: ignore[union-attr]
                heredocs = _end_of_heredoc(text, start, shown, f"{source}, line {line}")
                shown += "\n" + text[start:heredocs]
            elif re.search(r"\$\((?!\().*<<(?!<)|`.*<<(?!<)", token[0], re.DOTALL):
                problem = f"{source}, line {line}: a here-document within a command substitution is not supported"
                raise bad(problem, f"{token[0]!r:.70}", "write its text to a file")
            words.append(Word(shown, line, None, bool(redirection)))
            redirection = ""
        # A list or a pipeline continues after the end of a line.
        elif token["operator"] and (words or before not in LISTS or token[0] != "\n"):
            yield words, before, token[0]
            words, before, redirection = [], token[0], ""
        line += token[0].count("\n")
        if token[0] == "\n" and heredocs > at:
            line += text.count("\n", at, heredocs)
            at = heredocs


def _end_of_heredoc(text: str, start: int, written: str, place: str) -> int:
    """Return the index after the last line of a here-document, such as `<<-'EOF'`."""
    quoted = written.lstrip("0123456789<- \t")
    delimiter = re.escape(re.sub(r"\\(.)|['\"]", r"\1", quoted))
    tabs = r"\t*" if "<<-" in written else ""
    end = re.compile(rf"^{tabs}{delimiter}\n", re.MULTILINE).search(text, start)
    if end is None:
        hint = f"end it with a line {quoted}, or remove it"
        raise bad(f"{place}: the here-document does not end", written, hint)
    return end.end()


def value_of(text: str, known: Mapping[str, str], *, whole: bool) -> str | None:
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
