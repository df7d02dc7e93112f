"""`graph.pbtxt` is printed by protobuf's code in C, and parses to the graph that it was."""

from __future__ import annotations

from google.protobuf import text_format

from estimator_pipeline import compat
from estimator_pipeline.compat.patches import graph_text

tf = compat.install()

BYTES = bytes(range(256))
NAMES = ["", "é", "日本\U0001f600", "\uffff", "\t\"q\"\n'x'\\?\x7f\x01\x00"]
FLOATS = [
    0.0,
    -0.0,
    0.1,
    1 / 3,
    1e-45,
    3.4028234663852886e38,
    float("nan"),
    float("inf"),
    -float("inf"),
    16777217.0,
    1e16,
]
DOUBLES = [*FLOATS, 5e-324, 1.7976931348623157e308, 2.0**53 + 2, 1.0000000000000002]


def awkward():
    """A graph with what text may get wrong."""
    graph = tf.compat.v1.GraphDef()
    for name in NAMES:
        attr = graph.node.add(name=name, op="Const", input=["^a", "b:1"]).attr
        attr[name].s = name.encode()
        attr["empty"].SetInParent()
        attr["false"].b = False
        attr["list"].list.SetInParent()
        attr["scalar"].shape.SetInParent()
        attr["unknown rank"].shape.unknown_rank = True
        attr["no such type"].type = 9999
        attr["first"].i, attr["last"].i = -(2**63), 2**63 - 1
        attr["bytes"].list.s.extend([BYTES, BYTES[::-1], b"", b"\0001", b"\xc3\xa9", b"\xc3"])
        attr["floats"].list.f.extend(FLOATS)
        tensor = attr["tensor"].tensor
        tensor.CopyFrom(tf.make_tensor_proto([1.5, float("nan")]))
        tensor.double_val.extend(DOUBLES)
        tensor.uint64_val.append(2**64 - 1)
        attr["function"].func.attr[name].func.attr[name].placeholder = name
    function = graph.library.function.add()
    function.arg_attr[3].attr[NAMES[1]].i = function.arg_attr[10].attr["b"].i = 1
    function.ret["b"] = function.ret["a"] = "c"
    return graph


def parsed(path, kind):
    return text_format.Parse(path.read_bytes(), kind()).SerializeToString(deterministic=True)


def test_the_text_parses_to_the_same_graph(tmp_path):
    graph = awkward()
    same = graph.SerializeToString(deterministic=True)
    # A field that this TensorFlow does not know is left out of the text, as it was.
    strange = tf.compat.v1.GraphDef.FromString(same + b"\xfa\x3e\x03abc")
    for name, write, message in (
        ("a", tf.io.write_graph, graph),
        ("b", tf.compat.v1.train.write_graph, strange),
    ):
        assert write(message, str(tmp_path), name) == str(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == str(message)
        assert parsed(tmp_path / name, tf.compat.v1.GraphDef) == same
    tf.io.write_graph(graph, str(tmp_path), "binary", as_text=False)
    assert (tmp_path / "binary").read_bytes() == same
    tf.io.write_graph(tf.compat.v1.GraphDef(), str(tmp_path), "empty")
    assert (tmp_path / "empty").read_bytes() == b""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "binary", "empty"]


def test_a_meta_graph(tmp_path):
    with tf.Graph().as_default():
        tf.compat.v1.get_variable("weight", initializer=0.1)
        meta = tf.compat.v1.train.export_meta_graph(str(tmp_path / "meta"), as_text=True)
    assert (tmp_path / "meta").read_text(encoding="utf-8") == str(meta)
    assert parsed(tmp_path / "meta", tf.compat.v1.MetaGraphDef) == meta.SerializeToString(deterministic=True)


def test_what_a_training_writes(tmp_path):
    """The hooks of an Estimator's session write by it too; attributes are in the order of the code in C."""
    with tf.Graph().as_default() as graph:
        weight = tf.compat.v1.get_variable("weight", initializer=0.1)
        step = tf.compat.v1.train.get_or_create_global_step()
        train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(weight**2, step)
        with tf.compat.v1.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
            session.run(train_op)
        written = graph.as_graph_def(add_shapes=True)
    assert (tmp_path / "graph.pbtxt").read_text(encoding="utf-8") == str(written)
    assert parsed(tmp_path / "graph.pbtxt", tf.compat.v1.GraphDef) == written.SerializeToString(deterministic=True)


def test_text_that_is_no_utf_8_is_printed_as_before():
    class Latin1:
        def __str__(self):
            return b"\xa0".decode()

    printer = graph_text.in_c(lambda message, **options: f"{type(message).__name__} {options}")
    assert printer(Latin1(), float_format="") == "Latin1 {'float_format': ''}"
