"""Values that a job's model does not take: ids, numbers as they are, NaN; and hints in the language of the reader."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.source import ArraySource
from estimator_pipeline.inputs.sources.columns import Column
from estimator_pipeline.inputs.sources.csv import CsvFormat
from estimator_pipeline.inputs.sources.table import open_table
from estimator_pipeline.inputs.subset import Subset
from estimator_pipeline.inputs.value_checks import ValueScan, job_scan, unknown_ids, unscaled
from estimator_pipeline.job import make_job
from estimator_pipeline.utils.fixes import fix, of_job_file

COLUMNS = [Column("x", "float32"), Column("t", "string"), Column("device", "int64")]
PARAMS = {"numeric": ["x"], "categorical": {"device": 8}}


def job(params=PARAMS, source="csv", **model):
    types = {"x": "float32", "device": "int64", "label": "int64"}
    path = "t.npz" if source == "arrays" else "t.csv"
    section = {"source": source, "train": path, "eval": path, "global_batch_size": 4}
    section |= {"columns": types} if source == "csv" else {}
    return make_job(
        {"model": {"name": "wide_deep", "params": params, **model}, "input": section, "run": {"model_dir": "m"}}
    )


def table(tmp_path, lines, limit):
    """Two files, the second with the lines; texts with line breaks, so that lines and records differ."""
    (tmp_path / "1.csv").write_text('x,t,device\n1,"a\nb",0\n')
    (tmp_path / "2.csv").write_text('x,t,device\n1,"a\nb",7\n' + "".join(f"{line}\n" for line in lines))
    paths = [str(tmp_path / f"{number}.csv") for number in (1, 2)]
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    return open_table(paths, CsvFormat(), COLUMNS, description="t", memory_limit=limit, environ=environ)


@pytest.mark.parametrize("limit", [2**40, 0], ids=["in memory", "in files"])
def test_an_id_that_the_model_does_not_have(tmp_path, limit):
    source = table(tmp_path, ["1,c,8", "1,c,3", "1,c,12"], limit)
    scan = job_scan(job(), ["x", "t", "device"])
    error = unknown_ids(scan.read(source), job(), use="training", place=source.place)
    assert error.code == "data/unknown-id" and error.exit_code == 2
    assert "'device' has the id 8" in error.message and "8 ids (0 to 7)" in error.message
    assert "2.csv, line 4" in error.found and "2 training records" in error.found and "0 to 12" in error.found
    assert "{params: {categorical: {device: 13}}}" in error.hint
    assert "{features: {x: numeric, device: categorical}}" in error.hint
    # The share of an evaluation: its places are those of the files.
    share = Subset(source, np.array([0, 1, 4]), description="a share")
    error = unknown_ids(ValueScan({"device": 8}).read(share), job(), use="evaluation", place=share.place)
    assert "2.csv, line 6" in error.found and "1 evaluation record " in error.found


def test_ids_below_0_and_ids_with_an_embedding():
    source = ArraySource({"device": np.array([[1], [-2]])}, description="arrays")
    scan = ValueScan({"device": 8}).read(source)
    error = unknown_ids(scan, job(source="arrays"), use="training", place=source.place)
    assert error.hint == "correct the records: ids start at 0" and "record 1" in error.found
    about = {"buckets": 8, "embedding_dim": 4}
    sized = job({"categorical": {"device": about}}, source="arrays")
    scan = job_scan(sized, ["device"])
    scan.add({"device": np.array([9])}, 0)
    error = unknown_ids(scan, sized, use="training", place=str)
    assert "{device: {buckets: 10, embedding_dim: 4}}" in error.hint and "features" not in error.hint
    scan = ValueScan({"device": 8})
    scan.add({"device": np.arange(8)}, 0)
    assert unknown_ids(scan, job(), use="training", place=str) is None


@pytest.mark.parametrize(
    ("mean", "deviation", "is_warned"),
    [(0, 1, False), (0.5, 0.5, False), (5, 5, False), (0, 100, False), (40, 15, True), (30, 1, True), (0, 1000, True),
     (-50, 1, True)],
)  # fmt: skip
def test_numbers_that_do_not_train(mean, deviation, is_warned):
    """The cases that were measured; see the comment of `_FAR`."""
    scan = ValueScan(numbers=["x"])
    for first in range(0, 1000, 100):
        sign = np.where(np.arange(100) % 2, 1, -1)
        scan.add({"x": (mean + deviation * sign).astype("float32")}, first)
    warned = unscaled(scan, job())
    assert (warned is not None) is is_warned
    if is_warned:
        assert "'x' (" in warned[0] and "{features: {x: numeric, device: categorical}}" in warned[2]
        assert "features" not in unscaled(scan, job(source="arrays"))[2]


def test_the_remedy_is_a_valid_job():
    assert job({}, features={"x": "numeric", "device": "categorical"}).has_features


def test_jobs_without_columns_to_check():
    assert job_scan(job({}, features={}), ["x", "device"]) is None
    assert job_scan(job(), ["other"]) is None
    wrong = job({"numeric": "x", "categorical": {"device": "many"}})
    assert job_scan(wrong, ["x", "device"]) is None, "the model rejects them"


def test_nan_and_infinities_by_record():
    scan = ValueScan(numbers=["x", "y", "t"], nullable=["y"])
    scan.add({"x": np.ones((3, 2)), "y": np.full(3, np.nan), "t": np.array([b"a"] * 3, object)}, 0)
    assert not scan.bad
    scan.add({"x": np.array([[1, 1], [1, np.nan]]), "y": np.array([1, np.inf]), "t": np.array([b"a"] * 2, object)}, 3)
    assert scan.bad == ["x", "y"] and [scan.columns[name].first[0] for name in scan.bad] == [4, 4]
    assert scan.columns["x"].range == "1 to 1"


def test_a_fix_is_yaml_for_a_job_file(tmp_path):
    (tmp_path / "t.csv").write_text("x\nabc\n")

    def hint():
        with pytest.raises(InputError) as caught:
            open_table([str(tmp_path / "t.csv")], CsvFormat(), [Column("x", "float32")], description="t",
                       memory_limit=2**40, environ={})  # fmt: skip
        return caught.value.hint

    assert hint().endswith("columns={'x': 'string'}")
    with of_job_file():
        assert hint().endswith("columns: {x: string}") and fix(python="p", yaml="y") == "y"
    assert fix(python="p", yaml="y") == "p"
