"""No message of `migrate checkpoint`, `export` and `config` advises an option that the command has not."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import estimator_pipeline.migrate
from estimator_pipeline.cli.main import app
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.draft import Choices
from estimator_pipeline.migrate.checkpoints.plan import plan
from estimator_pipeline.migrate.checkpoints.state import state_of

ROOMS = {"checkpoints": "checkpoint", "exports": "export", "configs": "config"}
_OPTION = re.compile(r"(?<![\w-])--([a-z][\w-]+)")
_OTHER = re.compile(r"(?:estimator-pipeline )?((?:migrate|submit) \w+|train|launch)\b")
# kubectl's, and how a line of a flag file is written.
_FOREIGN = {"filename", "name"}


def options_of(*names: str) -> set[str]:
    import typer.main

    command = typer.main.get_command(app)
    for name in names:
        command = command.get_command(None, name)
    return {text.lstrip("-") for parameter in command.params for text in parameter.opts}


def texts(path: Path) -> list[tuple[int, str]]:
    """Strings of a module that are no docstrings; those in braces as a zero byte."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if id(node) in documented or id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node.lineno, node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
            found.append((node.lineno, "".join(map(str, parts))))
    return found


def wrong_options(text: str, own: set[str]) -> list[str]:
    """Options of a text that neither the command has, nor another one that the text names before them."""
    found = []
    for match in _OPTION.finditer(text):
        named = [options_of(*one[1].split()) for one in _OTHER.finditer(text, 0, match.start())]
        if not any(match[1] in options for options in [own, *named]):
            found.append(match[0])
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_options_in_the_messages_of_a_room(room):
    folder = Path(inspect.getfile(estimator_pipeline.migrate)).parent / room
    own = options_of("migrate", ROOMS[room])
    wrong = [
        f"{path.name}:{line}: {option}"
        for path in sorted(folder.rglob("*.py"))
        for line, text in texts(path)
        for option in wrong_options(text, own)
        if option.lstrip("-") not in _FOREIGN
    ]
    assert not wrong


def test_an_export_is_not_told_of_options_of_checkpoints():
    """The plan of weights is that of `migrate checkpoint`, and its hints those of the command that asks."""
    source = state_of({"a/kernel": np.ones([2, 2])}, source="SRC", kind="name-based")
    target = state_of(
        {"b/gamma": np.ones([3]), "c/kernel": np.ones([4]), "iter": np.int64(0)}, source="the model", kind="keras"
    )
    choices = Choices(drop_optimizer_state=True, step=0, may_initialize=False)
    with pytest.raises(ConfigError) as caught:
        plan(source, target, choices, hyper={}, reverse=False)
    assert not wrong_options(str(caught.value), options_of("migrate", "export"))
