"""Tracing of a name of an old TensorFlow through the later versions.

A definition in its old place has not moved. A missing one is searched for in the next version only: a move leaves the
code unchanged, so the definition with the most similar words is the match, first under the same name, then under
a different name (with a higher threshold). The remaining ones are searched for by their public names, and in Keras,
which has left TensorFlow's tree.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from moved_names.trees import Definition, Tree

ALIKE = 0.5  # share of common words, for a definition of the same name
RENAMED = 0.8  # for a definition with a different name
IN_KERAS = 0.35  # for a definition of the same name in Keras, which has years of changes
FEW = 8  # words; with fewer, likeness is meaningless
OWN_KERAS = "tensorflow.python.keras"
KERAS = "tf_keras.src"
Place = tuple[str, str]


@dataclass
class Trace:
    """The history of a name.

    Attributes:
        since: the first version without it.
        homes: version -> its place, for the later versions that have it.
        how: in the newest version: "moved", "renamed", "public", "keras", "compiled", "manual", or "gone".
    """

    since: str
    homes: dict[str, Place] = field(default_factory=dict)
    how: str = "gone"


def likeness(first: Definition, second: Definition) -> float:
    if not first.words and not second.words:
        return 1.0 if first.arguments == second.arguments else 0.0
    return len(first.words & second.words) / len(first.words | second.words)


class Index:
    """Definitions of a tree by their places, names and public names."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.places = tree.definitions()
        self.by_name: dict[str, list[Definition]] = defaultdict(list)
        self.by_export: dict[str, list[Definition]] = defaultdict(list)
        for definition in self.places.values():
            self.by_name[definition.name].append(definition)
            for export in definition.exports:
                self.by_export[export].append(definition)

    def at(self, place: Place) -> Definition | None:
        definition = self.places.get(place) or self.tree.find(*place)
        return definition if isinstance(definition, Definition) else None

    def public(self, old: Definition) -> Definition | None:
        """Return the only definition that has a public name of the old one."""
        for export in sorted(old.exports, reverse=True):
            matches = [new for new in self.by_export[export] if _is_same_kind(old, new)]
            if len(matches) == 1:
                return matches[0]
        return None


class Tracer:
    """Follows definitions through versions.

    Args:
        trees: The trees of TensorFlow, oldest first.
        keras: The tree of tf_keras.
        rejected: pairs of places that only look like a move.
    """

    def __init__(self, trees: list[Tree], keras: Tree, rejected: set[tuple[str, str]]) -> None:
        self.indexes = [Index(tree) for tree in trees]
        self.keras = Index(keras)
        self.rejected = rejected
        self._steps: dict[tuple[int, Place], tuple[Definition | None, str]] = {}

    def follow(self, place: Place, last: int) -> Trace:
        """Follow a definition from version number `last`, the last one that has `place`, to the newest."""
        first = definition = self.indexes[last].at(place)
        assert first is not None and definition is not None, place
        trace = Trace(since=self.indexes[last + 1].tree.version, how="moved")
        for number in range(last, len(self.indexes) - 1):
            old = definition
            version = self.indexes[number + 1].tree.version
            definition, how = self._step(number, old)
            if definition is None:
                keras_place = self._in_keras(old, place)
                trace.how = "gone" if keras_place is None else "keras"
                if keras_place is not None:
                    rest = [index.tree.version for index in self.indexes[number + 1 :]]
                    trace.homes |= dict.fromkeys(rest, keras_place)
                return trace
            if how in ("renamed", "public"):
                trace.how = how
            trace.homes[version] = definition.place
        if definition.module.startswith(OWN_KERAS) and not place[0].startswith(OWN_KERAS):
            # TensorFlow keeps a private copy of Keras; programs use the public definition of Keras, if it is the same.
            public = self.keras.public(first)
            if public is not None:
                trace.homes, trace.how = dict.fromkeys(trace.homes, public.place), "keras"
        return trace

    def _step(self, number: int, old: Definition) -> tuple[Definition | None, str]:
        """Return the definition of version `number` as the next version has it, and how it was found."""
        key = (number, old.place)
        if key not in self._steps:
            self._steps[key] = self._search(self.indexes[number], self.indexes[number + 1], old)
        return self._steps[key]

    def _search(self, before: Index, after: Index, old: Definition) -> tuple[Definition | None, str]:
        there = after.at(old.place)
        if there is not None:
            return there, "moved"
        same = [new for new in after.by_name[old.name] if _is_same_kind(old, new) and self._may(old, new)]
        best = max(same, key=lambda new: (likeness(old, new), new.place not in before.places), default=None)
        if best is not None:
            generated = all(d.module.rpartition(".")[2].startswith("gen_") for d in (old, best))
            telling = len(old.words) >= FEW or best.place not in before.places
            if generated or (telling and likeness(old, best) >= ALIKE):
                return best, "moved"
        public = after.public(old)
        if public is not None and self._may(old, public):
            return public, "public"
        if old.kind != "value" and len(old.words) >= FEW:
            fresh = [
                new
                for place, new in after.places.items()
                if place not in before.places
                and new.kind == old.kind
                and new.arguments == old.arguments
                # Generated functions are all similar.
                and (not old.module.rpartition(".")[2].startswith("gen_") or new.name.startswith(old.name))
                and self._may(old, new)
            ]
            # Two similar functions are often in one module, so a match in the same module wins.
            best = max(fresh, key=lambda new: (likeness(old, new), new.module == old.module), default=None)
            if best is not None and likeness(old, best) >= RENAMED:
                return best, "renamed"
        return None, "gone"

    def _may(self, old: Definition, new: Definition) -> bool:
        return (".".join(old.place), ".".join(new.place)) not in self.rejected

    def _in_keras(self, old: Definition, place: Place) -> Place | None:
        public = self.keras.public(old)
        if public is not None:
            return public.place
        if not any(module.startswith((OWN_KERAS, "tensorflow.python.layers")) for module in (old.module, place[0])):
            return None
        twin = (old.module.replace(OWN_KERAS, KERAS), old.name)
        if self.keras.at(twin) is not None and old.module.startswith(OWN_KERAS):
            return self.keras.at(twin).place
        same = [new for new in self.keras.by_name[old.name] if new.kind == old.kind and len(old.words) >= FEW]
        best = max(same, key=lambda new: likeness(old, new), default=None)
        return best.place if best is not None and likeness(old, best) >= IN_KERAS else None


def _is_same_kind(first: Definition, second: Definition) -> bool:
    return first.kind == second.kind
