"""The README's tables are those of the committed results."""

import re

import readme_tables


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
