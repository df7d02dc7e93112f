"""Every example of another era gives the job file beside it, accounts for all its fields, and can be completed."""

from __future__ import annotations

import difflib
import os
import re

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import Job, dump_job, load_job
from estimator_pipeline.launch.kubernetes.manifests import render
from estimator_pipeline.migrate.configs import STATES
from estimator_pipeline.migrate.configs.detect import read
from estimator_pipeline.migrate.configs.documents import read_text
from tests.support.config_cases import CONFIGS, EXAMPLES, FOLDERS, GIVEN, ROOT, converted

IDS = [example.path for example in EXAMPLES]


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_the_job_file_is_as_recorded(example):
    made = converted(f"legacy_configs/{example.path}", **example.arguments)
    assert made.format == example.format
    if os.environ.get("ACCEPT_GOLDEN"):
        example.golden.write_text(made.text)
    recorded = example.golden.read_text()
    diff = "".join(difflib.unified_diff(recorded.splitlines(True), made.text.splitlines(True), "recorded", "made"))
    assert made.text == recorded, f"ACCEPT_GOLDEN=1 accepts this:\n{diff}"


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_every_value_of_the_source_is_accounted_for(example):
    """In the report and in the job file: nothing is dropped silently."""
    path = CONFIGS / example.path
    made = converted(path, **example.arguments)
    _, document = read(read_text(path), source=str(path), wanted=example.format)
    said = [finding.item.path for finding in made.findings]
    leaves = list(document.leaves())
    assert leaves
    for leaf in [leaf for leaf in leaves if not any(path == leaf[: len(path)] for path in said)]:
        # Told with another field: the value of a flag with the flag, a mount with its volume, a printed protocol
        # buffer by its own fields.
        item = document.item(*leaf[:1]) if example.format == "flags" else document.item(*leaf)
        text = item.value["text"] if isinstance(item.value, dict) else str(item.value)
        if example.format == "flags" or "args" in leaf or "command" in leaf:
            assert not text.startswith("-") and any(text in str(f.item.value) for f in made.findings), leaf
        elif "volumeMounts" in leaf:
            name = document.item(*leaf[:-1], "name").value
            assert any(isinstance(f.item.value, dict) and f.item.value.get("name") == name for f in made.findings)
        else:
            assert leaf == ("_session_config",) and any(path[0] == leaf[0] for path in said), leaf
    comments = " ".join(re.sub(r"^\s*# ?", " ", line) for line in made.text.splitlines())
    comments = re.sub(r"\s+", " ", comments)
    for finding in made.findings:
        assert finding.state in STATES and (finding.why or finding.state == "taken")
        assert finding.item.place in comments, finding
    lined = [f.item for f in made.findings if f.item.line is None]
    assert not lined, "every field has a line"


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_a_job_with_open_fields_is_refused_by_name_and_a_completed_one_loads(example, tmp_path):
    made = converted(CONFIGS / example.path, **example.arguments)
    assert made.placeholders
    with pytest.raises(ConfigError) as caught:
        load_job(example.golden)
    names = [".".join(map(str, path)) for path in made.placeholders]
    for name in names:
        assert f"{name}: the value is missing." in str(caught.value)
    assert "found: ???" in str(caught.value) and "line" in str(caught.value)
    needed = {*names, "input.name"} if "input.source" in names else set(names)
    settings = [f"{name}={value}" for name, value in GIVEN.items() if name in needed]
    job = load_job(example.golden, overrides=settings)
    assert job.model.function == "trainer.model:model_fn"
    # The same from the command line: nothing is left open, and the text is loaded as it stands.
    whole = converted(CONFIGS / example.path, **example.arguments, settings=settings)
    assert not whole.placeholders and "???" not in whole.text
    (tmp_path / "whole.yaml").write_text(whole.text)
    loaded, expected = load_job(tmp_path / "whole.yaml"), Job.model_validate(whole.job)
    assert dump_job(loaded.model_copy(update={"name": expected.name})) == dump_job(expected)
    if example.format == "tfjob":
        image = ["kubernetes.image=x:1", "run.model_dir=gs://bucket/models"]
        render(load_job(example.golden, overrides=[*settings, *image]))


def test_the_readme_names_every_example():
    readme = (CONFIGS / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+/[\w.]+)` \|", readme, flags=re.MULTILINE))
    there = {p.relative_to(CONFIGS).as_posix() for f in FOLDERS for p in (CONFIGS / f).iterdir()}
    assert named == {name for name in there if not name.endswith(".job.yaml")}
    assert {example.path for example in EXAMPLES} == named - {"flags/common.flags"}
    assert {name for name in there if name.endswith(".job.yaml")} == {
        example.golden.relative_to(CONFIGS).as_posix() for example in EXAMPLES
    }
