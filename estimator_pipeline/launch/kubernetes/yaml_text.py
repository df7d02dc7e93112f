"""Manifests as YAML and JSON."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter

from estimator_pipeline.launch.kubernetes.manifests import Manifests

__all__ = ["manifest_json", "manifest_text", "objects_text"]

_PLAIN = re.compile(r"[A-Za-z/](?:[A-Za-z0-9_./$()-]|:(?=\S)|(?<=[A-Za-z0-9]) (?=[A-Za-z0-9]))*|[0-9]+(?:[KMGT]i|m)")
# Not strings in YAML 1.1, which kubectl reads.
_NO_STRINGS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class _Representer(SafeRepresenter):
    """Quotes strings that YAML 1.1 and 1.2 read differently, and writes files as blocks."""

    def represent_str(self, data: str) -> Any:
        is_plain = _PLAIN.fullmatch(data) and data.lower() not in _NO_STRINGS
        style = "|" if "\n" in data else None if is_plain else "'" if '"' in data and "'" not in data else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Representer.add_representer(str, _Representer.represent_str)


def manifest_text(manifests: Manifests) -> str:
    """Format the manifests as YAML for `kubectl apply -f -`, after comments with the tasks and the notes."""
    wide = max(map(len, manifests.tasks))
    lines = [f"{task:{wide}}  {host}" for task, host in manifests.tasks.items()]
    lines += [f"note: {note}" for note in manifests.notes]
    return "".join(f"# {line}\n" for line in lines) + objects_text(manifests.objects)


def manifest_json(manifests: Manifests) -> str:
    """Format the manifests as one JSON List for `kubectl apply -f -`."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests.objects)}, indent=2)


def objects_text(objects: Sequence[Mapping[str, Any]]) -> str:
    """Format objects as one YAML stream."""
    yaml, out = YAML(typ="safe", pure=True), io.StringIO()
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None there
    yaml.width = 4096
    for number, item in enumerate(objects):
        out.write("---\n" if number else "")
        yaml.dump(item, out)
    return out.getvalue()
