"""Text of the table that `compat` reads."""

from __future__ import annotations

from collections import defaultdict

from moved_names import contrib, manual
from moved_names.collecting import OLDEST_SUPPORTED, Names
from moved_names.tracing import Place

# A module has moved to a current module that has this share of the names it defined; the smaller share suffices if both
# have the same last name.
SHARE, SHARE_OF_A_NAMESAKE = 0.9, 0.5
_HEAD = """\
# Old places of names that programs for tf.estimator import, and their current ones. Written by tools/moved_names; see
# docs/reference/moved-names.md. `.` at the beginning means tensorflow.python, `keras` the package of tf.keras.
#   MODULE SINCE = HOME             the current module is HOME
#   MODULE SINCE > HOME NAMES       these names are in HOME; OLD=NEW if the name differs there
#   MODULE SINCE ! NAMES            removed, without a successor
# SINCE is the first TensorFlow without it. If a name is listed twice, the first home that exists counts.
"""


def short(module: str) -> str:
    for long, brief in (("tensorflow.python", ""), ("tf_keras.src", "keras")):
        if module == long or module.startswith(long + "."):
            return (brief + module[len(long) :]) or "."
    return module


def homes_of(names: Names, place: Place) -> list[Place]:
    """Return the homes of a name in the supported versions, newest first."""
    trace = names.traces[place]
    supported = names.versions[names.versions.index(OLDEST_SUPPORTED) :]
    homes: list[Place] = []
    for version in [*reversed(supported), *(v for v in trace.homes if v.startswith("compiled"))]:
        home = trace.homes.get(version)
        if home is not None and home != place and home not in homes:
            homes.append(home)
    return homes


def whole_modules(names: Names) -> dict[str, tuple[str, str]]:
    """Return old module -> (since, current module), for modules that moved as a whole."""
    moved = {}
    by_module: dict[str, list[Place]] = defaultdict(list)
    for place in names.public():
        by_module[place[0]].append(place)
    for module, since in names.modules_gone.items():
        if module in manual.MODULES:
            moved[module] = (since, manual.MODULES[module])
            continue
        defined = [place for place in by_module[module] if place in names.defined]
        counts: dict[str, int] = defaultdict(int)
        for place in defined:
            homes = homes_of(names, place)
            if homes and homes[0][1] == place[1]:
                counts[homes[0][0]] += 1
        home = max(counts, key=lambda m: counts[m], default=None)
        if home is None or home in manual.MODULES.values():
            continue
        namesake = home.rpartition(".")[2] == module.rpartition(".")[2]
        if counts[home] >= (SHARE_OF_A_NAMESAKE if namesake else SHARE) * len(defined) and (
            namesake or len(defined) > 1
        ):
            moved[module] = (since, home)
    return moved


def text(names: Names) -> str:
    whole = whole_modules(names)
    lines: dict[str, list[str]] = defaultdict(list)
    for module, (since, home) in whole.items():
        lines[module].append(f"{since} = {short(home)}")
    moved: dict[tuple[str, str, int, str], list[str]] = defaultdict(list)
    gone: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (module, name), (home, new) in sorted(names.contrib.items()):
        moved[module, contrib.SINCE, 0, home].append(name if new == name else f"{name}={new}")
    for place, trace in sorted(names.traces.items()):
        module, name = place
        if module in manual.NOT_BY_TABLE or f"{module}.{name}" in manual.NOT_BY_TABLE:
            continue
        homes = homes_of(names, place)
        if not homes and not name.startswith("_") and name not in names.newest.get(whole.get(module, ("", ""))[1], ()):
            gone[module, trace.since].append(name)
        for rank, (home_module, new) in enumerate(homes):
            if rank == 0 and module in whole and home_module == whole[module][1] and new == name:
                continue
            moved[module, trace.since, rank, home_module].append(name if new == name else f"{name}={new}")
    for (module, since, _, home), entries in sorted(moved.items()):
        lines[module].append(f"{since} > {short(home)} {' '.join(entries)}")
    for (module, since), entries in sorted(gone.items()):
        lines[module].append(f"{since} ! {' '.join(entries)}")
    return _HEAD + "".join(f"{short(module)} {line}\n" for module in sorted(lines) for line in lines[module])
