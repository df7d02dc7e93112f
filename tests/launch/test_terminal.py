"""What a terminal would obey is left out of text that comes from others."""

import io

import pytest

from estimator_pipeline.launch.local.view import LineView
from estimator_pipeline.launch.logs.terminal import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext, ünïcode → 中", "plain\ttext, ünïcode → 中"),
        ("\x1b[1;31mred\x1b[0m \x1b[38:5:1mred\x1b[m", "\x1b[1;31mred\x1b[0m \x1b[38:5:1mred\x1b[m"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]52;c;aGVsbG8=\x1b\\b", "ab"),
        ("a\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        ("a\x1b]0;without an end", "a"),
        ("a\x1bP+q544e\x1b\\b\x1b_payload\x1b\\c", "abc"),
        ("a\x1b[2J\x1b[H\x1b[6n\x1b[?1049hb", "ab"),
        ("a\x1b[>4;2mb", "ab"),
        ("a\x9b2Jb\x9d0;t\x9cc", "abc"),
        ("a\x1bc\x1b(0b", "ab"),
        ("a\rb\bc\x00d\x7fe\x85f", "abcdef"),
        ("\x1b", ""),
        ("\x1b[", ""),
        ("two\nlines", "two\nlines"),
    ],
)
def test_sequences(text, shown):
    assert harmless(text) == shown


def test_a_view_shows_none():
    stream = io.StringIO()
    LineView(stream).note("worker:0 warns: \x1b]0;owned\x07done")
    assert stream.getvalue().endswith("worker:0 warns: done\n")
