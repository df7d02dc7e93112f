"""Command lines that start a training (`python`, also below `srun` or `mpirun`, and `gcloud`), alone or in a script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.documents import Document, Item, bad
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats import cloud_ml_engine
from estimator_pipeline.migrate.configs.formats.arguments import apply_arguments
from estimator_pipeline.migrate.configs.formats.hyperparameters import Computed
from estimator_pipeline.migrate.configs.formats.shell_scripts import ASSIGNMENT, KEYWORDS, read_commands
from estimator_pipeline.migrate.configs.formats.shell_words import Word

__all__ = ["convert", "looks_like_shell", "plain_words", "read_shell"]

_STARTERS = re.compile(r"srun|mpirun|mpiexec|horovodrun|nohup|time|exec|env|nice|timeout|sudo|docker")
_PYTHON = re.compile(r"(.*/)?python[\d.]*")
_MODULES = ("pip", "venv", "ipykernel", "pytest", "unittest")
_DROPPED = ("echo", "set", "mkdir", "pip", "pip3", "module", "conda", "rm", "ls", "wait", "tensorboard", "sleep",
            "apt-get", "git", "ulimit", "date", "true", "tee", "hostname", "nvidia-smi", "chmod")  # fmt: skip
_STRUCTURE = ("then", "else", "do", "fi", "done", "esac", "{", "}")
_VARIABLE = re.compile(r"\$\{?(\w+)")
_SBATCH = "an option of Slurm: set it in the section slurm, from which submit slurm writes it"
_STARTS = "starts the tasks: use estimator-pipeline launch, submit slurm or submit kubernetes"
_FLOW = "control flow of the shell, which is not evaluated"
_HEREDOC = "a here-document, which is not read: write it to a file"
_SCRIPT = re.compile(r"\s*#!.*sh\b|(.*\n)?#SBATCH\b")
_SHELL = re.compile(
    r"(?m:^(?:[$%] )?(?:[A-Za-z_]\w*=\S*(?:;| &&)? +)*(?:(?:\S*/)?python[\d.]*|gcloud|srun|"
    r"sbatch|kubectl|nohup|mpirun|mpiexec|horovodrun|env|export|source|exec) +\S)|"
    r"(?m:^(?:(?:for|while|until|if|case) .*(?:; *(?:do|then)| in)|\w+ ?\(\) *\{)\s*$)"
)


def looks_like_shell(text: str) -> bool:
    """Return whether a text is a shell script or starts a known program."""
    return text.lstrip()[:1] not in "{[" and bool(_SCRIPT.match(text) or _SHELL.search(text))


def read_shell(text: str, *, source: str) -> Document:
    """Read a script with one command that starts a training.

    Returns:
        A document with `command`, the words of that command, and `others`: the text of each other command and
        assignment, and why the user must decide on it, if so.

    Raises:
        ConfigError: The script has no training command, or several.
    """
    text = re.sub(r"(?m)^(?:%%bash\b|[$%] )", lambda match: " " * len(match[0]), text)
    commands = list(read_commands(text, source=source))
    training = [words for words, _ in commands if _program(words)]
    if len(training) != 1:
        files = [file[1] for words, _ in commands if (file := _manifest(words))]
        listed = training or [words for words, _ in commands][:8]
        problem = f"{source} has {len(training) or 'no'} commands that start a training"
        actual = (
            "; ".join(f"line {words[0].line}: {' '.join(_text(words).split()):.70}" for words in listed) or "no command"
        )
        hint = "keep only one training command: gcloud ai-platform jobs submit training, or python"
        if files and not training:
            hint = f"convert the manifest that it applies: estimator-pipeline migrate config {files[0]}"
        raise bad(problem, actual, hint, code="migrate/unknown-format")
    words = [word for word in training[0] if not word.redirection]
    document = Document(source, {"command": [_valued(word) for word in words]})
    document.lines = {("command", i): word.line for i, word in enumerate(words)}
    redirections = [word for word in training[0] if word.redirection]
    others = [(word.text, word.line, _HEREDOC if "\n" in word.text else "") for word in redirections]
    # sbatch reads its options up to the first command.
    sbatch = ((match[0], text.count("\n", 0, match.start()) + 1) for match in re.finditer(r"(?m)^#SBATCH.*", text))
    others += [(shown, line, _SBATCH) for shown, line in sbatch if line < commands[0][0][0].line]
    uncertain = {name for word in words if word.value is None for name in _VARIABLE.findall(word.text)}
    used = {name for command, _ in commands for word in command for name in _VARIABLE.findall(word.text)}
    for command, plain in commands:
        if command is not training[0]:
            others += _other(command, plain, uncertain, used)
    for i, (shown, line, why) in enumerate(sorted(others, key=lambda other: other[1])):
        document.data.setdefault("others", []).append({"text": shown, "why": why})
        document.lines["others", i] = line
    return document


def plain_words(text: str) -> list[str] | None:
    """Return the words of a plain command line, `Computed` where only the shell knows the value; otherwise None."""
    try:
        commands = list(read_commands(text, source=""))
    except ConfigError:
        return None
    plain = len(commands) == 1 and commands[0][1] and not any(word.redirection for word in commands[0][0])
    return [_valued(word) for word in commands[0][0]] if plain else None


def _valued(word: Word) -> str:
    return Computed(word.text) if word.value is None else word.value


def _text(words: list[Word]) -> str:
    return " ".join(word.text for word in words)


def _program(words: list[Word]) -> tuple[int, int] | None:
    """Return the indices of the program and of its first argument, or None if the words start no training."""
    texts = [word.text.strip("\"'") if word.value is None else word.value for word in words]
    at = next((i for i, word in enumerate(words) if not ASSIGNMENT.fullmatch(word.text)), len(words))
    while at < len(texts) and words[at].text in KEYWORDS:
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


def _manifest(words: list[Word]) -> re.Match[str] | None:
    return re.match(r"kubectl\b.*\b(?:apply|create)\b.*?(?:-f|--filename)[ =](\S+)", _text(words))


def _other(words: list[Word], plain: bool, uncertain: set[str], used: set[str]) -> Iterator[tuple[str, int, str]]:
    """Yield text, line and the reason for a decision ("" for none) of a command that starts no training."""
    name, text, line = words[0].text, _text(words), words[0].line
    if all(word.text in _STRUCTURE for word in words):
        return
    if all(ASSIGNMENT.fullmatch(word.text) for word in words[name == "export" :]) and len(words) > (name == "export"):
        for word in words[name == "export" :]:
            why = ""
            if not plain:
                why = f"within {_FLOW}, or after it"
            elif word.value is None:
                why = "only the shell can compute this value"
            elif word.text.partition("=")[0] in uncertain:
                why = "the value at the training command is not certain"
            elif name == "export" and word.text.partition("=")[0] not in used:
                why = "an environment variable: set it in the section of the scheduler, if the program reads it"
            yield word.text, word.line, why
    elif any(word.redirection and "\n" in word.text for word in words):
        yield text, line, _HEREDOC
    elif name in _DROPPED:
        yield text, line, ""
    elif name in ("cd", "pushd", "popd"):
        yield text, line, "relative paths of the training command start in this directory"
    elif _STARTERS.fullmatch(name) or name in ("torchrun", "sagemaker", "sbatch"):
        yield text, line, _STARTS
    elif _manifest(words):
        yield text, line, "a manifest: convert its file with estimator-pipeline migrate config"
    else:
        yield text, line, "an unknown command of the script" if plain else f"{_FLOW}, or a command within it"


def convert(draft: JobDraft) -> None:
    """Convert each word of the training command; list each other command and assignment."""
    items = draft.document.items("command")
    words = [Word(item.value, 0, None if isinstance(item.value, Computed) else item.value) for item in items]
    start, end = _program(words) or (0, 0)
    starter = [item for item in items[:start] if not ASSIGNMENT.fullmatch(item.value)]
    for item in items[:start]:
        if item not in starter:
            name = Item(item.path, item.value, item.line, item.value.partition("=")[0])
            draft.decide(name, "an environment variable of the program: set it in the section of the scheduler")
    if starter:
        _joined(draft, starter, starter[0].value, _FLOW if starter[0].value in KEYWORDS else _STARTS)
    if items[start].value == "gcloud":
        arguments = cloud_ml_engine.convert_command(draft, items[start:])
    else:
        program = "the training program: set model.function to its model"
        _joined(draft, items[start:end], "the program", program, to=("model", "function"))
        arguments = items[end:]
    apply_arguments(draft, arguments)
    for item in draft.document.items("others"):
        value, why = item.value["text"], item.value["why"]
        named = Item(item.path, value, item.line, re.split(r"[ =\n]", value)[0])
        if why:
            draft.decide(named, why, ("slurm",) if why == _SBATCH else None)
        else:
            draft.drop(named, "a variable of the script" if ASSIGNMENT.fullmatch(value) else "not part of the training")


def _joined(draft: JobDraft, items: list[Item], name: str, why: str, to: tuple[str, ...] | None = None) -> None:
    text = " ".join(str(item.value) for item in items)
    draft.decide(Item(items[0].path, text, items[0].line, name), why, to)
    draft.joined.update(item.path for item in items)
