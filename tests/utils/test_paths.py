"""Two paths of the same folder are the same path."""

from __future__ import annotations

from estimator_pipeline.utils.paths import real_path


def test_a_path_without_links(tmp_path, monkeypatch):
    folder = tmp_path.resolve() / "there"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    for path in (str(folder), f"{tmp_path}/link", "link", "./there/", "link/../there"):
        assert real_path(path) == str(folder)
    assert real_path("link/not yet") == f"{folder}/not yet"


def test_a_bucket_is_as_it_is():
    assert real_path("gs://bucket/models/") == "gs://bucket/models/"
