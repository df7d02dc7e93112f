"""Entry point of a measured process: `python -m benchmarks.suite.child PROGRAM SPEC.json`.

The program is a module of `programs/`; its `run(spec)` writes its figures to `spec["out"]`, or returns them.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Run one program."""
    program, path = arguments
    spec = json.loads(Path(path).read_text())
    figures = importlib.import_module(f"benchmarks.suite.programs.{program}").run(spec)
    if figures is not None:
        part = Path(spec["out"]).with_suffix(".part")
        part.write_text(json.dumps(figures))
        part.replace(spec["out"])


if __name__ == "__main__":
    main(sys.argv[1:])
