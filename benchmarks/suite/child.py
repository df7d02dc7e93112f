"""A measured process: `python -m benchmarks.suite.child PROGRAM SPEC.json`.

The program is a module of `programs/`; its `run(spec)` writes what it found to `spec["out"]`, or returns it.
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
    found = importlib.import_module(f"benchmarks.suite.programs.{program}").run(spec)
    if found is not None:
        part = Path(spec["out"]).with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(spec["out"])


if __name__ == "__main__":
    main(sys.argv[1:])
