"""Command lines that start a training (`python`, also below `srun` or `mpirun`, and `gcloud`), alone or in a script.

Only the training command is read. A value with a variable, a pattern or a command of the shell is a decision.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from estimator_pipeline.migrate.configs.documents import Document, Item, bad
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats import cloud_ml_engine
from estimator_pipeline.migrate.configs.formats.arguments import apply_arguments
from estimator_pipeline.migrate.configs.formats.hyperparameters import Computed

__all__ = ["convert", "looks_like_shell", "plain_words", "read_shell"]

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_KEYWORDS = ("if", "while", "until", "then", "else", "elif", "do", "!", "{", "time")
_STARTERS = re.compile(r"srun|mpirun|mpiexec|horovodrun|nohup|time|exec|env|nice|timeout|sudo|docker")
_PYTHON = re.compile(r"(.*/)?python[\d.]*")
_MODULES = ("pip", "venv", "ipykernel", "pytest", "unittest")
_SBATCH = "an option of Slurm: set it in the section slurm, from which submit slurm writes it"
_STARTS = "starts the tasks: use estimator-pipeline launch, submit slurm or submit kubernetes"
_UNREAD = "not read: only the training command is"
_SCRIPT = re.compile(r"\s*#!.*sh\b|(.*\n)?#SBATCH\b")
_SHELL = re.compile(
    r"(?m:^(?:[$%] )?(?:[A-Za-z_]\w*=\S*(?:;| &&)? +)*(?:(?:\S*/)?python[\d.]*|gcloud|srun|"
    r"sbatch|kubectl|nohup|mpirun|mpiexec|horovodrun|env|export|source|exec) +\S)|"
    r"(?m:^(?:(?:for|while|until|if|case) .*(?:; *(?:do|then)| in)|\w+ ?\(\) *\{)\s*$)"
)
_OPERATORS = "();<>|&"
# $(command), $((1 + 2)) and `command`: one word, although they contain spaces and operators.
_SUBSTITUTION = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`")
_HIDDEN = {ord(letter): 0xE000 + ord(letter) for letter in f"{_OPERATORS} \t'\"\\#"}
_SHOWN = {hidden: letter for letter, hidden in _HIDDEN.items()}


class Word(NamedTuple):
    """A word without its quotes, `Computed` if the shell may replace a part of it; and its line."""

    value: str
    line: int


class _Line(NamedTuple):
    """A line with its continuation lines, and the words of its commands; no commands if they cannot be read."""

    text: str
    number: int
    commands: Sequence[list[Word]]


def looks_like_shell(text: str) -> bool:
    """Return whether a text is a shell script or starts a known program."""
    return text.lstrip()[:1] not in "{[" and bool(_SCRIPT.match(text) or _SHELL.search(text))


def read_shell(text: str, *, source: str) -> Document:
    """Read a script with one command that starts a training.

    Returns:
        A document with `command`, the words of that command; `line`, its line if that has more; `slurm`, the options of
        Slurm; and `others`, all other lines.

    Raises:
        ConfigError: The script has no training command, or several.
    """
    lines = list(_lines(re.sub(r"(?m)^(?:%%bash\b|[$%] )", lambda match: " " * len(match[0]), text)))
    training = [(line, words) for line in lines for words in line.commands if _program(words)]
    if len(training) != 1:
        problem = f"{source} has {len(training) or 'no'} commands that start a training"
        actual = "; ".join(f"line {line.number}: {' '.join(line.text.split()):.70}" for line, _ in training)
        hint = "write one training command, on a line with closed quotes: python, or gcloud ai-platform jobs submit"
        raise bad(problem, actual or None, f"{hint}; convert a manifest itself", code="migrate/unknown-format")
    at, words = training[0]
    document = Document(source, {"command": [word.value for word in words]})
    document.lines = {("command", i): word.line for i, word in enumerate(words)}
    parts: dict[str, list[tuple[str, int]]] = {
        "line": [(at.text, at.number)] if len(at.commands) > 1 else [],
        "slurm": [(line.text, line.number) for line in lines if line.text.startswith("#SBATCH")],
        "others": [(line.text, line.number) for line in lines if line is not at and not line.text.startswith("#")],
    }
    for name, values in parts.items():
        if values:
            document.data[name] = [value for value, _ in values]
            document.lines[(name,)] = values[0][1]
            document.lines |= {(name, i): line for i, (_, line) in enumerate(values)}
    return document


def plain_words(text: str) -> list[str] | None:
    """Return the words of one command, `Computed` where the shell may replace a part; None for any other script."""
    lines = list(_lines(text))
    plain = len(lines) == 1 and len(lines[0].commands) == 1 and lines[0].text[-1] not in _OPERATORS
    return [word.value for word in lines[0].commands[0]] if plain else None


def _lines(text: str) -> Iterator[_Line]:
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        first = at
        while lines[at].endswith("\\") and at + 1 < len(lines) and not lines[at].lstrip().startswith("#"):
            at += 1
        at += 1
        whole = "\n".join(lines[first:at]).strip()
        if whole:
            yield _Line(whole, first + 1, _commands(lines[first:at], first + 1))


def _commands(lines: Sequence[str], first: int) -> list[list[Word]]:
    """Return the words of each command of a continued line; empty if a quote or a substitution is not closed."""
    commands: list[list[Word]] = [[]]
    for number, line in enumerate(lines, start=first):
        # 2> is one operator.
        line = re.sub(r"(?<=\s)[12](?=>)", "", line.removesuffix("\\"))
        hidden = _SUBSTITUTION.sub(lambda match: match[0].translate(_HIDDEN), line)
        lexer = shlex.shlex(hidden, posix=True, punctuation_chars=True)
        lexer.commenters, lexer.whitespace_split = "", True
        try:
            for token in lexer:
                if token.startswith("#") and not re.search("['\"\\\\]#", line):
                    break
                if set(token) <= set(_OPERATORS):
                    commands.append([])
                    continue
                value = token.translate(_SHOWN)
                commands[-1].append(Word(Computed(value) if re.search(r"[$`*?\[\]{}~]", value) else value, number))
        except ValueError:
            return []
        if "$(" in hidden:
            return []
    return [words for words in commands if words]


def _program(words: Sequence[Word]) -> tuple[int, int] | None:
    """Return the indices of the program and of its first argument, or None if the words start no training."""
    texts = [word.value for word in words]
    at = next((i for i, text in enumerate(texts) if not ASSIGNMENT.fullmatch(text)), len(words))
    while at < len(texts) and texts[at] in _KEYWORDS:
        at += 1
    if at < len(texts) and texts[at] == "gcloud":
        training = {"ai-platform", "ml-engine"} & set(texts) and {"submit", "local"} & set(texts)
        return (at, at + 1) if training else None
    if at < len(texts) and _STARTERS.fullmatch(texts[at]):
        at = next((i for i in range(at, len(texts)) if _PYTHON.fullmatch(texts[i])), len(texts))
    if at == len(texts) or not _PYTHON.fullmatch(texts[at]):
        return None
    end = next((i for i in range(at + 1, len(texts)) if texts[i] == "-m" or not texts[i].startswith("-")), len(texts))
    if texts[end : end + 1] == ["-m"]:
        module = texts[end + 1 : end + 2]
        return (at, end + 2) if module and module[0].partition(".")[0] not in _MODULES else None
    script = texts[end] if end < len(texts) else ""
    return (at, end + 1) if script.endswith(".py") and not script.endswith("setup.py") else None


def convert(draft: JobDraft) -> None:
    """Convert each word of the training command; list the rest of the script."""
    items = draft.document.items("command")
    start, end = _program([Word(item.value, 0) for item in items]) or (0, 0)
    starter = [item for item in items[:start] if not ASSIGNMENT.fullmatch(item.value)]
    for item in items[:start]:
        if item not in starter:
            name = Item(item.path, item.value, item.line, item.value.partition("=")[0])
            draft.decide(name, "an environment variable of the program: set it in the section of the scheduler")
    if starter:
        _joined(draft, starter, starter[0].value, _STARTS)
    if items[start].value == "gcloud":
        arguments = cloud_ml_engine.convert_command(draft, items[start:])
    else:
        program = "the training program: set model.function to its model"
        _joined(draft, items[start:end], "the program", program, to=("model", "function"))
        arguments = items[end:]
    apply_arguments(draft, arguments)
    for item in draft.document.items("slurm"):
        draft.decide(item._replace(field="#SBATCH"), _SBATCH, ("slurm",))
    for part, field in (("line", "the rest of the line"), ("others", "the other lines")):
        others = draft.document.item(part, field=field)
        if others is not None:
            draft.decide(others, _UNREAD)


def _joined(draft: JobDraft, items: list[Item], name: str, why: str, to: tuple[str, ...] | None = None) -> None:
    text = " ".join(str(item.value) for item in items)
    draft.decide(Item(items[0].path, text, items[0].line, name), why, to)
    draft.joined.update(item.path for item in items)
