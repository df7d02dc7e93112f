"""Indexes beside TFRecord files: what `estimator-pipeline index` writes, what reads it, and whose is refused."""

from __future__ import annotations

import errno
import functools
import gzip
import mmap
import os
import struct
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.suite import pages
from estimator_pipeline.cli.main import app
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.sources import tfrecord_index as records
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.tfrecord_index import IndexedTFRecords, index_file, write_index
from estimator_pipeline.progress.stages import LongStep


def framed(data: bytes) -> bytes:
    """A record as a TFRecord file has it."""
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(head)) + data + struct.pack("<I", masked(data))


def masked(data: bytes) -> int:
    """The masked CRC-32C, a bit at a time; not the arithmetic that is tested."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def write(path, *contents: bytes) -> str:
    path.write_bytes(b"".join(map(framed, contents)))
    return str(path)


@pytest.fixture
def walked(monkeypatch):
    """The files that are walked through, in turn."""
    found, walk = [], records._walk
    monkeypatch.setattr(records, "_walk", lambda path, data: found.append(os.path.basename(path)) or walk(path, data))
    return found


def test_an_index_is_what_tfrecord2idx_writes(tmp_path):
    path = write(tmp_path / "a", b"one", b"", b"three")
    assert write_index(path) == (3, True)
    assert (tmp_path / "a.idx").read_text() == "0 19\n19 16\n35 21\n"
    assert oct(os.stat(path).st_mode) == oct(os.stat(f"{path}.idx").st_mode)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "a.idx"]


def test_a_file_with_an_index_is_not_walked_through(tmp_path, walked):
    path = write(tmp_path / "a", b"one", b"", b"three")
    without = index_file(path, cache=None)
    write_index(path)
    walked.clear()
    assert np.array_equal(index_file(path, cache=tmp_path / "cache"), without)
    files = IndexedTFRecords([path], compression="", cache=None, memory_limit=0)
    assert files.count(path) == 3
    assert files.read(path, np.array([2, 0])) == [b"three", b"one"]
    assert walked == [] and not (tmp_path / "cache").exists()


def test_an_index_that_is_right_stays(tmp_path):
    path = write(tmp_path / "a", b"one")
    write_index(path)
    before = os.stat(f"{path}.idx").st_ino
    assert write_index(path) == (1, False)
    assert os.stat(f"{path}.idx").st_ino == before
    write(tmp_path / "a", b"one", b"two")
    assert write_index(path) == (2, True)


def test_a_full_disk_leaves_nothing_of_an_index(tmp_path, monkeypatch):
    """Nor of one in the cache, where that costs time and nothing else."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = write(tmp_path / "a", b"one")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_index(path)
    assert len(index_file(path, cache=tmp_path / "cache")) == 1
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["a"]


def test_a_file_without_records(tmp_path):
    path = write(tmp_path / "a")
    assert write_index(path) == (0, True)
    assert index_file(path, cache=None).shape == (0, 2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 19\n", "do not make up the file, which has 38 bytes"),
        ("0 19\n19 20\n", "do not make up the file"),
        ("0 10\n10 28\n", "do not make up the file"),  # a record is longer than 15 bytes
        ("19 19\n0 19\n", "do not make up the file"),
        ("0 19 7\n", "other lines than"),
        ("tfrecord\n", "other lines than"),
        ("0 99999999999999999999\n", "other lines than"),
    ],
)
def test_an_index_of_another_file_is_refused(tmp_path, text, why):
    path = write(tmp_path / "a", b"one", b"two")
    (tmp_path / "a.idx").write_text(text)
    with pytest.raises(InputError, match=why) as told:
        index_file(path, cache=None)
    assert f"estimator-pipeline index {path}" in str(told.value)
    assert write_index(path) == (2, True)
    assert len(index_file(path, cache=None)) == 2


def test_an_index_of_another_file_of_the_same_size_is_refused_when_it_is_read(tmp_path):
    path = write(tmp_path / "a", b"one", b"three")
    (tmp_path / "a.idx").write_text("0 21\n21 19\n")
    files = IndexedTFRecords([path], compression="", cache=None, memory_limit=0)
    assert files.count(path) == 2
    with pytest.raises(InputError, match="there is no record of 5 bytes at byte 0"):
        files.read(path, np.array([0]))


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_a_record_whose_data_were_changed_is_not_read(tmp_path, compression):
    """One bit is enough; the other records of the file are whole."""
    whole = b"".join(map(framed, (b"one", b"two", b"three")))
    spoilt = bytearray(whole)
    spoilt[len(framed(b"one")) + 12] ^= 1
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(bytes(spoilt)) if compression else bytes(spoilt))
    reader = IndexedTFRecords([str(path)], compression=compression, cache=None, memory_limit=10**6)
    assert reader.read(str(path), np.array([0, 2])) == [b"one", b"three"]
    for read in (lambda: reader.read(str(path), np.array([1])), lambda: reader.check(str(path))):
        with pytest.raises(InputError, match="record 1, at byte 19: the data of the record do not match") as error:
            read()
        assert str(path) in str(error.value)
    path.write_bytes(gzip.compress(whole) if compression else whole)
    assert IndexedTFRecords([str(path)], compression=compression, cache=None, memory_limit=10**6).check(str(path)) == 3


def test_a_pattern_means_the_data(tmp_path):
    paths = [write(tmp_path / name, b"one") for name in ("train-0", "train-1")]
    other = write(tmp_path / "train-2.idx", b"two")  # no index: there is no train-2
    for path in paths:
        write_index(path)
    assert find_files(str(tmp_path / "train-*"), kind="training") == (*paths, other)


def test_the_command(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.tfrecord", b"one", b"two")
    said = CliRunner().invoke(app, ["index", f"{tmp_path}/*.tfrecord"])
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines() == [
        f"{tmp_path}/a.tfrecord.idx: 2 records", f"{tmp_path}/b.tfrecord.idx: 2 records", "2 files: 4 records",
    ]  # fmt: skip
    again = CliRunner().invoke(app, ["index", f"{tmp_path}/a.tfrecord"])
    assert again.stdout == f"{tmp_path}/a.tfrecord.idx: 2 records, up to date\n"


@pytest.mark.parametrize("name", ["a.tfrecord.gz", "there-is-none", "cut"])
def test_what_cannot_be_indexed(tmp_path, name, run_python):
    if name != "there-is-none":
        (tmp_path / name).write_bytes(framed(b"one")[:-2])
    said = run_python(["-m", "estimator_pipeline", "index", tmp_path / name])
    assert said.returncode == 2
    assert "Traceback" not in said.stderr and name in said.stderr and "hint:" in said.stderr
    assert not (tmp_path / f"{name}.idx").exists()


def test_a_digest_tells_content_from_content(tmp_path, walked):
    """Of files of one name, size and number of records; whatever their times say."""
    cache, contents = tmp_path / "cache", [b"%04d" % n for n in range(2000)]

    def digest():
        return IndexedTFRecords([path], compression="", cache=cache, memory_limit=0).digest(path)

    path = write(tmp_path / "a", *contents)
    first = digest()
    assert walked == ["a"] and digest() == first and walked == ["a"], "it is kept beside the index"
    files = IndexedTFRecords([path], compression="", cache=None, memory_limit=0)
    assert files.count(path) == 2000 and files.digest(path) == first and walked == ["a", "a"], "a walk gives both"
    os.utime(path, ns=(5, 5))
    assert digest() == first
    # Another record, and the order of two; with the time of change of the file that was there.
    for changed in ([*contents[:999], b"none", *contents[1000:]], [*contents[1:], contents[0]]):
        write(tmp_path / "b", *changed)
        os.utime(tmp_path / "b", ns=(5, 5))
        os.replace(tmp_path / "b", path)
        assert digest() != first
        write(tmp_path / "a", *contents)
        assert digest() == first
    for spoilt in cache.iterdir():  # As a power loss may leave it.
        spoilt.write_bytes(b"\0" * 16)
    assert digest() == first


def opened(paths, cache):
    files = IndexedTFRecords(paths, compression="", cache=cache, memory_limit=0)
    return files, files.counts("train-*")


def test_small_files_have_one_index_in_the_cache(tmp_path, walked, monkeypatch):
    """It is of no use on a disk that is full, and not worth a sync; a changed file alone is scanned again."""
    monkeypatch.setattr(os, "fsync", None)
    cache, names = tmp_path / "cache", [f"train-{number}" for number in range(20)]
    paths = [write(tmp_path / name, *[name.encode()] * number) for number, name in enumerate(names)]
    first, counts = opened(paths, cache)
    assert counts == tuple(range(20)) and sorted(walked) == sorted(names)
    (kept,) = cache.iterdir()
    digests = [first.digest(path) for path in paths]
    walked.clear()
    again, counts = opened(paths, cache)
    assert counts == tuple(range(20)) and [again.digest(path) for path in paths] == digests
    assert again.read(paths[7], np.array([0, 6])) == [b"train-7"] * 2 and walked == []
    # A further file, and one of the same size and time.
    times = os.stat(paths[7])
    write(tmp_path / "b", *[b"other-7"] * 7)
    os.utime(tmp_path / "b", ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(tmp_path / "b", paths[7])
    more = [*paths, write(tmp_path / "train-20", b"", b"long" * 99)]
    changed, counts = opened(more, cache)
    assert counts == (*range(20), 2) and sorted(walked) == ["train-20", "train-7"]
    assert changed.digest(paths[7]) != digests[7] and [changed.digest(path) for path in paths[8:]] == digests[8:]
    assert changed.read(paths[7], np.array([6])) == [b"other-7"]
    assert changed.read(more[20], np.array([1, 0])) == [b"long" * 99, b""]
    assert list(cache.iterdir()) == [kept]
    # As a power loss may leave it.
    whole = kept.read_bytes()
    for spoilt in (b"", b"\0" * len(whole), whole[:-1], whole[:-8] + b"\0" * 8, b"{}\n", b"[]\n1"):
        kept.write_bytes(spoilt)
        files, counts = opened(more, cache)
        assert counts == (*range(20), 2) and files.read(more[20], np.array([1])) == [b"long" * 99], spoilt[:9]


def test_a_file_of_many_records_has_an_index_alone(tmp_path, walked):
    """Jobs that read different files, or one of them, need not scan it again."""
    cache = tmp_path / "cache"
    paths = [write(tmp_path / "train-0", b"one", b"two"), write(tmp_path / "train-1", *[b""] * 5000)]
    assert opened(paths, cache)[1] == (2, 5000) and len(list(cache.iterdir())) == 2
    walked.clear()
    files, counts = opened(paths[1:], cache)
    assert counts == (5000,) and files.read(paths[1], np.array([4999])) == [b""] and walked == []
    assert IndexedTFRecords(paths[1:], compression="", cache=cache, memory_limit=0).is_unchanged(paths[1]) is False
    assert files.is_unchanged(paths[1]) and walked == []
    write(tmp_path / "train-1", *[b""] * 5000)
    assert files.is_unchanged(paths[1]) and walked == ["train-1"]


def test_a_long_indexing_is_logged_and_kept_in_between(tmp_path, monkeypatch):
    """So that a job that is killed while it scans need not scan these files again."""
    lines = []

    def log(text):
        assert str(tmp_path / "train-0").encode() in next((tmp_path / "cache").iterdir()).read_bytes()
        lines.append(text)

    monkeypatch.setattr(records, "LongStep", functools.partial(LongStep, every=0.0))
    monkeypatch.setattr(records.logger, "info", log)
    paths = [write(tmp_path / f"train-{number}", b"one") for number in range(3)]
    (tmp_path / "train-3").write_bytes(b"no records, but some text")
    with pytest.raises(InputError, match="train-3, record 0"):
        opened([*paths, str(tmp_path / "train-3")], tmp_path / "cache")
    assert [line.partition("%")[0] for line in lines] == [
        f"indexing TFRecord files: {number} of 4 files, {25 * number}" for number in (1, 2, 3)
    ]
    (kept,) = (tmp_path / "cache").iterdir()
    assert all(path.encode() in kept.read_bytes() for path in paths)


def test_a_file_that_nobody_walks_through_is_told_by_some_of_its_blocks(tmp_path, walked):
    path = write(tmp_path / "a", *[b"%04d" % n for n in range(9000)])
    write_index(path)
    walked.clear()

    def digest():
        return IndexedTFRecords([path], compression="", cache=None, memory_limit=0).digest(path)

    first = digest()
    assert first.startswith(records.SAMPLED) and digest() == first
    for changed in (range(1, 9001), [7, *range(1, 9000)], [*range(8999), 7]):
        write(tmp_path / "a", *[b"%04d" % n for n in changed])
        assert digest() != first and walked == []
    for size in (0, 1):
        write(tmp_path / "a", *[b"1"] * size)
        assert digest() == digest()


def test_large_records_are_read_alone(tmp_path):
    """Of a map the system reads as much again around each page, and so, of records that lie apart, the whole file."""
    path = tmp_path / "a"
    path.write_bytes(framed(bytes(range(256)) * 160) * 48)
    files = IndexedTFRecords([str(path)], compression="", cache=tmp_path / "cache", memory_limit=0)
    assert files.count(str(path)) == 48
    deadline = time.monotonic() + 20
    while pages.resident([str(path)]) and time.monotonic() < deadline:
        pages.drop([str(path)])
    if pages.resident([str(path)]):
        pytest.skip("this file system keeps its pages")
    assert len(files.read(str(path), np.array([40, 4, 16, 28]))) == 4
    # Each lies in 12 pages at most.
    assert pages.resident([str(path)]) <= 4 * 12 * mmap.PAGESIZE
