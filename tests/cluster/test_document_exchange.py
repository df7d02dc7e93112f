"""Tasks that exchange documents in a folder: whose files count, who is missing, and what cannot be written."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from estimator_pipeline.cluster.document_exchange import DocumentExchange, SharedDocuments, format_ranks
from estimator_pipeline.errors import ClusterError, WaitError

OLD = {"0": "old 0", "1": "old 1"}


def exchange(folder, rank=0, *, size=2, timeout=60.0):
    return DocumentExchange(
        SharedDocuments(folder), rank=rank, size=size, name=f"task {rank}", timeout=timeout, event="come", hint="wait"
    )


def agreed(exchanges, *, before_last=lambda: True):
    """The documents or error of each task, in threads of this process; the last starts when a condition holds."""
    results = {}

    def run(rank):
        try:
            results[rank] = exchanges[rank].agree({"value": rank})
        except (ClusterError, WaitError) as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(exchanges))]
    deadline = time.monotonic() + 60
    for thread in threads:
        while thread is threads[-1] and not before_last():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        thread.start()
    for thread in threads:
        thread.join(60)
    return [results[rank] for rank in range(len(exchanges))]


# What is in the folder before, by name.
LEFT = {
    "nothing": {},
    "a file of an earlier start": {"1.json": {"word": "old 1", "size": 2, "value": "old"}},
    "all files of an earlier start": {
        "0.json": {"word": "old 0", "size": 2},
        "1.json": {"word": "old 1", "size": 2},
        "0.seen.json": {"words": OLD},
        "1.seen.json": {"words": OLD},
        "1.done": {"words": OLD},
    },
    "a file of an earlier start with more tasks": {"1.json": {"word": "old 1", "size": 4}},
    "a torn file": {"1.json": '{"word": "x", "si'},
    "an empty file": {"1.json": ""},
    "no document": {"1.json": [1]},
    "an unfinished file": {"1.json.host.1.0.tmp": {"word": "x", "size": 2}},
}


@pytest.mark.parametrize("left", LEFT)
def test_only_the_files_of_this_start_count(tmp_path, left):
    for name, content in LEFT[left].items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(WaitError) as missing:
        exchange(tmp_path, timeout=0.05).agree({})
    assert missing.value.message == "task 0 waited 0 s for the other tasks to come, and 1 of 2 did"
    assert (missing.value.found, missing.value.hint) == (f"missing: rank 1; the folder is {tmp_path}", "wait")
    # The other one comes late.
    old = (tmp_path / "0.json").read_text()
    both = [exchange(tmp_path, rank) for rank in range(2)]
    documents = agreed(both, before_last=lambda: (tmp_path / "0.json").read_text() != old)
    assert documents[0] == documents[1] and [documents[0][rank]["value"] for rank in range(2)] == [0, 1]
    both[1].post("done", {})
    both[0].deadline._end = 0.0
    with pytest.raises(WaitError, match="1 of 2 did"):
        both[0].collect("done")
    both[0].post("done", {"last": True})
    assert both[1].collect("done")[0]["last"]


def test_who_is_missing_and_who_is_there(tmp_path):
    waits = []
    late = exchange(tmp_path, 1, size=5, timeout=0.1)
    (tmp_path / "3.json").write_text(json.dumps({"word": "x", "size": 5}))
    with pytest.raises(WaitError) as error:
        late.agree({}, on_wait=lambda waited, missing: waits.append((missing, late.absent(), list(late.present))))
    assert error.value.found == f"missing: ranks 0, 2, 4; the folder is {tmp_path}"
    # Those without a file are named while the task waits, too.
    assert waits[0] == ([0, 2, 4], [0, 2, 4], [1, 3])


def test_two_processes_of_a_rank(tmp_path):
    def start_again(*_):
        with pytest.raises(WaitError):
            exchange(tmp_path, timeout=0.0).agree({"address": "h:2"})

    with pytest.raises(ClusterError, match=r"two processes have the rank 0\.") as error:
        exchange(tmp_path).agree({"address": "h:1"}, on_wait=start_again)
    assert error.value.found == f"this one, and one at h:2, in {tmp_path}"


def test_tasks_that_expect_different_numbers(tmp_path):
    both = [exchange(tmp_path, 0), exchange(tmp_path, 1, size=3, timeout=0.0)]
    with pytest.raises(WaitError):
        both[1].agree({})
    with pytest.raises(ClusterError, match="task 0 is one of 2 tasks, but rank 1 of 3"):
        both[0].agree({}, on_wait=lambda *_: both[0].check_sizes())


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        exchange(tmp_path / "file" / "folder")
    documents = SharedDocuments(tmp_path)
    documents.write("0.json", {"value": "old"})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        documents.write("0.json", {"value": "new"})
    assert documents.read("0.json") == {"value": "old"} and sorted(os.listdir(tmp_path)) == ["0.json", "file"]


@pytest.mark.parametrize(
    ("contents", "document"),
    [
        (['{"a', b'{"a": 1}'], {"a": 1}),
        (['{"a'], None),
        ([None], None),
        ([KeyError("the file system's error")], None),
    ],
)
def test_a_file_of_a_different_file_system(contents, document):
    """A file that is being written is read again."""

    def read(path):
        assert path == "store://folder/name"
        content = contents.pop(0) if len(contents) > 1 else contents[0]
        if isinstance(content, Exception):
            raise content
        return content

    assert SharedDocuments("store://folder", read=read, errors=(KeyError,)).read("name") == document


def test_ranks():
    assert [format_ranks(ranks) for ranks in ([2], [0, 2], [1, 3, 4, 5])] == ["rank 2", "ranks 0, 2", "ranks 1, 3 to 5"]
