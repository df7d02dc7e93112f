"""From a RunConfig to what Keras has in its place: a seed, callbacks, a strategy, what it knows of the cluster."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.job import clusters, leftovers
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["RunConfigSettings", "configure", "lines", "settings"]


# Where they go, there is nothing to write: BackupAndRestore keeps one checkpoint, fit tells the time of steps.
_SILENT = ("keep_checkpoint_max", "keep_checkpoint_every_n_hours", "log_step_count_steps")
# Of these the new program says that they were there.
_TOLD = {
    "session_config": "there is no session; tf.config has settings of devices and threads",
    "save_checkpoints_secs": "callbacks count steps, not seconds",
}


@dataclass
class RunConfigSettings:
    """What a RunConfig said, as text.

    Attributes:
        node: the call; None where there is none.
        model_dir, seed, save_steps, summary_steps, strategy: "" where it says nothing.
        statement: what gives the configuration a name.
        dropped: what is left out, and why, for a comment.
        cluster: the cluster that it is asked for, and that gives the strategy: its name, or what makes it; "" where
            the program does not ask.
    """

    node: cst.Call | None = None
    model_dir: str = ""
    seed: str = ""
    save_steps: str = ""
    summary_steps: str = ""
    strategy: str = ""
    statement: cst.CSTNode | None = None
    dropped: list[str] = field(default_factory=list)
    cluster: str = ""

    @property
    def is_distributed(self) -> bool:
        """Whether it may train on several replicas."""
        return bool(self.strategy or self.cluster)


def settings(reader: Rewriter, config: cst.BaseExpression | None) -> RunConfigSettings:
    """Read the RunConfig of an Estimator.

    Raises:
        NotConvertible: it cannot be told, or it has what Keras has no place for.
    """
    if config is None or reader.source(config) == "None":
        return RunConfigSettings()
    call = reader.value(config)
    fields: dict[str, cst.Arg] = {}
    parts = []
    while isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value == "replace":
        parts.append(call)
        call = reader.value(call.func.value)
    if reader.called(call) != "tf.estimator.RunConfig":
        raise NotConvertible("a RunConfig that is not made in this file", config)
    assert isinstance(call, cst.Call)
    for one in (call, *reversed(parts)):
        if any(arg.star for arg in one.args):
            raise NotConvertible("a RunConfig whose arguments cannot be told", one)
        fields |= arguments(one, catalogue.row("tf.estimator.RunConfig").fields)
    found = RunConfigSettings(node=call)
    names = {
        "model_dir": "model_dir", "tf_random_seed": "seed", "save_checkpoints_steps": "save_steps",
        "save_summary_steps": "summary_steps", "train_distribute": "strategy",
    }  # fmt: skip
    asked = clusters.asked(reader, config) if isinstance(config, cst.Name) else []
    gone: list[cst.BaseExpression] = []
    for name, arg in fields.items():
        if name == "train_distribute" and clusters.has_servers(reader, arg.value):
            found.cluster = clusters.MADE
            gone.append(arg.value)
            continue
        text = reader.text(arg.value)
        if text == "None":
            continue
        if name in names:
            setattr(found, names[name], text)
        elif name in _TOLD:
            gone.append(arg.value)
            said = " ".join(reader.source(reader.value(arg.value)).split())
            found.dropped.append(f"{name}={said}: {_TOLD[name]}")
        elif name in _SILENT:
            continue
        else:
            raise NotConvertible(f"{name} of RunConfig has no counterpart in Keras", arg)
    if isinstance(config, cst.Name):
        found.statement = _statement(reader, config, asked)
        if asked:
            found.cluster = config.value
    removed = leftovers.remove(reader, gone, call)
    if found.cluster:
        reader.needs.add("keras_cluster")
        clusters.check_servers(reader, removed)
    return found


def _statement(reader: Rewriter, config: cst.Name, asked: Collection[cst.CSTNode]) -> cst.CSTNode:
    """The statement that makes the configuration, where the Estimators alone have it, and who asks for the cluster."""
    (binding,) = reader.program.bindings(config.value, reader.scope(config))
    for chain in reader.tree.chains:
        root: cst.CSTNode = chain
        while isinstance(root, cst.Attribute):
            root = root.value
        if not isinstance(root, cst.Name) or root.value != config.value or reader.home(root) != reader.home(config):
            continue
        arg = reader.tree.parents.get(chain)
        call = reader.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
        if chain in asked:
            continue
        if chain is root and isinstance(call, cst.Call) and "Estimator" in _kind(reader.called(call)):
            continue
        raise NotConvertible(f"{config.value} is asked for more than the Estimator needs", chain)
    for above in reader.tree.above(binding.node):
        if isinstance(above, cst.SimpleStatementLine):
            return above
    raise NotConvertible("a configuration that is no statement of its own", config)


def _kind(name: str) -> str:
    match = catalogue.find(name.replace("tf.", "tensorflow.", 1))
    return "Estimator" if match is not None and match.row.kind in (
        "estimator", "canned estimator", "keras estimator") else ""  # fmt: skip


def lines(reader: Rewriter, found: RunConfigSettings) -> list[str]:
    """Return the statements that stand where a configuration was made: the cluster and its strategy, the seed."""
    told = []
    if found.cluster:
        told.append("# Training is synchronous: a cluster with parameter servers is refused.")
        if found.cluster != clusters.MADE:
            told.append(f"{found.cluster} = {clusters.MADE}")
        if not found.strategy:
            told.append(f"strategy = {found.cluster}.strategy()")
    if found.seed:
        told.append(f"{reader.tf}.keras.utils.set_random_seed({found.seed})")
    return told


def configure(reader: Rewriter, found: RunConfigSettings, model_dir: str, name: str) -> list[str]:
    """Return the statement that makes the callbacks; nothing where the model has no folder."""
    if not model_dir:
        return []
    tf = reader.tf
    reader.needs.add("os")
    save = found.save_steps or "1000"
    told = [f"{tf}.keras.callbacks.BackupAndRestore(os.path.join({model_dir}, 'backup'), save_freq={save}),"]
    told.append(f"{tf}.keras.callbacks.TensorBoard({model_dir}, update_freq={found.summary_steps or '100'}),")
    unit = reader.tree.module.default_indent
    return [f"{name} = [", *(unit + one for one in told), "]"]
