"""What of tf.contrib has a home today: what it only showed of other packages, and what went there as it was.

tf.contrib was removed whole with TensorFlow 2.0, so that nothing can be followed from version to version. What its
public packages had of `tensorflow.python` is followed from there; what they had of the estimator package is looked up
in the last one; what was defined in tf.contrib itself counts where the same code, with the same name and arguments, is
elsewhere. Packages that do not say what of them is public are left out.
"""

from __future__ import annotations

from moved_names import by_hand
from moved_names.tracing import OWN_KERAS, Index, Place, Tracer, likeness
from moved_names.trees import Definition, Tree

SINCE = "2.0"
ROOT = "tensorflow.contrib"
SAME = 0.8  # share of words in common
# A package of which less is left is not there at all: a program that may do without it asks by importing it.
SHARE = 2 / 3


def homes(shown: Tree, tracer: Tracer, estimator: Tree) -> dict[Place, Place]:
    """(public module of tf.contrib, name) -> where it is today.

    Args:
        shown: TensorFlow 1.15 with tf.contrib and the estimator package of its time.
        tracer: of `tensorflow.python`.
        estimator: the last estimator package.
    """
    last = Index(estimator)
    found: dict[Place, Place] = {}
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
        if len(left) >= SHARE * len(public) or module in by_hand.CONTRIB_PACKAGES:
            found |= left
    return found | by_hand.CONTRIB


def _home(old: Definition, tracer: Tracer, estimator: Index) -> Place | None:
    newest = tracer.indexes[-1]
    if old.module.startswith("tensorflow.python"):
        number = max(n for n, index in enumerate(tracer.indexes) if index.at(old.place) is not None)
        now = newest.at(old.place)
        if now is not None:
            public = tracer.keras.public(old) if now.module.startswith(OWN_KERAS) else None
            return (public or now).place
        trace = tracer.follow(old.place, number)
        return trace.homes.get(newest.tree.version)
    if old.module.startswith("tensorflow_estimator") and ".contrib." not in old.module:
        now = estimator.at(old.place)
        if now is not None:
            return now.place
    same = [
        new
        for index in (newest, tracer.keras, estimator)
        for new in index.by_name[old.name]
        if new.kind == old.kind and new.arguments == old.arguments and len(old.words) > 3
    ]
    best = max(same, key=lambda new: likeness(old, new), default=None)
    return best.place if best is not None and likeness(old, best) >= SAME else None
