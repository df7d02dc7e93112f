"""Hook of mkdocs.yml that adds the files outside docs/ that pages link to.

A page of docs/ links to CONTRIBUTING.md, to job files and to tests by their paths in the repository, so that the links
work in the repository and in an editor. The site has these files under their repository paths: Markdown as pages, other
files unchanged. The search prefers guides to lists of names, which have nearly every word.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")
# A link whose text is the name of a page's file, for readers of the repository.
FILE_NAME = re.compile(r"\[([\w.-]+\.md)\](?=\(([^)\s#]+))")
# Start of a page's path in the site -> its weight in the search; the first that fits counts, 1 for the others.
SEARCH_BOOSTS = {
    **dict.fromkeys(("guides/", "index.md", "overview.md", "reference/job-files.md", "reference/contrib.md"), 2.0),
    **dict.fromkeys(("reference/api.md", "reference/errors.md", "reference/moved-names.md", "features.md"), 0.5),
    **dict.fromkeys(("internals/", "architecture.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"), 0.5),
    "benchmarks/": 0.5,
}
# Page -> link -> its file, of the current build. `on_files` fills it.
_targets: dict[Path, dict[str, Path]] = {}


def uri(path: Path) -> str:
    """Return the path of a repository file in the site; `.txt` makes browsers show Python and other files as text."""
    if DOCS in path.parents:
        return path.relative_to(DOCS).as_posix()
    if path == ROOT / "README.md":
        return "overview.md"  # docs/index.md is index.html
    name = path.relative_to(ROOT).as_posix().lstrip(".")
    return f"{name}.txt" if path.suffix in ("", ".py") else name


def resolve(page: Path, link: str) -> Path | None:
    """Return the repository file that a link on a page points to; None for other links."""
    if re.match(r"[a-z]+:", link):
        return None
    path = Path(os.path.normpath(page.parent / link))
    path = path / "README.md" if path.is_dir() else path
    return path if ROOT in path.parents and path.is_file() else None


def title(path: Path) -> str:
    """Return the first heading of a page."""
    heading = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return heading[1] if heading else path.name


def targets_of(page: Path) -> dict[str, Path]:
    """Return link -> its repository file, for the links of a page to such files."""
    links = {match[2] for match in LINK.finditer(page.read_text(encoding="utf-8"))}
    return {link: path for link in sorted(links) if (path := resolve(page, link)) is not None}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the linked files, and those that they link to."""
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages()]
    added: set[Path] = set()
    _targets.clear()
    while waiting:
        page = waiting.pop()
        _targets[page] = targets_of(page)
        for path in _targets[page].values():
            if path in added or DOCS in path.parents:
                continue
            added.add(path)
            files.append(File.generated(config, uri(path), abs_src_path=str(path)))
            if path.suffix == ".md":
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links of a page to the paths of their files in the site, and set its weight in the search."""
    boosts = (boost for start, boost in SEARCH_BOOSTS.items() if page.file.src_uri.startswith(start))
    page.meta.setdefault("search", {"boost": next(boosts, 1.0)})
    targets, folder = _targets.get(Path(page.file.abs_src_path), {}), Path(page.file.src_uri).parent

    def moved(match: re.Match[str]) -> str:
        path = targets.get(match[2])
        return match[0] if path is None else f"{match[1]}{os.path.relpath(uri(path), folder)}{match[3] or ''})"

    def titled(match: re.Match[str]) -> str:
        path = targets.get(match[2])
        return match[0] if path is None else f"[{title(path)}]"

    return LINK.sub(moved, FILE_NAME.sub(titled, markdown))
