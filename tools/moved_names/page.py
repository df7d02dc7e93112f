"""Text of docs/reference/moved-names.md and of the printed summary."""

from __future__ import annotations

from collections import Counter, defaultdict

from moved_names.collecting import Names
from moved_names.table import homes_of, whole_modules

_HEAD = """\
# Moved private names of TensorFlow

Libraries for `tf.estimator` import private names that TensorFlow has moved since 1.15, many before 2.15. Under
`estimator-pipeline exec` and after `compat.install()`, the old names resolve to the current objects at first use.
Existing names are not replaced (patch `moved-names`, [Patches](../guides/compat.md#patches)). `compat.status()`
lists the old names that the process used. An old name without a successor raises `ImportError` or `AttributeError`
with the version that removed it.

This page and [moved_names.txt](../../estimator_pipeline/compat/moved_names/moved_names.txt) are written by

```sh
python tools/moved_names --pythons .venv/bin/python .venv-2.15/bin/python
```

which compares the Python files of {count} versions ({versions}). It looks for a removed definition in the next
version, by code, arguments and public names. `--show NAME` prints the history of a name.

## Counts

{summary}

Names are counted once per module: functions, classes and values, without names that start with `_` ({private} of
those that moved also resolve). "Possibly missed": no successor is known, but the newest version has a definition of
the same name, kind and arguments somewhere, which may be unrelated.

{areas}

## tf.contrib

TensorFlow 2.0 removed it. These packages can be imported without `--tf1` (`from tensorflow.contrib.estimator import
stop_if_no_decrease_hook`), because two thirds or more of their names (fewer in `estimator` and `rnn`) are current
names of TensorFlow or the estimator package: {contrib} in total. Other packages of tf.contrib cannot be imported.
The attribute `tf.contrib` exists only after such an import, because programs test it to detect TensorFlow's
version.

| package | names | for example |
| --- | --- | --- |
{packages}

## Renamed modules

| module | removed in | today |
| --- | --- | --- |
{modules}

Other removed modules can be imported if any of their names has a successor.

## Names without a successor

| below | names | removed in | for example |
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
            f"- {moved:,} of them moved or were removed by {names.versions[-1]};",
            f"- {back:,} of these resolve, {moved - back:,} have no known successor;",
            f"- {overlooked} possibly missed: {share:.1f} % of all names that may have a successor resolve.",
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
        "| below `tensorflow.python` | moved or removed | resolve | possibly missed |",
        "| --- | --- | --- | --- |",
    ]
    for area, count in sorted(areas.items(), key=lambda item: -item[1]["moved"]):
        table.append(f"| {area} | {count['moved']:,} | {count['back']:,} | {count['overlooked']} |")
    modules = [
        f"| `{old.removeprefix('tensorflow.python.')}` | {since} | `{home}` |"
        for old, (since, home) in sorted(whole_modules(names).items())
    ]
    rows = []
    for area, removed in sorted(gone.items()):
        removed.sort()
        first, last = (".".join(map(str, since)) for since in (removed[0][0], removed[-1][0]))
        examples = ", ".join(f"`{name}`" for _, name in removed[:3])
        rows.append(f"| {area} | {len(removed)} | {first if first == last else f'{first} to {last}'} | {examples} |")
    shown: dict[str, list[str]] = defaultdict(list)
    for module, name in sorted(names.contrib):
        shown[module].append(name)
    packages = [
        f"| `{module}` | {len(exports)} | {', '.join(f'`{name}`' for name in exports[:3])} |"
        for module, exports in shown.items()
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
