"""Shell commands that start a training (`gcloud`, `python`, `srun`), on their own or in a script.

A script is parsed, not run: continued lines, quotes, comments, and variables with literal values. Values that only the
shell can compute (`$(date)`, `$1`, a loop) are unchanged, and the field becomes a decision.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.documents import Document, Item, Path
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats import cloud_ml_engine
from estimator_pipeline.migrate.configs.formats.arguments import apply_arguments

__all__ = ["convert", "looks_like_shell", "read_shell"]

_ASSIGNED = re.compile(r"(?:export\s+|declare\s+-\w+\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SHELL_SYNTAX = re.compile(r"[$`]")
_PYTHON = re.compile(r"(.*/)?python[\d.]*")
# Programs that start a different program -> their options with a value in the next word.
_STARTERS = {"srun": {"-n", "-N", "-p", "-c", "-t", "-w", "-J", "-o", "-e", "-A"}, "nohup": set(), "time": set(),
             "exec": set(), "env": set()}  # fmt: skip
_OTHER_STARTERS = ("mpirun", "mpiexec", "horovodrun", "torchrun", "docker", "sagemaker")
_APART = re.compile(r"(if|then|else|elif|fi|for|while|until|do|done|case|esac|function|\{|\})\b|\w+\s*\(\)")
_STARTED = "starts the tasks: use estimator-pipeline launch, submit slurm or submit kubernetes"
_DROPPED = ("cd", "echo", "set", "mkdir", "pip", "pip3", "source", ".", "module", "conda", "rm", "ls", "wait", "exit",
            "tensorboard", "sleep", "pushd", "popd", "apt-get", "git", "unset", "ulimit", "trap", "printf")  # fmt: skip
# A flag of `gcloud ... jobs submit training` -> the field of the job.
_GCLOUD = {
    "scale-tier": "scaleTier", "master-machine-type": "masterType", "worker-machine-type": "workerType",
    "worker-count": "workerCount", "parameter-server-machine-type": "parameterServerType",
    "parameter-server-count": "parameterServerCount", "runtime-version": "runtimeVersion",
    "python-version": "pythonVersion", "region": "region", "job-dir": "jobDir", "module-name": "pythonModule",
    "package-path": "packageUris", "packages": "packageUris", "service-account": "serviceAccount",
    "network": "network", "use-chief-in-tf-config": "useChiefInTfConfig", "enable-web-access": "enableWebAccess",
}  # fmt: skip
_LISTS = ("packageUris",)
_SWITCHES = ("use-chief-in-tf-config", "enable-web-access", "stream-logs", "async", "distributed", "quiet", "help")
_OF_THE_SERVICE = ("stream-logs", "async", "project", "staging-bucket", "verbosity", "quiet", "user-output-enabled",
                   "format", "account", "help", "distributed", "start-port", "labels-from-file")  # fmt: skip


class _Command(NamedTuple):
    """One command of a script, as words with their lines."""

    line: int
    words: list[tuple[str, int]]

    @property
    def text(self) -> str:
        return " ".join(word for word, _ in self.words)


def looks_like_shell(text: str) -> bool:
    """Return whether a text is a shell script or starts a known program."""
    if re.match(r"\s*#!.*sh\b|(.*\n)?#SBATCH\b", text):
        return True
    if text.lstrip()[:1] in "{[":
        return False
    starts = (
        r"(?m)^(?:\$ |% ?)?(?:[A-Z_]+=\S* )*(?:gcloud|python[\d.]*|srun|sbatch|kubectl|nohup|mpirun|horovodrun) +\S"
    )
    return re.search(starts, text) is not None


def read_shell(text: str, *, source: str) -> Document:
    """Read a script with one command that starts a training.

    Returns:
        A document with `command`, the words of that command, and `others`, the other commands.

    Raises:
        ConfigError: A quote is not closed, or the script has no training command, or several.
    """
    commands = list(_commands(text.replace("%%bash", "#%%bash"), source))
    training = [command for command in commands if _starts_training(command)]
    if len(training) != 1:
        files = [file for command in commands if (file := _kubectl_file(command))]
        raise ConfigError(
            f"{source} has {len(training) or 'no'} commands that start a training.",
            code="migrate/unknown-format",
            found="; ".join(f"line {command.line}: {command.text:.70}" for command in training or commands[:8])
            or "no command",
            hint=f"convert the manifest that it applies: estimator-pipeline migrate config {files[0]}."
            if files and not training
            else "keep only one training command: gcloud ai-platform jobs submit training, or python.",
        )
    chosen = training[0]
    others = [command for command in commands if command is not chosen]
    document = Document(source, {"command": [word for word, _ in chosen.words]})
    for i, (_, line) in enumerate(chosen.words):
        document.lines[("command", i)] = line
    if others:
        document.data["others"] = [command.text for command in others]
    document.lines.update({("others", i): command.line for i, command in enumerate(others)})
    return document


def _commands(text: str, source: str) -> Iterator[_Command]:
    """Yield the commands in order, with variables of known values replaced."""
    known: dict[str, str] = {}
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        first, whole = at + 1, ""
        parts: list[tuple[str, int]] = []
        while True:
            line = lines[at]
            at += 1
            more = line.rstrip().endswith("\\") and not line.lstrip().startswith("#")
            whole += (line.rstrip()[:-1] if more else line) + "\n"
            try:
                words = [] if more else _split(whole)
            except ValueError:
                more = True
            if not more:
                break
            if at >= len(lines):
                raise ConfigError(
                    f"{source}, line {first}: a quote is not closed, or the last line is continued.",
                    code="file/bad-format",
                    found=f"{lines[first - 1].strip()!r:.70}",
                    hint="close the quote, or complete the line.",
                )
        if whole.lstrip().startswith("#SBATCH"):
            words = whole.split()
        words = words[1:] if words[:1] in (["$"], ["%"]) else words
        # The line of a word is the first of the joined lines that contains it.
        joined, place = lines[first - 1 : at], 0
        for word in words:
            hits = (i for i in range(place, len(joined)) if word[:12] in joined[i].replace('"', "").replace("'", ""))
            place = next(hits, place)
            parts.append((word, first + place))
        yield from _separate(first, parts, known)


def _split(text: str) -> list[str]:
    # In redirections, only file names are words.
    text = re.sub(r"\s\d?>&\d?-?(?=\s)", " ", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    return list(lexer)


def _separate(line: int, words: list[tuple[str, int]], known: dict[str, str]) -> Iterator[_Command]:
    """Yield the commands between `;`, `&&` and `|`; record assignments."""
    command: list[tuple[str, int]] = []
    for word, at in [*words, (";", line)]:
        if re.fullmatch(r"[;&|]+", word):
            if command:
                yield _Command(command[0][1], command)
            command = []
            continue
        assignment = _ASSIGNED.fullmatch(word)
        value = _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), word)
        if assignment and all(text in ("export", "readonly", "local") for text, _ in command):
            known[assignment[1]] = value.partition("=")[2]
            yield _Command(at, [(value, at)])
            command = []
            continue
        if not command and word in ("do", "then", "else"):
            yield _Command(at, [(word, at)])
            continue
        command.append((value, at))


def _program(command: _Command) -> int:
    """Return the index of the program's name, after `srun` and its options."""
    words = [word for word, _ in command.words]
    at = 0
    while at < len(words) and words[at] in _STARTERS:
        valued = _STARTERS[words[at]]
        at += 1
        while at < len(words) and words[at].startswith("-"):
            at += 2 if words[at] in valued else 1
    return at


def _starts_training(command: _Command) -> bool:
    words = [word for word, _ in command.words]
    if words[0] == "gcloud":
        return bool({"ai-platform", "ml-engine"} & set(words)) and (
            _follow(words, "jobs", "submit", "training") or _follow(words, "local", "train")
        )
    at = _program(command)
    if at >= len(words) or not _PYTHON.fullmatch(words[at]):
        return False
    rest = [word for word in words[at + 1 :] if not word.startswith("-") or word in ("-m", "-c")]
    if rest[:1] == ["-m"]:
        return len(rest) > 1 and rest[1].partition(".")[0] not in ("pip", "venv", "ipykernel", "pytest", "unittest")
    return bool(rest) and rest[0].endswith(".py") and not rest[0].endswith("setup.py")


def _follow(words: list[str], *wanted: str) -> bool:
    return any(tuple(words[i : i + len(wanted)]) == wanted for i in range(len(words)))


def _kubectl_file(command: _Command) -> str | None:
    words = [word for word, _ in command.words]
    if words[0] != "kubectl" or not {"apply", "create"} & set(words):
        return None
    for i, word in enumerate(words):
        if word in ("-f", "--filename") and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(("-f=", "--filename=")):
            return word.partition("=")[2]
    return None


def convert(draft: JobDraft) -> None:
    """Convert each word of the training command, and each other command."""
    items = draft.document.items("command")
    if items[0].value == "gcloud":
        _gcloud(draft, items)
    else:
        _python(draft, items)
    for item in draft.document.items("others"):
        first = re.split(r"[ =]", str(item.value), maxsplit=1)[0]
        _other(draft, Item(item.path, item.value, item.line, first))


def _python(draft: JobDraft, items: list[Item]) -> None:
    words = [(str(item.value), item.line or 0) for item in items]
    at = _program(_Command(0, words))
    if at:
        starter = Item(
            items[0].path, " ".join(str(item.value) for item in items[:at]), items[0].line, str(items[0].value)
        )
        draft.decide(starter, _STARTED)
        draft.joined.update(item.path for item in items[:at])
    end = next(i for i in range(at + 1, len(words)) if words[i][0].endswith(".py") or words[i - 1][0] == "-m")
    _decide_program(draft, items[at : end + 1])
    _arguments(draft, items[end + 1 :])


def _decide_program(draft: JobDraft, items: list[Item]) -> None:
    program = Item(items[0].path, " ".join(str(item.value) for item in items), items[0].line, "the program")
    draft.decide(program, "the training program: set model.function to its model", ("model", "function"))
    draft.joined.update(item.path for item in items)


def _arguments(draft: JobDraft, items: list[Item]) -> None:
    """Convert a program's arguments; shell expressions become decisions."""
    plain: list[Item] = []
    for i, item in enumerate(items):
        if item.path in draft.joined:
            continue
        if re.match(r"\d?[<>]", str(item.value)):
            draft.drop(item, "a redirection of the output")
            draft.joined.update(word.path for word in items[i : i + 2])
            continue
        following = items[i + 1] if i + 1 < len(items) and not str(items[i + 1].value).startswith("-") else None
        split = following is not None and str(item.value).startswith("-") and "=" not in str(item.value)
        value = following if split and following is not None else item
        if _SHELL_SYNTAX.search(str(value.value)):
            name = str(item.value).partition("=")[0]
            argument = Item(item.path, value.value if split else item.value, item.line, name)
            draft.decide(argument, "only the shell can compute this value: write it out")
            draft.joined.update((item.path, value.path))
            continue
        plain.append(item)
    apply_arguments(draft, plain)


def _gcloud(draft: JobDraft, items: list[Item]) -> None:
    """Convert the flags of `gcloud` by way of the equivalent `config.yaml`."""
    words = [str(item.value) for item in items]
    end = words.index("--") if "--" in words else len(words)
    local = _follow(words[:end], "local", "train")
    training: dict[str, object] = {}
    flags: dict[str, Item] = {}
    lines: dict[Path, int] = {}
    job: dict[str, object] = {"trainingInput": training}
    inner = JobDraft(Document(draft.document.source, job, lines, "yaml"), draft.scheduler, draft.params, draft.base)
    positional: list[Item] = []
    at = 0
    while at < end:
        item, match = items[at], re.fullmatch(r"--([a-z][\w-]*)(?:=(.*))?", words[at], re.DOTALL)
        at += 1
        if match is None:
            positional.append(item)
            continue
        name, value = match[1], match[2]
        if value is None and name not in _SWITCHES and at < end:
            value = words[at]
            at += 1
        flag = Item(item.path, True if value is None else value, item.line, f"--{name}")
        field = _GCLOUD.get(name)
        if field is not None and not _SHELL_SYNTAX.search(str(flag.value)):
            training[field] = [flag.value] if field in _LISTS else flag.value
            lines[("trainingInput", field)] = item.line or 0
            flags[field] = flag
        elif name == "config":
            draft.decide(flag, f"the rest of the job: estimator-pipeline migrate config {flag.value}, and --template")
        elif name in _OF_THE_SERVICE:
            draft.drop(flag, "only for gcloud")
        elif name in ("master-accelerator", "worker-accelerator", "parameter-server-accelerator"):
            flags[_accelerator(training, lines, name, flag)] = flag
        else:
            to = ("run", "model_dir") if field == "jobDir" else None
            draft.decide(
                flag,
                "only the shell can compute this value: write it out" if field else "no field corresponds to it",
                to,
            )
            if to:
                draft.need(to, f"the job had {flag.value}")
    known = ("gcloud", "beta", "alpha", "ai-platform", "ml-engine", "jobs", "submit", "training", "local", "train")
    draft.drop(Item(("command", 0), "gcloud", items[0].line, "gcloud"), "submit kubernetes, submit slurm or launch")
    for item in positional:
        if str(item.value) not in known:
            job_name = Item(item.path, item.value, item.line, "the job's name")
            draft.drop(job_name, "a job file's name, or its field name, names the job")
        draft.joined.add(item.path)
    draft.joined.update(item.path for item in items[: end + 1])
    if local and (training.get("workerCount") or training.get("parameterServerCount")):
        training["scaleTier"] = "CUSTOM"
    cloud_ml_engine.convert(inner)
    for finding in inner.findings:
        if source := flags.get(str(finding.item.path[1])):
            below = ".".join(map(str, finding.item.path[2:]))
            name = finding.item.field or f"{source.field}{f': {below}' if below else ''}"
            draft.findings.append(finding.at(Item(source.path, finding.item.value, finding.item.line, name)))
    draft.job, draft.derived = inner.job, inner.derived
    draft.placeholders = {**inner.placeholders, **draft.placeholders}
    _arguments(draft, items[end + 1 :])


def _accelerator(training: dict[str, object], lines: dict[Path, int], name: str, item: Item) -> str:
    field = {"master": "masterConfig", "worker": "workerConfig"}.get(name.partition("-")[0], "parameterServerConfig")
    pairs = dict(part.partition("=")[::2] for part in str(item.value).split(","))
    config = {key: value.upper().replace("-", "_") if key == "type" else value for key, value in pairs.items()}
    training[field] = {"acceleratorConfig": config}
    lines[("trainingInput", field)] = item.line or 0
    return field


def _other(draft: JobDraft, item: Item) -> None:
    text = str(item.value)
    name = text.partition(" ")[0]
    if text.startswith("#SBATCH"):
        draft.decide(
            item, "an option of Slurm: set it in the section slurm, from which submit slurm writes it", ("slurm",)
        )
    elif _kubectl_file(_Command(0, [(word, 0) for word in text.split()])):
        draft.decide(item, "a manifest: convert its file with estimator-pipeline migrate config")
    elif _ASSIGNED.fullmatch(text):
        draft.drop(item, "a variable: the command contains its value")
    elif _APART.match(text):
        draft.decide(item, "a loop, a condition or a function of the shell, which is not evaluated")
    elif name in _DROPPED:
        draft.drop(item, "not part of the training")
    elif name in _OTHER_STARTERS:
        draft.decide(item, _STARTED)
    else:
        draft.decide(item, "an unknown command of the script")
