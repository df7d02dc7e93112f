"""Suggestions for a name on which a legacy program failed: its new name or replacement.

`exec` prints a suggestion as one line below the traceback. Names of `tensorflow.python` are in the table (`table`).
Here are the others that old programs use: `tf.contrib`, names that moved to `tf.compat.v1`, methods, other packages,
and names that Python removed. Unknown names get no suggestion, since a guess could be wrong.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
import types
from collections.abc import Mapping

from estimator_pipeline.compat.moved_names import table as moved_names
from estimator_pipeline.errors import CompatError
from estimator_pipeline.utils import python_2

__all__ = ["of", "of_contrib"]

# Longest matching prefix below tf.contrib -> replacement. TensorFlow 2.0 removed all of it.
_CONTRIB: Mapping[str, str] = {
    "": "what of it has a home today is in docs/guides/migrate-code.md, and `estimator-pipeline migrate scan` lists it",
    "slim": "it is the package tf-slim today{install}: import tf_slim",
    "slim.nets": "the networks are tf_slim.nets, of the package tf-slim{install}",
    "layers": "its layers and arg_scope are tf_slim.layers, of the package tf-slim{install}; "
    "feature columns are tf.feature_column",
    "framework": "arg_scope and the variables are in the package tf-slim (tf_slim); nest is tf.nest",
    "learn": "tf.estimator took its place: learn.RunConfig is tf.estimator.RunConfig, and so on",
    "estimator": "tf.estimator and tf.estimator.experimental took it over: heads, canned Estimators, "
    "hooks of early stopping, InMemoryEvaluatorHook",
    "tpu": "it is tf.compat.v1.estimator.tpu and tf.compat.v1.tpu today",
    "distribute": "it is tf.distribute today",
    "cluster_resolver": "it is tf.distribute.cluster_resolver today",
    "rnn": "its cells are in tf.compat.v1.nn.rnn_cell",
    "cudnn_rnn": "tf.compat.v1.keras.layers.CuDNNLSTM and CuDNNGRU are there; checkpoints are others",
    "data": "it is tf.data.experimental and methods of tf.data.Dataset today",
    "lookup": "it is tf.lookup today",
    "metrics": "most of it is in tf.compat.v1.metrics",
    "losses": "it is tf.compat.v1.losses today",
    "summary": "it is tf.summary of TensorFlow 2 today",
    "saved_model": "it is tf.compat.v1.saved_model today",
    "predictor": "tf.saved_model.load takes its place, or Estimator.predict",
    "opt": "AdamW and others are in Keras (tf.keras.optimizers); the rest has no replacement",
    "training": "HParams has no replacement; bucket_by_sequence_length is a method of tf.data.Dataset",
    "eager": "it is tf.GradientTape, tf.Variable and tf.train.Checkpoint today",
    "image": "it is in tf.image, or has no replacement",
    "seq2seq": "it went to tensorflow-addons, which is no longer maintained",
    "crf": "it went to tensorflow-addons, which is no longer maintained",
    "tensorrt": "it is tensorflow.python.compiler.tensorrt today",
    "quantize": "tfmot (tensorflow-model-optimization) takes its place",
    "lite": "it is tf.lite today",
    "keras": "it is tf.keras today",
    "hub": "it is the package tensorflow-hub",
    "tensorboard": "the projector is tensorboard.plugins.projector, and takes the folder, not its writer",
    "mixed_precision": "it is tf.compat.v1.mixed_precision today",
    "batching": "it is tf.nondifferentiable_batch_function today",
    "timeseries": "nothing took its place",
    "factorization": "KMeans is tf.compat.v1.estimator.experimental.KMeans; the rest has no replacement",
    "gan": "it is the package tensorflow-gan: pip install --no-deps tensorflow-gan==2.1.0 'tensorflow-hub<0.16'; "
    "pip install tensorflow-probability",
    "boosted_trees": "TensorFlow Decision Forests takes its place",
}
# Removed method of TensorFlow objects -> replacement.
_METHODS: Mapping[str, str] = {
    "make_one_shot_iterator": "tf.compat.v1.data.make_one_shot_iterator(dataset) does it; an input_fn may return the "
    "data set itself",
    "make_initializable_iterator": "tf.compat.v1.data.make_initializable_iterator(dataset) does it",
    "output_shapes": "tf.compat.v1.data.get_output_shapes(dataset) returns them",
    "output_types": "tf.compat.v1.data.get_output_types(dataset) returns them",
    "output_classes": "tf.compat.v1.data.get_output_classes(dataset) returns them",
}
# Longest matching prefix of a missing module -> hint.
_MODULES: Mapping[str, str] = {
    "tensorflow.examples": "TensorFlow 2.0 removed its tutorials: tfds.load('mnist') has the data, and `exec --tf1` "
    "reads the files",
    "tensorflow.contrib": "",  # see _CONTRIB
    "tensorflow.models": "the models are the package tf-models-official, or a checkout on PYTHONPATH",
    "tf_slim": "pip install tf-slim",
    "tensorflow_hub": "pip install --no-deps tensorflow-hub",
    "tensorflow_transform": "pip install --no-deps tensorflow-transform; it requires an older TensorFlow",
    "tensorflow_probability": "pip install tensorflow-probability",
    "tensorflow_addons": "pip install --no-deps tensorflow-addons typeguard; it is no longer maintained",
    "tensorflow_ranking": "pip install --no-deps tensorflow-ranking==0.5.3 tensorflow-serving-api==2.15.1",
    "scipy.misc": "SciPy 1.12 removed it: its images are in the packages imageio and pillow",
    "sklearn.externals": "scikit-learn 0.23 removed it: joblib and six are packages of their own",
    "imp": "Python 3.12 removed it; `exec --tf1` has what programs use of it",
    "distutils": "Python 3.12 removed it; `pip install 'setuptools<82'` brings one",
    "pkg_resources": "setuptools 82 removed it; `pip install 'setuptools<82'` brings it back",
}
# Names that Python's standard library removed.
_OF_PYTHON: Mapping[tuple[str, str], str] = {
    (
        "inspect",
        "getargspec",
    ): "Python 3.11 removed it (getfullargspec takes its place); `exec --tf1` gives it back",
    ("inspect", "formatargspec"): "Python 3.11 removed it; with Python 3.10 the program runs",
    ("asyncio", "coroutine"): "Python 3.11 removed it; `exec --tf1` gives it back",
    ("time", "clock"): "Python 3.8 removed it: time.perf_counter takes its place; `exec --tf1` gives it back",
    ("fractions", "gcd"): "Python 3.9 removed it: it is math.gcd; `exec --tf1` gives it back",
    ("cgi", "escape"): "Python 3.8 removed it: it is html.escape",
    ("sys", "setdefaultencoding"): "Python 3 has none, since its strings are Unicode: remove the call",
}
# Names of Python 2.
_BUILTINS_2 = (
    "apply", "basestring", "cmp", "execfile", "long", "raw_input", "reduce", "reload", "unichr", "unicode", "xrange",
)  # fmt: skip
_MODULES_2 = (
    "ConfigParser", "Cookie", "HTMLParser", "Queue", "SocketServer", "StringIO", "Tkinter", "__builtin__", "cPickle",
    "cStringIO", "commands", "copy_reg", "httplib", "urllib2", "urlparse",
)  # fmt: skip
_NAMES_2 = (
    ("itertools", ("ifilter", "imap", "izip", "izip_longest")),
    ("os", ("getcwdu",)),
    ("string", ("join", "letters", "lowercase", "maketrans", "uppercase")),
    ("sys", ("maxint",)),
    ("urllib", ("quote", "unquote", "urlencode", "urlopen", "urlretrieve")),
)
_METHODS_2 = ("has_key", "iteritems", "iterkeys", "itervalues")
# What pandas removed and `exec --tf1` gives back.
_PANDAS = ("append", "as_matrix", "iteritems")
_OF_NUMPY = re.compile(r"module 'numpy' has no attribute '(\w+)'|`np\.(\w+)` was removed in the NumPy 2\.0")
# What TensorFlow Hub had for TensorFlow 1.
_OF_HUB = (
    "ImageModuleInfo",
    "LatestModuleExporter",
    "Module",
    "ModuleSpec",
    "add_signature",
    "attach_image_module_info",
    "attach_message",
    "create_module_spec",
    "create_module_spec_from_saved_model",
    "eval_function_for_module",
    "get_expected_image_size",
    "get_num_image_channels",
    "image_embedding_column",
    "load_module_spec",
    "register_module_for_export",
    "sparse_text_embedding_column",
    "text_embedding_column",
    "text_embedding_column_v2",
)
_OF_COLLECTIONS = (
    "Callable",
    "Iterable",
    "Iterator",
    "Mapping",
    "MutableMapping",
    "Sequence",
    "MutableSequence",
    "Set",
)
_BELOW_CONTRIB = re.compile(r"\bcontrib((?:\.\w+)*)(?:\s+import\s+\(?(\w+))?")
_CANNOT_IMPORT = re.compile(r"cannot import name '([^']+)' from (?:partially initialized module )?'([^']+)'")


# RunConfig's error for a TF_CONFIG with only workers and without a strategy.
_NO_CHIEF = 'If "cluster" is set in TF_CONFIG, it must have one "chief" node.'


# Errors of programs that are written for TensorFlow 2, in graph mode.
_NEEDS_EAGER = re.compile(
    r"(?i)symbolic ?(?:`?tf\.)?tensor|\b(?:only|if|when|use|uses|in) .*\beager (?:mode|execution)\b"
    r"|no loss to optimize"  # of a Keras model with its own train_step
)
_WITHOUT_TF1 = "a program written for TensorFlow 2 runs without --tf1"
# For programs that are written for TensorFlow 1 as a whole.
_TF1 = "; a program written for TensorFlow 1 runs unchanged with `estimator-pipeline exec --tf1`"
# Errors of such programs: arguments that TensorFlow 2 renamed, and graph code in eager mode.
_OLD_ARGUMENT = re.compile(
    r"[Gg]ot an unexpected keyword argument '(keep_dims|keep_prob|dimension|reduction_indices|seq_dim|batch_dim)'"
)
_NO_EAGER = re.compile(
    r"is not (?:compatible with|supported (?:when|with)) eager execution|when eager execution is enabled"
)


def of(error: BaseException, *, tf1: bool = False) -> str | None:
    """Return a one-line suggestion for the name on which a program failed, or None.

    Args:
        error: The program's exception; its cause is ignored.
        tf1: Whether the program already has TensorFlow 1's names.
    """
    if isinstance(error, CompatError):
        return None  # its message is sufficient
    line = (_of_version_2(error) if tf1 else None) or _of(error)
    if line is None or tf1:
        return line
    return line + _TF1 if line.startswith(("tf.", "TensorFlow 2 ")) and "TensorFlow Decision" not in line else line


def _of_version_2(error: BaseException) -> str | None:
    """Return a suggestion for an error of a TensorFlow 2 program that runs with TensorFlow 1's names, or None."""
    tf = sys.modules["tensorflow"]
    if isinstance(error, AttributeError) and isinstance(error.obj, types.ModuleType) and error.name:
        module = re.sub(
            r"^tensorflow\._api\.v2\.compat\.v1\.|^(?:tf_)?keras\.api\._v1\.keras\.", "", error.obj.__name__
        )
        if module != error.obj.__name__ and _dotted(tf, f"{module}.{error.name}") is not None:
            return f"tf.{module}.{error.name} is of TensorFlow 2: {_WITHOUT_TF1}"
        return None
    numpy = isinstance(error, AttributeError) and error.name == "numpy" and _is_of_tensorflow(error.obj)
    if tf.executing_eagerly() or _NO_EAGER.search(str(error)):
        return None
    if numpy or (isinstance(error, (RuntimeError, TypeError, ValueError)) and _NEEDS_EAGER.search(str(error))):
        return f"with --tf1 tensors have values in a session only: {_WITHOUT_TF1}"
    return None


def _is_of_tensorflow(value: object) -> bool:
    return type(value).__module__.startswith("tensorflow.")


def _of(error: BaseException) -> str | None:
    old = _python_2(error)
    if old is not None:
        where = error.filename if isinstance(error, SyntaxError) else _last(error).filename
        return f"{old}: pip install fissix; python -m fissix -w {where} converts most of the file to Python 3"
    if isinstance(error, TabError):
        return f"Python 2 allowed it: replace tabs by spaces, as `expand -t 8 {error.filename}` prints it"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _module(error.name, error)
    if isinstance(error, ImportError):
        match = _CANNOT_IMPORT.match(str(error))
        return _name(match[2], match[1], error) if match else None
    if isinstance(error, AttributeError) and (match := _OF_NUMPY.search(str(error))):
        return _numpy(match[1] or match[2])
    if isinstance(error, AttributeError) and error.name:
        if isinstance(error.obj, types.ModuleType):
            return _name(error.obj.__name__, error.name, error)
        if error.name in _PANDAS and type(error.obj).__module__.partition(".")[0] == "pandas":
            return f"pandas 1.0 to 2.0 removed {error.name}; `exec --tf1` gives it back"
        if _is_of_tensorflow(error.obj) and error.name in _METHODS:
            return f"TensorFlow 2 removed {error.name}: {_METHODS[error.name]}"
        if error.name == "value" and (error.obj is None or type(error.obj) is int) and ".value" in _line(error):
            return "TensorFlow 2 has numbers, not Dimension objects, in a TensorShape: leave out .value"
    if isinstance(error, TypeError) and (match := _OLD_ARGUMENT.search(str(error))):
        return f"TensorFlow 2 has another name for the argument {match[1]}"
    if isinstance(error, TypeError) and str(error).startswith("Descriptors cannot be created directly"):
        return (
            "an old protoc wrote this _pb2.py file: generate it again with a current protoc, or set "
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python, with which Protocol Buffers are slower"
        )
    if isinstance(error, RuntimeError) and _NO_EAGER.search(str(error)):
        return "TensorFlow 2 runs operations at once, outside of a graph"
    if isinstance(error, ValueError) and _NO_CHIEF in str(error):
        return (
            "without a strategy in RunConfig(train_distribute=...) a cluster has a chief: launch --chief, or one in "
            "TF_CONFIG; workers that train together need tf.distribute.MultiWorkerMirroredStrategy"
        )
    return None


def _python_2(error: BaseException) -> str | None:
    """Return what of the program is Python 2, or None."""
    if isinstance(error, SyntaxError):
        why = python_2.why_not_python_3(error.text or "", error.msg)
        return f"line {error.lineno} has {why}" if "Python 2" in why else None
    name = getattr(error, "name", None)
    if not name:
        return None
    known = isinstance(error, NameError) and name in _BUILTINS_2
    if isinstance(error, ModuleNotFoundError):
        known = name in _MODULES_2
    elif isinstance(error, (AttributeError, ImportError)):
        match = _CANNOT_IMPORT.match(str(error))
        obj = getattr(error, "obj", None)
        of, name = (match[2], match[1]) if match else (getattr(obj, "__name__", ""), name)
        known = (of, name) in {(module, each) for module, names in _NAMES_2 for each in names}
        known = known or (isinstance(obj, dict) and name in _METHODS_2)
    return f"{name} is of Python 2" if known else None


def _numpy(name: str) -> str | None:
    from estimator_pipeline.compat.tf1 import python_names

    if name not in python_names.NUMPY:
        return None
    return f"np.{name}: NumPy 1.24 or 2.0 removed it; `exec --tf1` gives it back"


def _module(name: str, error: BaseException) -> str | None:
    if name == "tensorflow.contrib" or name.startswith("tensorflow.contrib."):
        return _contrib(name.removeprefix("tensorflow.contrib").lstrip("."), error)
    if name == "keras" or name.startswith("keras."):
        return _keras(name)
    if name.startswith(moved_names.ROOT + "."):
        return _left_out(name)
    hint = _longest(_MODULES, name)
    return f"{name} is not installed: {hint}" if hint else None


def _name(module: str, name: str, error: BaseException) -> str | None:
    """Return a suggestion for `module.name`, or None."""
    if module == "keras" or (module.startswith("keras.") and not module.startswith("keras.api._v2.")):
        return _keras(f"{module}.{name}")
    if module == "tensorflow_hub" and name in _OF_HUB:
        return (
            f"tensorflow-hub 0.16 removed hub.{name}: pip install --no-deps 'tensorflow-hub<0.16', and run the program "
            "by `exec --tf1`"
        )
    if name.startswith("BoostedTrees"):
        return f"tensorflow-estimator 2.15 has no {name}: the package tensorflow-decision-forests took its place"
    if module == "collections" and name in _OF_COLLECTIONS:
        return f"Python 3.10 removed collections.{name}: it is collections.abc.{name}; `exec --tf1` gives it back"
    if (module, name) in _OF_PYTHON:
        return f"{module}.{name}: {_OF_PYTHON[module, name]}"
    if module.startswith(moved_names.ROOT):
        return _left_out(module, name)
    if name == "contrib" and re.fullmatch(r"tensorflow\.(?:_api\.v2\.)?compat\.v1(?:\._?compat\.v1)*", module):
        return _contrib("", error)
    api = _public(module)
    if api is None:
        return None
    full = f"{api}.{name}" if api else name
    if full == "contrib" or full.startswith("contrib."):
        return _contrib(full.removeprefix("contrib").lstrip("."), error)
    tf = sys.modules.get("tensorflow")
    value = None if tf is None else _dotted(tf.compat.v1, full)
    if value is not None:
        return f"tf.{full} is tf.compat.v1.{full} since TensorFlow 2.0"
    return None


def _public(module: str) -> str | None:
    """Return the name below tf of a public TensorFlow 2 module: `"tensorflow._api.v2.train"` -> `"train"`."""
    if module == "tensorflow":
        return ""
    match = re.match(r"(?:tensorflow\._api\.v2|tensorflow)\.(?!_|compat\b|python\b)([\w.]+)$", module)
    if match:
        return match[1]
    # tf.metrics and tf.losses are Keras's since TensorFlow 2.0.
    match = re.match(r"(?:tf_)?keras\.api\._v2\.keras\.([\w.]+)$", module)
    if match:
        return match[1]
    match = re.match(r"tensorflow_estimator\.python\.estimator\.api\._v2\.([\w.]+)$", module)
    return match[1] if match else None


def _dotted(root: object, name: str) -> object | None:
    for part in name.split("."):
        root = getattr(root, part, None)
        if root is None:
            return None
    return root


def _contrib(name: str, error: BaseException) -> str:
    """Return a suggestion for `name` below tf.contrib; the line that failed may have a longer name."""
    # TensorFlow's frames come last where it wraps its modules.
    lines = [line.line or "" for line in reversed(traceback.extract_tb(error.__traceback__))]
    match = next(filter(None, map(_BELOW_CONTRIB.search, lines)), None)
    if match:
        name = max(name, ".".join(filter(None, (match[1].lstrip("."), match[2]))), key=len)
    return f"tf.contrib{name and '.' + name} is gone since TensorFlow 2.0: {of_contrib(name)}"


def of_contrib(name: str) -> str:
    """Return the replacement of a name below tf.contrib (`"layers.batch_norm"`), or of its package."""
    hint = _CONTRIB[max((key for key in _CONTRIB if not key or name == key or name.startswith(key + ".")), key=len)]
    # Suggest an installation only for a missing package.
    return hint.replace("{install}", "" if importlib.util.find_spec("tf_slim") else " (pip install tf-slim)")


def _last(error: BaseException) -> traceback.FrameSummary:
    """Return the frame in which a program failed."""
    lines = traceback.extract_tb(error.__traceback__)
    return lines[-1] if lines else traceback.FrameSummary("", 0, "")


def _line(error: BaseException) -> str:
    """Return the line of code on which a program failed."""
    return _last(error).line or ""


def _keras(name: str) -> str | None:
    keras = sys.modules.get("keras")
    if keras is None or not str(getattr(keras, "__version__", "")).startswith("3."):
        return None
    same = "tf_" + name
    where = f", as {same}" if _can_be_had(same) else ""
    return f"the package keras is Keras {keras.__version__} here, which has no {name}; Keras 2 is tf_keras{where}"


def _can_be_had(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), attribute) or importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def _left_out(module: str, name: str | None = None) -> str | None:
    """Return a suggestion for a name in the table, if the patch is off in this process."""
    if moved_names.installed():
        return None
    table = moved_names.read()
    if module not in table:
        return None
    entry = table[module]
    if name is None and not (entry.whole or entry.homes):
        return f"{module} is gone since TensorFlow {entry.since}, and has no replacement"
    if name is not None and name in entry.gone:
        return f"{module}.{name} is gone since TensorFlow {entry.gone[name]}, and has no replacement"
    if name is None or name in entry.homes:
        home = entry.whole if name is None or name not in entry.homes else ".".join(entry.homes[name][0])
        where = f"it is {home} today; " if home else ""
        return f"{module + ('.' + name if name else '')} moved: {where}the patch moved-names, which is off, resolves it"
    return None


def _longest(table: Mapping[str, str], name: str) -> str | None:
    keys = [key for key in table if name == key or name.startswith(key + ".")]
    return table[max(keys, key=len)] if keys else None
