"""Conversions of texts."""

from __future__ import annotations

import ast

import pytest

from estimator_pipeline.migrate.code import convert


@pytest.fixture
def convert_files(tmp_path):
    """`convert_files(name=text)`: the converted files by their names."""

    def convert_files(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        done = {file.path.removesuffix(".py"): file for file in convert(tmp_path).files}
        for file in done.values():
            ast.parse(file.after)
        return done

    return convert_files


@pytest.fixture
def convert_text(convert_files):
    """`convert_text(text)`: the converted file."""
    return lambda text: convert_files(program=text)["program"]
