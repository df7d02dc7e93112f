"""A conversion changes nothing of a user's file outside of the edits of its rules."""

from __future__ import annotations

import ast

import pytest

from estimator_pipeline.migrate.code import convert
from estimator_pipeline.migrate.code.analysis.edits import (
    PLACE,
    Edit,
    Lines,
    Step,
    apply,
    comments_of,
    damaging_rule,
    keep_comments,
)
from estimator_pipeline.migrate.convert.convert import FilePlan

PROGRAM = '''"""A program."""
import tensorflow as tf

losses = tf.losses
TEXT = """one





five"""
NOTE = """
losses = a file of losses
"""


def prepare():
    losses = fetch('x')  # keras_heads.md, keras_canned.
    print('ready, tf.estimator and tf.compat.v1.layers')


def fetch(name):
    """Yields   three



    blank lines."""
    return [name]


def input_fn():
    return tf.data.Dataset.from_tensors(({'x': [[1.]]}, [[2.]])).repeat(9)


def model_fn(features, labels, mode):
    # not as keras_canned. does
    answer = tf.layers.dense(features['x'], 1)
    loss = losses.mean_squared_error(labels, answer)
    train_op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, {'y': answer}, loss, train_op)


def main():
    prepare()
    estimator = tf.estimator.Estimator(model_fn, 'model')
    estimator.train(input_fn, steps=4)
'''
COMMENTED = """import tensorflow as tf  # import

# above a function
def input_fn():  # def
    # start of a function
    data = tf.data.Dataset.from_tensors(({'x': [[1.]]}, [[2.]])).repeat(9)  # kept
    # above a removed statement
    iterator = data.make_one_shot_iterator()  # removed
    return iterator.get_next()  # replaced
    # end of a function


def model_fn(features,  # features
             labels, mode):
    # network

    # second line
    with tf.variable_scope('net'):  # with
        # in a scope
        answer = tf.layers.dense(  # dense
            features['x'],  # x
            1)  # end of dense
        # end of the scope
    # prediction
    if mode == tf.estimator.ModeKeys.PREDICT:  # if
        # in a branch
        return tf.estimator.EstimatorSpec(mode, {'y': answer})  # predicted
    # loss
    loss = tf.losses.mean_squared_error(
        labels,  # of one kind
        answer)  # mean
    # summary
    tf.summary.scalar('loss', loss)  # scalar
    if mode == tf.estimator.ModeKeys.EVAL:
        # metrics
        metrics = {
            # key
            'error': tf.metrics.mean_absolute_error(labels, answer)  # metric
        }
        # evaluated
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    # last
    step = tf.train.get_global_step()  # step
    # train op
    train_op = tf.train.AdamOptimizer(  # open
        # in brackets
        0.1).minimize(loss, step)  # closed

    # above a return
    return tf.estimator.EstimatorSpec(mode, {'y': answer}, loss, train_op)  # return
    # end of the model_fn


def main():
    # configuration
    config = tf.estimator.RunConfig(  # RunConfig
        save_checkpoints_steps=100,  # steps
        model_dir='model')  # folder
    # estimator
    estimator = tf.estimator.Estimator(
        model_fn,  # function
        config=config)  # created
    # specs
    train_spec = tf.estimator.TrainSpec(input_fn, max_steps=4)  # train
    eval_spec = tf.estimator.EvalSpec(input_fn,  # eval
                                      # all
                                      steps=None)
    # both
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)  # run
    # end of main


main()  # main
# end
"""
TARGETS = ("estimator", "keras")


def made_of(folder, text, **options):
    (folder / "one.py").write_text(text)
    (made,) = convert(folder / "one.py", **options).files
    return made


@pytest.mark.parametrize(
    ("after", "edits", "damaged"),
    [
        ("a = 2  # two\n\n\nb = '''x\n\n'''\n", [(4, 5, "2")], False),
        ("import os\na = 1  # two\n\n\nb = '''x\n\n'''\n", [(0, 0, "import os\n")], False),
        ("b = '''x\n\n'''\n", [(0, 15, "")], False),
        ("a = 1  # two\n\nb = '''x\n\n'''\n", [], True),  # a blank line
        ("a = 1\n\n\nb = '''x\n\n'''\n", [], True),  # a comment
        ("a = 1  # two\n\n\nb = '''x\n'''\n", [], True),  # a line of a string
        ("a = 2  # two\n\n\nb = '''x\n\n'''\n", [], True),
        ("a = 2  # two\n\n\nb = '''x\n\n'''\nc = 3\n", [(4, 5, "2")], True),
        ("a = '''  # two\n\n\nb = '''x\n\n'''\n", [(4, 5, "'''")], True),  # what follows is within a string now
    ],
)
def test_a_text_that_is_not_of_its_edits(after, edits, damaged):
    before = "a = 1  # two\n\n\nb = '''x\n\n'''\n"
    steps = [Step("names", before, [Edit(*edit) for edit in edits], after)]
    assert damaging_rule(before, after, steps) == ("names" if damaged else "")


def test_the_rule_before_an_unexplained_text_is_named():
    first, last = Step.of("names", "a = 1\n", [Edit(4, 5, "2")]), Step.of("notes", "a = 3\n", [Edit(0, 0, "# n\n")])
    assert damaging_rule("a = 1\n", last.after, [first, last]) == "names"
    assert damaging_rule("a = 1\n", "a = 3\n", [first]) == "names"
    assert damaging_rule("a = 1\n", "a = 1\n", []) == "" and damaging_rule("a = 1\n", "a = 2\n", []) == "conversion"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\n\n\nb\n\n\nc\n", "a\n\n\nc\n"),  # as many blank lines as there were
        ("a\nb\nc\n", "a\nc\n"),
        ("a\n\nb\nc\n", "a\n\nc\n"),
        ("a\n\nb\n", "a\n"),
    ],
)
def test_deleted_lines(text, left):
    lines = Lines(text)
    line = text.split("\n").index("b") + 1
    assert Step.of("", text, [lines.deletion(line, line)]).after == left


@pytest.mark.parametrize("to", TARGETS)
def test_strings_comments_and_statements_of_the_same_name_stay(tmp_path, to):
    made = made_of(tmp_path, PROGRAM, to=to)
    assert made.keras is (to != "estimator"), made.kept_as_estimator
    for text in (
        PROGRAM[PROGRAM.index("TEXT =") : PROGRAM.index("def input_fn")],
        "    # not as keras_canned. does\n",
        "    prepare()\n",
    ):
        assert text in made.after, made.after
    assert (f"losses = tf.{'compat.v1.' if to == 'estimator' else ''}losses\n" in made.after) is (to == "estimator")


def test_each_comment_is_kept_once(tmp_path):
    """Those of a replaced statement are lines above what replaces it, in their order."""
    file = made_of(tmp_path, COMMENTED)
    assert file.keras, file.kept_as_estimator
    before, after = ([comment for _, comment in comments_of(text)] for text in (COMMENTED, file.after))
    assert [after.count(comment) for comment in before] == [1] * len(before), file.after
    for lines in (
        "    # above a removed statement\n    # removed\n    return data  # replaced\n",
        "    # loss\n    # of one kind\n    # mean\n    # summary\n    # scalar\n    # metrics\n",
        "    # above a return\n    model.compile(\n",
        "    # features\n    # network\n    # second line\n    # with\n    # in a scope\n    # dense\n"
        "    # x\n    answer = ",
        "    # if\n    # in a branch\n    # predicted\n    return {'y': answer}",
        "    #     tf.compat.v1.summary.scalar('loss', loss)\n",
        "    return {'y': answer}  # return\n    # end of the model_fn\n",
        "    # specs\n    # train\n    # eval\n    # all\n    # both\n",
    ):
        assert lines in file.after, file.after


@pytest.mark.parametrize(
    ("text", "edits", "after"),
    [
        ("a = f(1,  # one\n      2)\n", [(6, 23, "2")], "# one\na = f(2)\n"),
        ("if a:\r\n  b = (\r\n# c\r\n    1)\r\n", [(14, 26, "1")], "if a:\r\n  # c\r\n  b = (1)\r\n"),
        ("a\n\n  # b\n  b  # c\nd\n", [(2, 18, "")], "a\n  # b\n  # c\nd\n"),  # a deletion with blank lines
        ("a  # b\n", [(0, 1, "c")], "c  # b\n"),  # outside of the edit
        ("a  # b\n", [(0, 6, "c  # b")], "c  # b\n"),  # in the new text
        ("# a\na\n# b\nb  # c\n", [(0, 16, "{4}\n  d\n  {10}\n  {99}\n  e")], "# a\n  d\n  # b\n  # c\n  e\n"),
    ],
)
def test_comments_of_a_replaced_text(text, edits, after):
    edits = [Edit(start, end, new.replace("{", PLACE[:2]).replace("}", "")) for start, end, new in edits]
    assert apply(text, keep_comments(text, edits)) == after


def test_a_comment_decides_nothing(tmp_path):
    """The same code comes of a program without its comments, and of one with the words that rules look for."""
    words = "global_step'] super( UPDATE_OPS .op.name loss_reduction weight_column tf_slim keras_heads. distribute."
    with_more = PROGRAM.replace("does\n", f"does {words}\n").replace("    # not", "    # '''\n    # not")
    plain = PROGRAM.replace("    # not as keras_canned. does\n", "")
    trees = [ast.dump(ast.parse(made_of(tmp_path, text).after)) for text in (PROGRAM, with_more, plain)]
    assert trees[0] == trees[1] == trees[2]


@pytest.mark.parametrize(
    ("statement", "stays"),
    [
        ("from tensorflow.keras import backend", True),
        ("import functools", True),
        ("from tensorflow import estimator", False),
    ],
)
def test_an_import_that_the_program_did_not_use(tmp_path, statement, stays):
    made = made_of(tmp_path, PROGRAM.replace("import tensorflow as tf\n", f"import tensorflow as tf\n{statement}\n"))
    assert made.keras and (f"{statement}\n" in made.after) is stays, made.kept_as_estimator


@pytest.mark.parametrize(
    ("name", "after"),
    [
        (
            "tf.contrib.data\n     # the lines\n     .TextLineDataset",
            "tf.compat.v1.data\n     # the lines\n     .TextLineDataset",
        ),
        ("tf.contrib.data  # them\n     .TextLineDataset", "tf.compat.v1.data  # them\n     .TextLineDataset"),
        ("tf  # of 1\n     .log", "tf.math  # of 1\n     .log"),
        ("tf  # of 1\n     .string_to_hash_bucket_fast", "tf  # of 1\n     .string_to_hash_bucket_fast"),
    ],
)
def test_a_comment_between_the_lines_of_a_name(tmp_path, name, after):
    """It stays; where the new name leaves it no place, the name does, too."""
    made = made_of(tmp_path, f"import tensorflow as tf\n\ndata = ({name}('a'))\n", notes="none")
    assert f"data = ({after}('a'))\n" in made.after


@pytest.mark.parametrize("to", TARGETS)
def test_a_rule_that_changes_more_than_it_says(tmp_path, monkeypatch, to):
    """The file stays as it is, and the rule is named."""
    write = FilePlan.apply

    def damages(plan):
        step = write(plan)
        return step._replace(after=step.after.replace("  # keras_heads.md, keras_canned.", ""))

    monkeypatch.setattr(FilePlan, "apply", damages)
    made = made_of(tmp_path, PROGRAM, to=to)
    if to == "estimator":
        assert made.changed and not made.kept
        return
    assert not made.keras and 'TEXT = """one\n\n\n\n\n\nfive' in made.after
    assert made.kept_as_estimator == "line 1: a rule would change code that it does not convert"


def test_text_that_no_edit_explains(tmp_path, monkeypatch):
    """A pass over the text after the last rule: nothing is written."""
    from estimator_pipeline.migrate.code import converter

    note = converter._note

    def passes(files, *arguments):
        note(files, *arguments)
        for file in files:
            file.after = file.after.replace("ready", "done")

    monkeypatch.setattr(converter, "_note", passes)
    made = made_of(tmp_path, PROGRAM)
    assert not made.changed and not made.changes
    assert made.kept == "the rule notes would change code that it does not convert"
