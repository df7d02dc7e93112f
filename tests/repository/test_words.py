"""Documents, messages and code use the field's words: none of the list in words.toml."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import typer

from estimator_pipeline.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
words = importlib.import_module("words")

DOCUMENTS = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "legacy_configs/README.md")
    ),
    ROOT / "benchmarks" / "README.md",
    # The list of modules is made of docstrings, which the counts of the code cover.
    *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "internals" / "modules.md"}),
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents(path):
    assert not [str(use) for use in words.in_document(path)]


def test_messages():
    for path in sorted((ROOT / "tests" / "messages" / "texts").glob("*.txt")):
        assert not [str(use) for use in words.in_prose(path, path.read_text(encoding="utf-8"))]


def help_texts() -> dict[str, str]:
    """The help of every command and option."""
    texts = {}

    def add(name: str, command: typer.core.TyperCommand | typer.core.TyperGroup) -> None:
        texts[name] = command.help or ""
        for parameter in command.params:
            texts[f"{name} {parameter.opts[0]}"] = getattr(parameter, "help", None) or ""
        if isinstance(command, typer.core.TyperGroup):
            for inner in command.list_commands(None):
                add(f"{name} {inner}", command.get_command(None, inner))

    add("estimator-pipeline", typer.main.get_command(cli.app))
    return texts


def test_help():
    texts = help_texts()
    assert len(texts) > 100
    for name, text in texts.items():
        assert not [(name, use.text) for use in words.in_prose(Path(name), text)]


def test_code_has_no_more_of_them_than_it_had():
    """A room's number may only fall: lower it in words.toml where it has."""
    allowed = words.lists()["rooms"]
    uses = {room: [str(use) for use in found] for room, found in words.rooms().items()}
    assert set(uses) == set(allowed)
    for room, found in uses.items():
        assert len(found) <= allowed[room], "\n".join(found)
        assert len(found) == allowed[room], f"{room}: write {len(found)} in tests/repository/words.toml"


def test_a_banned_word_would_be_seen(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('"""It is told anew."""\nmade = 1  # mended\nx.told_by = f"says {made}"\nlamp_one = found = 2\n')
    found = ["mended", "told", "anew", "name made", "name told_by", "says", "name found"]
    assert sorted(use.text for use in words.in_code(path)) == sorted(found)
    path = tmp_path / "page.md"
    path.write_text("It `says` so.\n\n```text\ntold\n```\nA run goes\non; 'mend'.\n")
    assert [(use.line, use.text) for use in words.in_document(path)] == [(6, "goes\non"), (7, "mend")]
