"""Where a name of an old TensorFlow is in later ones, followed from version to version.

A definition that stands where it stood has not moved. One that is gone is looked for in the next version only: a move
leaves the code as it was, so the definition whose words are most alike is it, under its own name first, else under
another one (with a higher bar). What is nowhere then is looked for by its public names, and in Keras, which left
TensorFlow's tree.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from moved_names.trees import Definition, Tree

ALIKE = 0.5  # share of words in common, of a definition of the same name
RENAMED = 0.8  # of one with another name
IN_KERAS = 0.35  # of one of the same name in Keras: years of changes lie between
FEW = 8  # words; with fewer, likeness says nothing
OWN_KERAS = "tensorflow.python.keras"
KERAS = "tf_keras.src"
Place = tuple[str, str]


@dataclass
class Trace:
    """What became of a name.

    Attributes:
        since: the first version without it.
        homes: version -> where it is there, of the later versions that have it.
        how: of the newest version: "moved", "renamed", "public", "keras", "compiled", "by hand", or "gone".
    """

    since: str
    homes: dict[str, Place] = field(default_factory=dict)
    how: str = "gone"


def likeness(one: Definition, two: Definition) -> float:
    if not one.words and not two.words:
        return 1.0 if one.arguments == two.arguments else 0.0
    return len(one.words & two.words) / len(one.words | two.words)


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
        found = self.places.get(place) or self.tree.find(*place)
        return found if isinstance(found, Definition) else None

    def public(self, old: Definition) -> Definition | None:
        """Return the one definition that has a public name of the old one."""
        for export in sorted(old.exports, reverse=True):
            found = [new for new in self.by_export[export] if _one_kind(old, new)]
            if len(found) == 1:
                return found[0]
        return None


class Tracer:
    """Follows definitions through versions.

    Args:
        trees: of TensorFlow, oldest first.
        keras: of tf_keras.
        refused: pairs of places that only look like a move.
    """

    def __init__(self, trees: list[Tree], keras: Tree, refused: set[tuple[str, str]]) -> None:
        self.indexes = [Index(tree) for tree in trees]
        self.keras = Index(keras)
        self.refused = refused
        self._steps: dict[tuple[int, Place], tuple[Definition | None, str]] = {}

    def follow(self, place: Place, last: int) -> Trace:
        """From version number `last`, the last one that has `place`, to the newest."""
        first = definition = self.indexes[last].at(place)
        assert first is not None and definition is not None, place
        trace = Trace(since=self.indexes[last + 1].tree.version, how="moved")
        for number in range(last, len(self.indexes) - 1):
            old = definition
            version = self.indexes[number + 1].tree.version
            definition, how = self._step(number, old)
            if definition is None:
                found = self._in_keras(old, place)
                trace.how = "gone" if found is None else "keras"
                if found is not None:
                    rest = [index.tree.version for index in self.indexes[number + 1 :]]
                    trace.homes |= dict.fromkeys(rest, found)
                return trace
            if how in ("renamed", "public"):
                trace.how = how
            trace.homes[version] = definition.place
        if definition.module.startswith(OWN_KERAS) and not place[0].startswith(OWN_KERAS):
            # TensorFlow keeps a private copy of Keras; what programs know is Keras's own, where that is the same.
            found = self.keras.public(first)
            if found is not None:
                trace.homes, trace.how = dict.fromkeys(trace.homes, found.place), "keras"
        return trace

    def _step(self, number: int, old: Definition) -> tuple[Definition | None, str]:
        """Return what became of a definition of version `number` in the next one, and how it was found."""
        key = (number, old.place)
        if key not in self._steps:
            self._steps[key] = self._found(self.indexes[number], self.indexes[number + 1], old)
        return self._steps[key]

    def _found(self, before: Index, after: Index, old: Definition) -> tuple[Definition | None, str]:
        there = after.at(old.place)
        if there is not None:
            return there, "moved"
        same = [new for new in after.by_name[old.name] if _one_kind(old, new) and self._may(old, new)]
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
                # Generated functions are all alike.
                and (not old.module.rpartition(".")[2].startswith("gen_") or new.name.startswith(old.name))
                and self._may(old, new)
            ]
            # Two functions of one shape are often neighbours: in the same module before all others.
            best = max(fresh, key=lambda new: (likeness(old, new), new.module == old.module), default=None)
            if best is not None and likeness(old, best) >= RENAMED:
                return best, "renamed"
        return None, "gone"

    def _may(self, old: Definition, new: Definition) -> bool:
        return (".".join(old.place), ".".join(new.place)) not in self.refused

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


def _one_kind(one: Definition, two: Definition) -> bool:
    return one.kind == two.kind
