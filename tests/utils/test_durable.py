"""Files that are on the disk before they take their name."""

from __future__ import annotations

import errno
import os

import pytest

from estimator_pipeline.utils import durable_files as durable


@pytest.fixture
def told(monkeypatch):
    """What is synced and renamed, in order."""
    found = []
    fsync = os.fsync

    def recording(descriptor):
        found.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    return found


def renaming(told):
    def rename(source, target):
        os.replace(source, target)
        told.append("renamed")

    return rename


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, told):
    (tmp_path / "half").write_text("all of it")
    durable.rename(tmp_path / "half", tmp_path / "whole", by=renaming(told))
    assert told == ["half", "renamed", tmp_path.name]
    assert (tmp_path / "whole").read_text() == "all of it" and not (tmp_path / "half").exists()


def test_a_folder_is_so_with_all_that_is_in_it(tmp_path, told):
    (tmp_path / "half" / "variables").mkdir(parents=True)
    (tmp_path / "half" / "model.pb").write_text("a")
    (tmp_path / "half" / "variables" / "index").write_text("b")
    durable.rename(tmp_path / "half", tmp_path / "whole", by=renaming(told))
    assert told == ["index", "variables", "model.pb", "half", "renamed", tmp_path.name]


def test_a_name_alone_is_one_in_this_folder(tmp_path, told, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half").write_text("")
    durable.rename("half", "whole")
    assert told == ["half", tmp_path.name]


def test_what_cannot_be_synced_is_passed_over(tmp_path, told):
    renamed = []
    durable.rename("gs://bucket/half", "gs://bucket/whole", by=lambda *names: renamed.append(names))
    assert renamed == [("gs://bucket/half", "gs://bucket/whole")] and not told
    # The kernel refuses with EINVAL.
    durable.sync([tmp_path / "not there", "/dev/null"])


def test_a_disk_that_does_not_take_it_leaves_the_old_file(tmp_path, monkeypatch):
    def failing(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    (tmp_path / "half").write_text("new")
    (tmp_path / "whole").write_text("old")
    with pytest.raises(OSError, match=f"Input/output error: '{tmp_path / 'half'}'"):
        durable.rename(tmp_path / "half", tmp_path / "whole")
    assert (tmp_path / "whole").read_text() == "old"


@pytest.mark.parametrize("to_disk", [True, False])
def test_a_small_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch, to_disk):
    path = tmp_path / "summary.json"
    for content in (b"old", b"new"):
        durable.write(path, content, to_disk=to_disk)
        assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        durable.write(path, b"newer", to_disk=to_disk)
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]
