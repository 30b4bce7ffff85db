"""The README's tables are those of the committed results; links lead to something."""

import ast
import re
import textwrap
import urllib.parse

import pytest
import readme_tables

PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for page in sorted(readme_tables.ROOT.glob(pattern))
]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def links(text):
    """Where the links and images of a page lead, code left out."""
    prose = re.sub(r"`[^`\n]*`", "code", FENCED.sub("", text))
    return re.findall(r"\]\(<?([^()\s>]+)", prose)


def anchors(text):
    """What a page's headings are called in links, as on GitHub."""
    for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links_lead_to_files_and_headings(page):
    for link in links(page.read_text()):
        url = urllib.parse.urlsplit(link)
        if url.scheme:
            continue  # elsewhere
        target = page.parent / urllib.parse.unquote(url.path) if url.path else page
        assert target.exists(), link
        if url.fragment:
            assert url.fragment in list(anchors(target.read_text())), link


def test_what_a_link_is():
    text = "# A `b`, c\n[x](y.md#z) ![p](q.png) `[no](a)`\n```\n[no](b)\n# no\n```\n"
    assert links(text) == ["y.md#z", "q.png"]
    assert list(anchors(text)) == ["a-b-c"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_its_python_compiles(page):
    for indent, language, code in FENCED.findall(page.read_text()):
        if language == "python":
            ast.parse(textwrap.dedent(indent + code))


def test_the_readme_has_python():
    blocks = FENCED.findall(readme_tables.README.read_text())
    assert [language for _, language, _ in blocks].count("python") >= 3


def test_its_tables_are_the_committed_results():
    text = readme_tables.README.read_text()
    assert text.count("<!-- examples/") >= 2
    assert readme_tables.with_tables(text) == text


def test_it_says_of_comparisons_what_their_results_say():
    text = " ".join(readme_tables.README.read_text().split())
    summaries = re.findall(r"<!-- (examples/compare/\S+/README\.md) -->", text)
    assert len(summaries) >= 3
    for path in summaries:
        said = (readme_tables.ROOT / path).read_text().rpartition("|\n")[2]
        sentences = said.split("\n\n")
        assert len(sentences) >= 2
        for sentence in sentences:
            assert " ".join(sentence.split()) in text


def test_tables_are_copied_under_one_header(tmp_path, monkeypatch):
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("made by a\n\n| x |\n| --- |\n| 1 |\n\nnotes\n")
    (tmp_path / "b.md").write_text("| x |\n| --- |\n| 2 |\n")
    before = "Text.\n<!-- a.md b.md -->\n| old |\n\nMore.\n"
    after = "Text.\n<!-- a.md b.md -->\n| x |\n| --- |\n| 1 |\n| 2 |\n\nMore.\n"
    assert readme_tables.with_tables(before) == after
    assert readme_tables.with_tables(after) == after
