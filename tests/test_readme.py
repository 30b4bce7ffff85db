"""The README's tables are those of the committed results."""

import readme_tables


def test_its_tables_are_the_committed_results():
    text = readme_tables.README.read_text()
    assert text.count("<!-- examples/") >= 2
    assert readme_tables.with_tables(text) == text


def test_tables_are_copied_under_one_header(tmp_path, monkeypatch):
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("made by a\n\n| x |\n| --- |\n| 1 |\n\nnotes\n")
    (tmp_path / "b.md").write_text("| x |\n| --- |\n| 2 |\n")
    before = "Text.\n<!-- a.md b.md -->\n| old |\n\nMore.\n"
    after = "Text.\n<!-- a.md b.md -->\n| x |\n| --- |\n| 1 |\n| 2 |\n\nMore.\n"
    assert readme_tables.with_tables(before) == after
    assert readme_tables.with_tables(after) == after
