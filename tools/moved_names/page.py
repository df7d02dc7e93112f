"""The page of the documentation, and the few lines that are printed."""

from __future__ import annotations

from collections import Counter, defaultdict

from moved_names.collecting import Names
from moved_names.table import homes_of, whole_modules

_HEAD = """\
# Names of `tensorflow.python` that moved

Libraries for `tf.estimator` import private names of TensorFlow. Many of those are no longer where TensorFlow 1.15 to
2.15 had them; most had moved before 2.15, so that such a library does not run on plain 2.15 either. Under
`estimator-pipeline exec` and after `compat.install()` they are found where they were: one object under both names,
looked up on first use, with nothing replaced that is there (the patch `moved-names`, [compat.md](compat.md#patches)).
`compat.status()` lists the old names that a process has used.

This page and the table behind it, [moved_names.txt](../estimator_pipeline/compat/moved_names/moved_names.txt), are
written by

```sh
python tools/moved_names --pythons .venv/bin/python .venv-2.15/bin/python
```

which compares the Python files of {count} versions ({versions}): a definition that is gone is
looked for in the next version, by its code, its arguments and its public names. `--show NAME` prints what is known of a
name.

## In numbers

{summary}

Names are counted once for each module that has them, functions, classes and values alike, without those that begin
with `_` (of these, {private} that moved are put back as well). "Overlooked, perhaps" are names without a known
successor of which the newest version has a definition of the same name, kind and arguments somewhere; that is no proof
that it is the same thing.

{areas}

Of a name that has no successor the error says since when it is gone. It is an `ImportError` or `AttributeError` as
ever, so that a program's own `try` and `except` choose as they did.

## tf.contrib

TensorFlow 2.0 removed it. Of the packages below two thirds and more have a home (of `estimator` and `rnn` less):
{contrib} names that they only showed of TensorFlow or of the estimator package, or that went there as they were. They
can be imported as ever (`from tensorflow.contrib.estimator import stop_if_no_decrease_hook`). All other packages of
tf.contrib cannot, nor is the attribute `tf.contrib` there before somebody has imported one: programs ask for them to
learn which TensorFlow they have.

| package | names | for example |
| --- | --- | --- |
{packages}

## Modules that are another module today

| module | gone since | today |
| --- | --- | --- |
{modules}

Every other module that is gone is there as one that knows its names, where any of them has a successor.

## What has no successor

| below | names | gone since | for example |
| --- | --- | --- | --- |
{gone}
"""


def _counts(names: Names) -> tuple[int, int, int, int]:
    public = names.public()
    back = sum(bool(homes_of(names, place)) for place in public)
    return names.counted, len(public), back, len(names.elsewhere)


def summary(names: Names) -> str:
    counted, moved, back, overlooked = _counts(names)
    share = 100 * back / (back + overlooked)
    return "\n".join(
        [
            f"- {counted:,} public names in the modules of TensorFlow 1.15 to 2.15;",
            f"- {moved:,} of them are not at their place in {names.versions[-1]};",
            f"- {back:,} of these are put back, {moved - back:,} have no successor that is known;",
            f"- {overlooked} overlooked, perhaps: {share:.1f} % of all that may have a successor are put back.",
        ]
    )


def text(names: Names) -> str:
    areas: dict[str, Counter[str]] = defaultdict(Counter)
    gone: dict[str, list[tuple[tuple[int, ...], str]]] = defaultdict(list)
    for place, trace in names.public().items():
        parts = place[0].split(".")
        area = ".".join(parts[2:3]) or "(the package itself)"
        back = bool(homes_of(names, place))
        areas[area]["moved"] += 1
        areas[area]["back"] += back
        areas[area]["overlooked"] += place in names.elsewhere
        if not back:
            since = tuple(map(int, trace.since.split(".")))
            gone[".".join(parts[2:4]) or "(the package itself)"].append((since, place[1]))
    table = [
        "| below `tensorflow.python` | moved or gone | put back | overlooked, perhaps |",
        "| --- | --- | --- | --- |",
    ]
    for area, count in sorted(areas.items(), key=lambda item: -item[1]["moved"]):
        table.append(f"| {area} | {count['moved']:,} | {count['back']:,} | {count['overlooked']} |")
    modules = [
        f"| `{old.removeprefix('tensorflow.python.')}` | {since} | `{home}` |"
        for old, (since, home) in sorted(whole_modules(names).items())
    ]
    rows = []
    for area, found in sorted(gone.items()):
        found.sort()
        first, last = (".".join(map(str, since)) for since in (found[0][0], found[-1][0]))
        examples = ", ".join(f"`{name}`" for _, name in found[:3])
        rows.append(f"| {area} | {len(found)} | {first if first == last else f'{first} to {last}'} | {examples} |")
    shown: dict[str, list[str]] = defaultdict(list)
    for module, name in sorted(names.contrib):
        shown[module].append(name)
    packages = [
        f"| `{module}` | {len(found)} | {', '.join(f'`{name}`' for name in found[:3])} |"
        for module, found in shown.items()
    ]
    private = sum(name.startswith("_") and bool(homes_of(names, (m, name))) for m, name in names.traces)
    return _HEAD.format(
        count=len(names.versions),
        versions=f"{names.versions[0]} and {names.versions[1]} to {names.versions[-1]}",
        summary=summary(names),
        private=private,
        areas="\n".join(table),
        modules="\n".join(modules),
        contrib=len(names.contrib),
        packages="\n".join(packages),
        gone="\n".join(rows),
    )
