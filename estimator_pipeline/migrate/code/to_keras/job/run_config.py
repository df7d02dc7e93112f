"""Conversion of a RunConfig to a seed, callbacks, a strategy and a cluster description."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.job import clusters, leftovers
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["RunConfigSettings", "format_callbacks", "format_statements", "read_settings"]


# Dropped without a comment: BackupAndRestore keeps one checkpoint, and fit logs the time per step.
_IGNORED = ("keep_checkpoint_max", "keep_checkpoint_every_n_hours", "log_step_count_steps")
# Dropped with a comment in the converted program.
_REPORTED = {
    "session_config": "there is no session; tf.config has settings of devices and threads",
    "save_checkpoints_secs": "callbacks count steps, not seconds",
}


@dataclass
class RunConfigSettings:
    """Fields of a RunConfig, as text.

    Attributes:
        model_dir, seed, save_steps, summary_steps, strategy: "" if not set.
        statement: the statement that assigns the RunConfig to a name.
        dropped: dropped fields with the reason, for comments.
        cluster: name of the cluster description, or the call that creates it; it provides the strategy. "" if the
            program does not need a cluster.
    """

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
        """Return whether training may run on several replicas."""
        return bool(self.strategy or self.cluster)


def read_settings(reader: Rewriter, config: cst.BaseExpression | None) -> RunConfigSettings:
    """Read the RunConfig of an Estimator.

    Raises:
        NotConvertible: the RunConfig cannot be determined, or a field has no counterpart in Keras.
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
        raise NotConvertible("a RunConfig that is not created in this file", config)
    assert isinstance(call, cst.Call)
    for part in (call, *reversed(parts)):
        if any(arg.star for arg in part.args):
            raise NotConvertible("a RunConfig whose arguments cannot be determined", part)
        fields |= arguments(part, catalogue.row("tf.estimator.RunConfig").fields)
    result = RunConfigSettings()
    names = {
        "model_dir": "model_dir", "tf_random_seed": "seed", "save_checkpoints_steps": "save_steps",
        "save_summary_steps": "summary_steps", "train_distribute": "strategy",
    }  # fmt: skip
    cluster_uses = clusters.find_cluster_uses(reader, config) if isinstance(config, cst.Name) else []
    gone: list[cst.BaseExpression] = []
    for name, arg in fields.items():
        if name == "train_distribute" and clusters.has_servers(reader, arg.value):
            result.cluster = clusters.CLUSTER_CALL
            gone.append(arg.value)
            continue
        text = reader.text(arg.value)
        if text == "None":
            continue
        if name in names:
            setattr(result, names[name], text)
        elif name in _REPORTED:
            gone.append(arg.value)
            source = " ".join(reader.source(reader.value(arg.value)).split())
            result.dropped.append(f"{name}={source}: {_REPORTED[name]}")
        elif name in _IGNORED:
            continue
        else:
            raise NotConvertible(f"{name} of RunConfig has no counterpart in Keras", arg)
    if isinstance(config, cst.Name):
        result.statement = _find_statement(reader, config, cluster_uses)
        if cluster_uses:
            result.cluster = config.value
    removed = leftovers.remove(reader, gone, call)
    if result.cluster:
        reader.needs.add("keras_cluster")
        clusters.check_servers(reader, removed)
    return result


def _find_statement(reader: Rewriter, config: cst.Name, cluster_uses: Collection[cst.CSTNode]) -> cst.CSTNode:
    """Return the statement that creates a RunConfig; check that it has no other uses."""
    (binding,) = reader.program.bindings(config.value, reader.scope(config))
    for chain in reader.tree.chains:
        root: cst.CSTNode = chain
        while isinstance(root, cst.Attribute):
            root = root.value
        if not isinstance(root, cst.Name) or root.value != config.value or reader.home(root) != reader.home(config):
            continue
        arg = reader.tree.parents.get(chain)
        call = reader.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
        if chain in cluster_uses:
            continue
        if chain is root and isinstance(call, cst.Call) and "Estimator" in _kind(reader.called(call)):
            continue
        raise NotConvertible(f"{config.value} is also used outside of the Estimator", chain)
    for above in reader.tree.above(binding.node):
        if isinstance(above, cst.SimpleStatementLine):
            return above
    raise NotConvertible("a RunConfig that is not assigned in a separate statement", config)


def _kind(name: str) -> str:
    match = catalogue.find(name.replace("tf.", "tensorflow.", 1))
    return "Estimator" if match is not None and match.row.kind in (
        "estimator", "canned estimator", "keras estimator") else ""  # fmt: skip


def format_statements(reader: Rewriter, config: RunConfigSettings) -> list[str]:
    """Return the statements for the cluster, its strategy and the seed."""
    statements = []
    if config.cluster:
        statements.append("# Training is synchronous: a cluster with parameter servers is rejected.")
        if config.cluster != clusters.CLUSTER_CALL:
            statements.append(f"{config.cluster} = {clusters.CLUSTER_CALL}")
        if not config.strategy:
            statements.append(f"strategy = {config.cluster}.strategy()")
    if config.seed:
        statements.append(f"{reader.tf}.keras.utils.set_random_seed({config.seed})")
    return statements


def format_callbacks(reader: Rewriter, config: RunConfigSettings, model_dir: str, name: str) -> list[str]:
    """Return the statement that creates the callbacks; [] if the model has no folder."""
    if not model_dir:
        return []
    tf = reader.tf
    reader.needs.add("os")
    save = config.save_steps or "1000"
    callbacks = [f"{tf}.keras.callbacks.BackupAndRestore(os.path.join({model_dir}, 'backup'), save_freq={save}),"]
    callbacks.append(f"{tf}.keras.callbacks.TensorBoard({model_dir}, update_freq={config.summary_steps or '100'}),")
    unit = reader.tree.module.default_indent
    return [f"{name} = [", *(unit + line for line in callbacks), "]"]
