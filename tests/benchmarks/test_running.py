"""The plan of a run, its cases, its resumption, its results, without a measured process."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.suite import machine, measures, report, running
from benchmarks.suite.cases import CASES, CONTENDERS, select_cases
from benchmarks.suite.results import Results
from benchmarks.suite.work import BATCH, MODELS, PROFILES
from estimator_pipeline.errors import ConfigError

TINY = PROFILES["tiny"]
FULL_MINUTES, QUICK_MINUTES = 25, 6


def case(name):
    return next(one for one in CASES if one.name == name)


# Cases --------------------------------------------------------------------------------------------------------


def test_the_cases_are_those_of_the_issue():
    names = [one.name for one in CASES]
    assert len(set(names)) == len(names)
    wanted = {f"train-{model}-{workers}" for model in ("cnn", "dnn", "wide_deep", "softmax") for workers in (1, 2)}
    assert wanted | {"train-cnn-ps", "evaluation", "first-step", "restart", "input", "bytes", "simulated"} == set(names)
    for one in CASES:
        assert one.measure in measures.MEASURES and set(one.contenders) <= set(CONTENDERS)
        for target in one.targets:
            other = case(target.case) if target.case else one
            assert target.contender in one.contenders and target.against in other.contenders


def test_every_engine_is_held_against_plain_code_wherever_it_trains():
    for one in CASES:
        if one.measure == "training":
            held = {(t.contender, t.against) for t in one.targets}
            engines = {"estimator", "keras"} & set(one.contenders)
            assert {(engine, f"plain_{engine}") for engine in engines} <= held


def test_contenders_take_turns():
    steps = running.plan([case("train-cnn-1"), case("restart")], runs=3)
    order = [(s.run, s.contender) for s in steps if s.case.name == "train-cnn-1"]
    forth = list(case("train-cnn-1").contenders)
    assert [c for run, c in order if run == 0] == [c for run, c in order if run == 2] == forth
    assert [c for run, c in order if run == 1] == forth[::-1]
    # The runs of one case stay together, and a case may ask for fewer.
    assert [s.run for s in steps if s.case.name == "restart"] == [0, 0, 1, 1]
    assert [s.case.name for s in steps] == sorted((s.case.name for s in steps), key=["train-cnn-1", "restart"].index)


def test_a_whole_run_is_not_too_long():
    """By the estimates beside the cases, which `bench` prints before it begins."""
    assert running.seconds_of(running.plan(CASES, runs=PROFILES["full"].runs)) <= FULL_MINUTES * 60
    assert (
        running.seconds_of(running.plan(select_cases([], quick=True), runs=PROFILES["quick"].runs))
        <= QUICK_MINUTES * 60
    )


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_warm_up_covers_a_pass_over_the_data(profile, model, workers):
    warm, counted = profile.steps(model, workers)
    assert warm * BATCH * workers >= profile.records and counted >= profile.least_steps


def test_cases_by_name():
    assert select_cases([]) == CASES
    assert {case.name for case in CASES} - {case.name for case in select_cases([], quick=True)} == {
        "train-dnn-1",
        "train-dnn-2",
        "train-cnn-ps",
        "restart",
    }
    assert [case.name for case in select_cases(["restart"], quick=True)] == ["restart"]
    assert [one.name for one in select_cases(["bytes", "train-cnn-2"])] == ["train-cnn-2", "bytes"]
    assert {one.name for one in select_cases(["train-cnn"])} == {"train-cnn-1", "train-cnn-2", "train-cnn-ps"}
    with pytest.raises(ConfigError, match=r"there is no case 'train-cnm-1'(.|\n)*did you mean 'train-cnn-1'"):
        select_cases(["train-cnm-1"])


# A run --------------------------------------------------------------------------------------------------------


class Broken(Exception):
    pass


@pytest.fixture
def fake(monkeypatch):
    """Measurements that are made at once: run + 1 for each contender, tenfold for ours; and a list of what was made."""
    made = []

    def measure(contender, profile, folder, run, settings):
        assert folder.is_dir() and not list(folder.iterdir())
        (folder / "left.txt").touch()
        if len(made) == fake.breaks_after:
            raise Broken
        made.append((settings.get("model"), contender))
        value = len(contender) + len(made) / 100
        return {"records_per_sec": 10 * value if "plain" not in contender else value, "peak_mib": 100.0, "word": "x"}

    def fake():
        return made

    fake.breaks_after = None
    monkeypatch.setattr(measures, "prepare", lambda run, profile: None)
    monkeypatch.setattr(measures, "MEASURES", {"training": measure})
    monkeypatch.setattr(machine, "about", lambda: {"cores": 2, "memory_gib": 1, "processor": "p", "system": "s",
                        "architecture": "a", "python": "3", "tensorflow": "2", "tf_keras": "2"})  # fmt: skip
    return fake


def measure_all(folder, **more):
    steps = running.plan([case("train-softmax-1")], runs=2)
    return running.measure_all(steps, profile=TINY, folder=folder, **more)


def test_a_run_that_was_broken_off_goes_on(fake, tmp_path):
    folder = tmp_path / "run"
    fake.breaks_after = 3
    with pytest.raises(Broken):
        measure_all(folder)
    (kept,) = (folder / "work").iterdir()
    assert kept.name == "train-softmax-1.keras.0", "the folder of what failed is kept, and no other"
    fake.breaks_after = None
    left = []
    _, found = measure_all(folder, on_measurement=lambda step, one, number: left.append(number))
    assert left == [6, 5, 4, 3, 2, 1, 0]
    assert len(fake()) == 10
    contenders = case("train-softmax-1").contenders
    assert [(one.run, one.contender) for one in found] == [
        *((0, name) for name in contenders),
        *((1, name) for name in contenders[::-1]),
    ]
    assert not list((folder / "work").iterdir())
    # A third time nothing is left to do.
    again = measure_all(folder)[1]
    assert len(fake()) == 10 and again == found


def test_a_line_that_was_cut_off_is_measured_again(fake, tmp_path):
    folder = tmp_path / "run"
    measure_all(folder)
    log = folder / running.LOG
    whole = log.read_text()
    log.write_text(whole[:-20])
    _, found = measure_all(folder)
    assert len(found) == 10 and len(fake()) == 11
    assert all(json.loads(line) for line in log.read_text().splitlines())


def test_a_run_of_another_size_or_machine_is_refused(fake, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    measure_all(folder)
    steps = running.plan([case("train-softmax-1")], runs=1)
    with pytest.raises(ConfigError, match="has a run of a different profile: name is quick now"):
        running.measure_all(steps, profile=PROFILES["quick"], folder=folder)
    monkeypatch.setattr(machine, "about", lambda: {"cores": 64})
    with pytest.raises(ConfigError, match=r"different machine: cores is 64 now(.|\n)*found: cores 2"):
        running.measure_all(steps, profile=TINY, folder=folder)


def test_more_runs_may_be_added(fake, tmp_path):
    measure_all(tmp_path)
    more = running.measure_all(
        running.plan([case("train-softmax-1")], runs=3), profile=replace(TINY, runs=3), folder=tmp_path
    )
    assert len(more[1]) == 15


def test_too_few_cores(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "about", lambda: {"cores": 1})
    with pytest.raises(ConfigError, match=r"train-softmax-2 needs a core for each of its 2 workers(.|\n)*1 core"):
        running.measure_all(running.plan([case("train-softmax-2")], runs=1), profile=TINY, folder=tmp_path)
    assert not fake()


@pytest.mark.parametrize("text", ["", "no json\n", "{}\n"])
def test_a_file_that_is_no_run(fake, tmp_path, text):
    (tmp_path / running.LOG).write_text(text)
    with pytest.raises(ConfigError, match="cannot be read as a run of the benchmark"):
        measure_all(tmp_path)


# Results ------------------------------------------------------------------------------------------------------


def test_results_have_figures_ratios_and_verdicts(fake, tmp_path):
    made_of, found = measure_all(tmp_path)
    results = Results.of(CASES, made_of, found)
    document = report.write(results, tmp_path)
    assert document == json.loads((tmp_path / report.JSON).read_text())
    (told,) = document["cases"]
    assert list(told["contenders"]) == list(case("train-softmax-1").contenders)
    rates = [m.figures["records_per_sec"] for m in found if m.contender == "estimator"]
    assert told["contenders"]["estimator"]["figures"]["records_per_sec"]["median"] == pytest.approx(sum(rates) / 2)
    assert "word" not in told["contenders"]["estimator"]["figures"]
    assert told["contenders"]["limit"]["of_limit"] == 1.0
    assert [t["state"] for t in told["targets"]] == ["met", "met"]
    # 10 * (9 + n/100) over 15 + m/100, within each run.
    assert 5.5 < told["targets"][0]["ratio"]["median"] < 6.5
    assert document["made_of"]["machine"]["cores"] == 2
    page = (tmp_path / report.MARKDOWN).read_text()
    assert "2 of 2 targets met" in page and "2 cores" in page and "(throughput.png)" in page
    for name in ("throughput.png", "ratios.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_target_of_another_case_needs_it_measured(fake, tmp_path):
    cases = [case("train-cnn-1"), case("train-cnn-2")]
    made_of, found = running.measure_all(running.plan(cases[1:], runs=1), profile=TINY, folder=tmp_path)
    alone = Results.of(CASES, made_of, found)
    states = {(v.target.contender, v.target.case): v.state for v in alone.verdicts}
    assert states["estimator", "train-cnn-1"] == "not measured" and states["estimator", None] == "met"
    assert not alone.cases[0].of_limit
    made_of, found = running.measure_all(running.plan(cases, runs=1), profile=TINY, folder=tmp_path)
    both = Results.of(CASES, made_of, found)
    (verdict,) = [v for v in both.verdicts if v.target.case and v.target.contender == "estimator"]
    values = {m.case: m.figures["records_per_sec"] for m in found if m.contender == "estimator"}
    assert verdict.ratio.median == pytest.approx(values["train-cnn-2"] / (2 * values["train-cnn-1"]))
    # The limit of two workers is twice the limit of one.
    (limit,) = [m.figures["records_per_sec"] for m in found if m.contender == "limit"]
    assert both.cases[1].of_limit["estimator"] == pytest.approx(values["train-cnn-2"] / (2 * limit))
