"""The tutorial's program, its functions without its last lines, which would train."""

from __future__ import annotations

import ast
import sys

import pytest


@pytest.fixture(scope="session")
def tutorial(programs, tmp_path_factory):
    """The names that the tutorial's program defines: its input_fn and model_fn, with digits in place of MNIST."""
    from estimator_pipeline import compat
    from estimator_pipeline.inputs.sources.digits import prepare

    compat.install()
    folder = tmp_path_factory.mktemp("tfds")
    prepare(str(folder))
    tree = ast.parse((programs / "tutorial_estimator.py").read_text())
    defined = [type(node).__name__ == "FunctionDef" for node in tree.body]
    tree.body = tree.body[: len(defined) - defined[::-1].index(True)]
    arguments = ["tutorial", "unused", "--dataset", "digits", "--data_dir", str(folder), "--highest", "16"]
    names = {"__name__": "tutorial"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        exec(compile(tree, "tutorial_estimator.py", "exec"), names)
    return names
