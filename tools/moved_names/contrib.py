"""Current homes of the names of tf.contrib: re-exports from other packages, and code that moved unchanged.

TensorFlow 2.0 removed tf.contrib completely, so its names cannot be followed from version to version. Names that its
public packages re-exported from `tensorflow.python` are followed from there; names of the estimator package are looked
up in its last version; a name that was defined in tf.contrib counts if the same code, with the same name and
arguments, exists elsewhere. Packages that do not declare their public names are left out.
"""

from __future__ import annotations

from moved_names import manual
from moved_names.tracing import OWN_KERAS, Index, Place, Tracer, likeness
from moved_names.trees import Definition, Tree

SINCE = "2.0"
ROOT = "tensorflow.contrib"
SAME = 0.8  # share of words in common
# A package that keeps less is not importable: programs detect optional packages by importing them.
SHARE = 2 / 3


def homes(shown: Tree, tracer: Tracer, estimator: Tree) -> dict[Place, Place]:
    """Return (public module of tf.contrib, name) -> its current place.

    Args:
        shown: TensorFlow 1.15 with tf.contrib and the estimator package of its time.
        tracer: The tracer of `tensorflow.python`.
        estimator: the last estimator package.
    """
    last = Index(estimator)
    current: dict[Place, Place] = {}
    for module in shown.modules:
        if module.count(".") != 2 or not module.startswith(ROOT + ".") or module not in shown.allowed:
            continue
        public = {
            name: definition
            for name in shown.names(module)
            if not name.startswith("_") and name in shown.allowed[module]
            if isinstance(definition := shown.find(module, name), Definition) and definition.kind != "value"
        }
        homes = {(module, name): _home(definition, tracer, last) for name, definition in public.items()}
        left = {place: home for place, home in homes.items() if home is not None}
        if len(left) >= SHARE * len(public) or module in manual.CONTRIB_PACKAGES:
            current |= left
    return current | manual.CONTRIB


def _home(old: Definition, tracer: Tracer, estimator: Index) -> Place | None:
    newest = tracer.indexes[-1]
    if old.module.startswith("tensorflow.python"):
        number = max(n for n, index in enumerate(tracer.indexes) if index.at(old.place) is not None)
        current = newest.at(old.place)
        if current is not None:
            public = tracer.keras.public(old) if current.module.startswith(OWN_KERAS) else None
            return (public or current).place
        trace = tracer.follow(old.place, number)
        return trace.homes.get(newest.tree.version)
    if old.module.startswith("tensorflow_estimator") and ".contrib." not in old.module:
        current = estimator.at(old.place)
        if current is not None:
            return current.place
    same = [
        new
        for index in (newest, tracer.keras, estimator)
        for new in index.by_name[old.name]
        if new.kind == old.kind and new.arguments == old.arguments and len(old.words) > 3
    ]
    best = max(same, key=lambda new: likeness(old, new), default=None)
    return best.place if best is not None and likeness(old, best) >= SAME else None
