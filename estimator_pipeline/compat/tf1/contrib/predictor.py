"""`tf.contrib.predictor`: prediction functions of a SavedModel or an Estimator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

__all__ = ["Predictor", "from_estimator", "from_saved_model"]

_v1: Any = tf.compat.v1
_DEFAULT = "serving_default"


class Predictor:
    """A session of a model, called with name -> value, which returns name -> value.

    Attributes:
        graph: The model's graph.
        session: The session in which it runs.
        feed_tensors: Name -> tensor of the inputs.
        fetch_tensors: Name -> tensor of the outputs.
    """

    def __init__(self, graph: Any, session: Any, feeds: Mapping[str, Any], fetches: Mapping[str, Any]) -> None:
        self._graph, self._session = graph, session
        self._feed_tensors, self._fetch_tensors = dict(feeds), dict(fetches)

    @property
    def graph(self) -> Any:
        return self._graph

    @property
    def session(self) -> Any:
        return self._session

    @property
    def feed_tensors(self) -> dict[str, Any]:
        return self._feed_tensors

    @property
    def fetch_tensors(self) -> dict[str, Any]:
        return self._fetch_tensors

    def __repr__(self) -> str:
        return f"{type(self).__name__} with feed tensors {self.feed_tensors} and fetch_tensors {self.fetch_tensors}"

    def __call__(self, input_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model.

        Args:
            input_dict: Name -> value of all required inputs.

        Raises:
            ValueError: The model has no such input.
        """
        unknown = sorted(set(input_dict) - set(self._feed_tensors))
        if unknown:
            raise ValueError(f"Got unexpected keys in input_dict: {unknown}; expected: {sorted(self._feed_tensors)}")
        feeds = {self._feed_tensors[name]: value for name, value in input_dict.items()}
        return self._session.run(self._fetch_tensors, feed_dict=feeds)


def from_saved_model(
    export_dir: Any,
    signature_def_key: str | None = None,
    signature_def: Any = None,
    input_names: Mapping[str, str] | None = None,
    output_names: Mapping[str, str] | None = None,
    tags: str | None = None,
    graph: Any = None,
    config: Any = None,
) -> Predictor:
    """Return a predictor of a SavedModel.

    Args:
        export_dir: The folder of the SavedModel.
        signature_def_key: The key of the signature; "serving_default" by default.
        signature_def: Alternatively, the signature.
        input_names: Alternatively, name -> name of an input tensor in the graph; with `output_names`.
        output_names: The same for the outputs.
        tags: The comma-separated tags of the model's graph; "serve" by default.
        graph: The graph into which the model is loaded; a new one by default.
        config: The session's ConfigProto.

    Raises:
        ValueError: More than one of the three alternatives is set, or there is no such signature.
    """
    ways = [signature_def_key is not None, signature_def is not None, input_names is not None]
    if sum(ways) > 1:
        raise ValueError(
            "You must specify at most one of signature_def_key OR signature_def OR (input_names AND output_names)."
        )
    if (input_names is None) != (output_names is None):
        raise ValueError("input_names and output_names must both be specified or both be unspecified.")
    graph = tf.Graph() if graph is None else graph
    with graph.as_default():
        session = _v1.Session(graph=graph, config=config)
        meta = _v1.saved_model.load(session, (tags or "serve").split(","), os.fsdecode(export_dir))
    if input_names is None:
        if signature_def is None:
            key = signature_def_key or _DEFAULT
            if key not in meta.signature_def:
                raise ValueError(
                    f"Got signature_def_key {key!r}. Available signatures are {sorted(meta.signature_def)}."
                )
            signature_def = meta.signature_def[key]
        input_names = {name: info.name for name, info in signature_def.inputs.items()}
        output_names = {name: info.name for name, info in signature_def.outputs.items()}
    assert output_names is not None
    return Predictor(
        graph,
        session,
        {name: graph.get_tensor_by_name(tensor) for name, tensor in input_names.items()},
        {name: graph.get_tensor_by_name(tensor) for name, tensor in output_names.items()},
    )


def from_estimator(
    estimator: Any,
    serving_input_receiver_fn: Any,
    output_key: str | None = None,
    graph: Any = None,
    config: Any = None,
) -> Predictor:
    """Return a predictor of an Estimator's latest checkpoint.

    Args:
        estimator: A tf.estimator Estimator.
        serving_input_receiver_fn: Creates the inputs.
        output_key: The key of one of the export_outputs; the default output by default.
        graph: The graph in which the model is built; a new one by default.
        config: The session's ConfigProto.

    Raises:
        ValueError: The model has no such output, or there is no checkpoint.
    """
    graph = tf.Graph() if graph is None else graph
    with graph.as_default():
        receiver = serving_input_receiver_fn()
        spec = estimator._call_model_fn(receiver.features, None, tf.estimator.ModeKeys.PREDICT, estimator.config)
        checkpoint = tf.train.latest_checkpoint(estimator.model_dir)
        if checkpoint is None:
            raise ValueError(f"no checkpoint in {estimator.model_dir}")
        outputs = spec.export_outputs or {}
        key = output_key or (_DEFAULT if _DEFAULT in outputs or len(outputs) != 1 else next(iter(outputs)))
        if outputs and key not in outputs:
            raise ValueError(f"output_key must be one of {sorted(outputs)}; got {key}")
        # Before the session, which finalizes the graph.
        fetches = _tensors(outputs[key]) if outputs else spec.predictions
        creator = _v1.train.ChiefSessionCreator(
            scaffold=spec.scaffold, config=config, checkpoint_filename_with_path=checkpoint
        )
        session = _v1.train.MonitoredSession(session_creator=creator)
    fetches = fetches if isinstance(fetches, dict) else {"output": fetches}
    return Predictor(graph, session, receiver.receiver_tensors, fetches)


def _tensors(output: Any) -> dict[str, Any]:
    """Return the tensors of an export output, by the names of its signature."""
    inputs = {"x": tf.zeros([], tf.string)}
    infos = output.as_signature_def(inputs).outputs
    graph = _v1.get_default_graph()
    return {name: graph.get_tensor_by_name(info.name) for name, info in infos.items()}
