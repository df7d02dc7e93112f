"""What the documents say holds: examples run, commands parse, job files load, links lead somewhere, tests exist."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import json
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from ruamel.yaml import YAML

from estimator_pipeline.cli import main as cli
from estimator_pipeline.job import load_job, make_job
from tests.support.command_line import call

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
DOCUMENTS += [*sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS += [ROOT / name / "README.md" for name in ("legacy_configs", "benchmarks")]


class Block(NamedTuple):
    """A fenced block: where it begins, its language, the comment in the line before it, its text."""

    where: str
    language: str
    mark: str
    text: str


@functools.cache
def blocks() -> tuple[Block, ...]:
    found = []
    fence = re.compile(r"(?:^<!-- ([^\n]*?) -->\n)?^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for path in DOCUMENTS:
        content = path.read_text(encoding="utf-8")
        for match in fence.finditer(content):
            line = content.count("\n", 0, match.start(3))
            where = f"{path.relative_to(ROOT)}:{line}"
            found.append(Block(where, match[2], match[1] or "", match[3]))
    return tuple(found)


def marked(kind: str) -> dict[str, Block]:
    return {block.mark.partition(": ")[2]: block for block in blocks() if block.mark.startswith(f"{kind}: ")}


def of(language: str) -> list[Block]:
    return [block for block in blocks() if block.language == language]


def ids(value: object) -> str | None:
    return value.where if isinstance(value, Block) else None


# Python --------------------------------------------------------------------------------------------------------

# Example -> what is made smaller in it, and what its output then holds where the document does not show all of it.
SMALLER: dict[str, dict[str, str]] = {
    "readme": {"max_steps=400": "max_steps=20", "save_checkpoints_steps=200": "save_checkpoints_steps=10"},
    "legacy": {"steps=300": "steps=20"},
    "export": {"max_steps=100": "max_steps=10", "save_checkpoints_steps=100": "save_checkpoints_steps=10"},
}
SHOWS = {
    "readme": r"^step 20 \(max_steps reached\): accuracy 0\.\d+, .*\nevaluated by worker:0, 2 checkpoints in all\n"
    r"worker:0: 20 steps, 1280 records\nmodel_dir: runs/readme\n$",
    "legacy": r"^accuracy [01]\.\d+$",
    "loop": r"^step 1 loss \d\.\d+\n(?:.*\n){18}step 20 loss \d\.\d+\n$",
}


def program(name: str) -> str:
    text = marked("runnable")[name].text
    for large, small in SMALLER.get(name, {}).items():
        assert text.count(large) == 1, f"the example {name} has {large!r} once"
        text = text.replace(large, small)
    return text


def test_an_example_in_this_process(tmp_path, monkeypatch, capsys):
    """The others, and this one as a program, take longer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    exec(compile(program("inputs"), "inputs", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == marked("prints")["inputs"].text


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.keras_3] * (name == "keras3")) for name in sorted(marked("runnable"))],
)
def test_examples_run(run_python, tmp_path, name):
    path = tmp_path / "program.py"
    path.write_text(program(name))
    arguments = ["-m", "estimator_pipeline", "exec", path] if name == "legacy" else [path]
    done = run_python(arguments, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    if name in SHOWS:
        assert re.search(SHOWS[name], done.stdout, re.MULTILINE), done.stdout
    else:
        assert done.stdout == marked("prints")[name].text


def test_every_output_that_is_shown_belongs_to_an_example():
    assert set(marked("prints")) | set(SHOWS) == set(marked("runnable"))
    assert set(SMALLER) <= set(marked("runnable"))


@pytest.mark.nightly
@pytest.mark.cluster
def test_the_readme_program_on_two_workers_and_an_evaluator(run_python, tmp_path):
    """A5: exactly the same program is every task of the cluster."""
    (tmp_path / "program.py").write_text(program("readme"))
    command = ["-m", "estimator_pipeline", "launch", "--workers", "2", "--evaluator", "--json", "--timeout", "180"]
    done = run_python([*command, "--", sys.executable, "program.py"], cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    outcome = json.loads(done.stdout)
    assert outcome["result"]["global_step"] == 20
    assert outcome["result"]["steps"] == {"worker:0": 20, "worker:1": 20}
    printed = set()
    for task in outcome["tasks"]:
        log = Path(task["log"]).read_text()
        printed.add(log[log.index("step 20 (max_steps reached)") :].partition("model_dir")[0])
    (text,) = printed  # the same on every task
    assert "evaluated by evaluator:0" in text
    assert "worker:1: 20 steps, 640 records" in text


@pytest.mark.parametrize("block", of("python"), ids=ids)
def test_python_compiles(block):
    ast.parse(block.text, filename=block.where)


def test_the_readme_example_is_short():
    assert len(marked("runnable")["readme"].text.splitlines()) <= 25


# Job files -----------------------------------------------------------------------------------------------------

BASE = """
model: {name: linear}
input: {source: tfds, name: digits, global_batch_size: 64}
run: {model_dir: runs/x}
"""


@pytest.mark.parametrize("block", of("yaml"), ids=ids)
def test_job_files_load(block, tmp_path):
    """A whole job file is loaded as one; a part of one takes the place of that section in a small job."""
    data = YAML(typ="safe").load(block.text)
    if {"model", "input", "run"} <= set(data):
        path = tmp_path / "job.yaml"
        path.write_text(block.text)
        load_job(path)
    else:
        make_job({**YAML(typ="safe").load(BASE), **data}, source=block.where)


def test_the_tables_of_fields_have_every_section(monkeypatch):
    """`python tools/job_fields.py` writes them; test_the_pages_that_tools_write_are_up_to_date compares the page."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    job_fields = importlib.import_module("job_fields")
    assert set(job_fields.job.Job.model_fields) - {"name"} <= set(job_fields.TABLES)
    names = {field.name for table in job_fields.TABLES.values() for field in job_fields.fields(*table)}
    assert {"model.optimizer.ema_momentum", "input.features.NAME.kind", "kubernetes.roles.ROLE.cpu"} <= names


# Command lines -------------------------------------------------------------------------------------------------


def command_lines() -> list[tuple[str, str]]:
    found = []
    for block in blocks():
        if block.language in ("sh", "console", "bash", ""):
            lines = block.text.replace("\\\n", " ").splitlines()
            found += [(block.where, line.strip()) for line in lines if line.strip().startswith("estimator-pipeline")]
        if block.mark.startswith("output of: "):
            found.append((block.where, block.mark.removeprefix("output of: ")))
    for path in DOCUMENTS:
        prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"`(estimator-pipeline [^`]+)`", prose):
            found.append((str(path.relative_to(ROOT)), code))
    return found


def parse(arguments: list[str]) -> None:
    """Parses a command line without running it; an unknown subcommand, option or value is an error."""
    group = typer.main.get_command(cli.app)
    name, *rest = arguments
    if name.startswith("-"):
        assert name in {option for parameter in group.params for option in parameter.opts} | {"--help"}
        return
    assert name in [entry.name for entry in cli.COMMANDS]
    command = group.get_command(None, name)
    while isinstance(command, typer.core.TyperGroup):
        name, *rest = rest
        group, command = command, command.get_command(None, name)
        assert command is not None, f"{name} is none of {', '.join(group.list_commands(None))}"
    command.make_context(name, list(rest))
    inner = rest[rest.index("--") + 1 :] if "--" in rest else []
    if inner[:1] == ["estimator-pipeline"]:
        parse(inner[1:])


@pytest.mark.parametrize(("where", "line"), command_lines())
def test_command_lines_parse(where, line):
    words = [*itertools.takewhile(lambda word: word not in ("|", ">", "&"), shlex.split(line, comments=True))]
    assert words[0] == "estimator-pipeline"
    # A subcommand that is only named in a sentence has no arguments to parse.
    if tuple(words[1:]) in {(e.name, *inner) for e in cli.COMMANDS for inner in [(), *((i.name,) for i in e.group)]}:
        return
    parse(words[1:])


def test_a_wrong_command_line_would_be_seen():
    for line in ("lunch job.yaml", "launch job.yaml --wrokers 2", "train", "launch job.yaml --cores none"):
        with pytest.raises((AssertionError, Exception)) as caught:
            parse(shlex.split(line))
        assert caught.type.__name__ in ("AssertionError", "NoSuchOption", "MissingParameter", "BadParameter")


@pytest.mark.parametrize("tool", ["api_page", "architecture", "command_line", "job_fields"])
def test_the_pages_that_tools_write_are_up_to_date(tool, monkeypatch):
    """`python tools/TOOL.py` writes the page."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    module = importlib.import_module(tool)
    assert module.DOCUMENT.read_text(encoding="utf-8") == module.render()


def test_the_api_page_has_every_public_name(monkeypatch):
    import estimator_pipeline

    monkeypatch.syspath_prepend(ROOT / "tools")
    shown = list(importlib.import_module("api_page").names())
    modules, public = [estimator_pipeline], set()
    while modules:
        module = modules.pop()
        for name in set(module.__all__) - {"__version__"}:
            value = getattr(module, name)
            if inspect.ismodule(value):
                modules.append(value)
            else:
                public.add(f"{module.__name__}.{name}")
    assert len(shown) == len(set(shown))
    assert set(shown) == public
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    headings = {heading.rpartition(".")[2] for heading in re.findall(r"^### (\S+)$", page, re.MULTILINE)}
    assert headings == {name.rpartition(".")[2] for name in public}


def test_the_api_page_has_signatures_and_docstrings():
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    section = page.partition("### inputs.from_partition\n")[2].partition("\n### ")[0]
    assert "def from_partition(folder: str | os.PathLike[str], **options: " in section
    assert section.index("**Arguments**\n\n- `folder`: The folder.\n") < section.index("**Returns.** The data, with ")
    assert "**Errors**\n\n- `InputError`: The folder has no partition" in section
    assert "class TaskFailedError(PipelineError):\n    exit_code = 1\n" in page
    assert "    global_batch_size: int\n    eval_batch_size: int | None = None\n" in page


@pytest.mark.parametrize("line", sorted(marked("output of")))
def test_shown_outputs_are_real(line):
    words = shlex.split(line)
    assert words[0] == "estimator-pipeline"
    done = call(*words[1:], cwd=ROOT)
    assert done.stdout + done.stderr == marked("output of")[line].text


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for path in DOCUMENTS:
        for target in re.findall(r"(?:`|^    )(?:PYTHON=\S+ )?make ([a-z-]+)", path.read_text(), re.MULTILINE):
            assert target in targets, f"{path.name}: make {target}"


# Features ------------------------------------------------------------------------------------------------------

FEATURES = [f"{page}{n}" for page, count in zip("EKADM", (9, 14, 5, 5, 6), strict=True) for n in range(1, count + 1)]


def feature_rows() -> list[list[str]]:
    text = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines() if line[:2] == "| "]
    return [row for row in rows if re.fullmatch(r"[A-Z]\d+", row[0])]


def test_every_feature_has_one_row():
    assert [row[0] for row in feature_rows()] == FEATURES


@pytest.mark.parametrize("row", feature_rows(), ids=lambda row: row[0])
def test_a_feature_that_is_there_names_its_tests(row):
    assert len(row) == 5
    state, tests = row[3], row[4]
    assert re.match(r"(done|partly|not yet)\b", state)
    assert bool(re.search(r"::test_", tests)) == (not state.startswith("not yet"))


@functools.cache
def names_of_tests(path: str) -> set[str]:
    return set(re.findall(r"^def (\w+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE))


def test_every_named_test_exists():
    named = set()
    for path in DOCUMENTS:
        named |= set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)(?:\[[^`]*\])?`", path.read_text(encoding="utf-8")))
    assert len(named) > 20
    missing = [f"{path}::{name}" for path, name in sorted(named) if name not in names_of_tests(path)]
    assert not missing


# Links and paths -----------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The anchors that a page's headings get where it is shown."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file) if file else path
        assert there.exists(), f"{path.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{path.name}: {target}"


def test_every_page_is_in_the_index_or_linked_from_a_page_that_is():
    index = ROOT / "docs" / "index.md"
    reached, waiting = {index}, [index]
    while waiting:
        page = waiting.pop()
        for link in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8")):
            path = (page.parent / link).resolve()
            if path not in reached and path.is_relative_to(ROOT / "docs"):
                reached.add(path)
                waiting.append(path)
    assert reached == set((ROOT / "docs").rglob("*.md"))


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_no_document_is_wide():
    for path in DOCUMENTS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            prose = not line.startswith(("|", " ", "<!--", "[")) and "](" not in line
            assert len(line) <= 120 or not prose, f"{path.name}:{number}"


def test_no_table_is_cut_in_two():
    table = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
    for path in DOCUMENTS:
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for rows in table.findall(text):
            assert re.match(r"\|.*\n\| *:?-", rows), f"{path.relative_to(ROOT)}: no header above {rows:.80}"


def test_public_names_in_the_documents_exist():
    """`ep.x.y` and `estimator_pipeline.x` in the documents are attributes of the package."""
    import estimator_pipeline

    for path in DOCUMENTS:
        for dotted in re.findall(r"\b(?:ep|estimator_pipeline)\.([a-zA-Z_][\w.]*\w)", path.read_text(encoding="utf-8")):
            value: object = estimator_pipeline
            for name in dotted.split("."):
                if not hasattr(value, name) and hasattr(value, "__path__"):
                    importlib.import_module(f"{value.__name__}.{name}")  # a package that nobody has imported yet
                assert hasattr(value, name), f"{path.name}: {dotted}"
                value = getattr(value, name)


def test_the_arguments_named_in_the_documents_exist():
    from estimator_pipeline import inputs
    from estimator_pipeline.engines.core.options import TrainOptions
    from estimator_pipeline.inputs.options import InputOptions

    clusters = (ROOT / "docs" / "guides" / "clusters.md").read_text(encoding="utf-8")
    table = clusters.partition("## Time-outs")[2].partition("\n## ")[0]
    named = set(re.findall(r"\| `(\w+)` \|$", table, re.MULTILINE))
    assert named == {name for name in inspect.signature(TrainOptions).parameters if name.endswith("timeout")}
    page = (ROOT / "docs" / "guides" / "inputs.md").read_text(encoding="utf-8")
    table = page.partition("## Options of all factories")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    assert named == set(inspect.signature(InputOptions).parameters)
    factories = set(re.findall(r"^\| `(from_\w+)", page, re.MULTILINE))
    assert factories == {name for name in inputs.__all__ if name.startswith("from_")}
