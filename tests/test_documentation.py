"""The documents: links, code, tables, the reference, and docstrings of public names."""

import ast
import dataclasses
import importlib.util
import inspect
import re
import sys
import textwrap
import urllib.parse

import loops_picture
import pytest
import readme_tables

ROOT = readme_tables.ROOT
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for page in sorted(ROOT.glob(pattern))
]
OURS = [page for page in PAGES if "results" not in page.parts or "docs" in page.parts]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"^<!-- run -->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"`((?:coop_jax|xla_ext|examples|tests|docs|\.ci)/[\w./-]*)`")


def named(page):
    return str(page.relative_to(ROOT))


def loaded(path):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks for its module there.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


make_api = loaded(ROOT / "docs" / "make_api.py")


# Links and names of files.


def links(text):
    """Where the links and images of a page lead, code left out."""
    prose = re.sub(r"`[^`\n]*`", "code", FENCED.sub("", text))
    return re.findall(r"\]\(<?([^()\s>]+)", prose)


def anchors(text):
    """The names of a page's headings in links, as on GitHub."""
    for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=named)
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


@pytest.mark.parametrize("page", OURS, ids=named)
def test_files_that_are_named_exist(page):
    text = FENCED.sub("", page.read_text())
    for path in PATH.findall(text):
        assert (ROOT / path).exists(), path
    tests = {path.name for path in (ROOT / "tests").glob("**/test_*.py")}
    assert set(re.findall(r"`(test_\w+\.py)`", text)) <= tests


def test_every_finding_of_xla_names_its_version_and_its_code_or_test():
    text = (ROOT / "docs" / "xla-notes.md").read_text()
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert len(sections) > 50
    for section in sections:
        title = section.splitlines()[0]
        body = " ".join(section.split())
        assert re.search(r"Code: |Tests?: |No test", body), title
        assert re.search(r"\*[^*]*(JAX|XLA)[^*]*\*", body), f"no version: {title}"


# Code.


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_its_python_compiles(page):
    for indent, language, code in FENCED.findall(page.read_text()):
        if language == "python":
            ast.parse(textwrap.dedent(indent + code))


@pytest.mark.parametrize("page", OURS, ids=named)
def test_its_python_runs_where_it_can(page):
    for code in RUN.findall(page.read_text()):
        exec(compile(code, named(page), "exec"), {})


def test_there_is_python_and_some_of_it_runs():
    blocks = FENCED.findall(readme_tables.README.read_text())
    assert [language for _, language, _ in blocks].count("python") >= 3
    assert sum(len(RUN.findall(page.read_text())) for page in OURS) >= 3


# Tables.


def test_pages_are_filled_from_the_committed_results():
    for page in readme_tables.pages():
        text = page.read_text()
        assert readme_tables.with_tables(text) == text, named(page)
    assert sum("<!-- examples/" in p.read_text() for p in readme_tables.pages()) >= 6


def tables_without_source(text):
    """Tables with figures that no comment in the line above gives the source of."""
    lines = FENCED.sub("", text).splitlines()
    for i, line in enumerate(lines):
        if line.startswith("|") and not lines[i - 1].startswith(("|", "<!-- ")):
            end = next((j for j in range(i, len(lines)) if not lines[j]), len(lines))
            prose = re.sub(r"`[^`]*`|\[[^]]*\]\([^)]*\)", "", "\n".join(lines[i:end]))
            if re.search(r"\d[.\d]*\s*(%|[GM]iB|s\b|ms\b|×)|\|\s*\d[\d.,]*\s*\|", prose):
                yield line


@pytest.mark.parametrize("page", readme_tables.pages(), ids=named)
def test_every_table_with_figures_has_its_source(page):
    assert list(tables_without_source(page.read_text())) == []


def test_a_table_with_figures():
    assert list(tables_without_source("\n| a |\n| --- |\n| 5.0 |\n"))
    assert list(tables_without_source("\n| a |\n| --- |\n| costs 3 % |\n"))
    assert not list(tables_without_source("\n| a |\n| --- |\n| python 3 |\n"))
    assert not list(tables_without_source("<!-- a.md -->\n| a |\n| --- |\n| 5.0 |\n"))


def test_comparisons_are_summarized_as_in_their_results():
    text = readme_tables.README.read_text()
    summaries = re.findall(r"<!-- (examples/compare/\S+/README\.md): foot -->", text)
    assert len(summaries) >= 3
    assert text.count("compiled, not run") >= 2


def test_results_say_how_they_were_made():
    for page in (ROOT / "examples" / "results").glob("*.md"):
        head = " ".join(readme_tables.head([f"examples/results/{page.name}"]).split())
        assert re.search(r"`python examples/\S+\.py", head), page.name
        assert re.search(r"Python 3\.\d+.*jax 0\.\d+", head), page.name
        assert re.search(r"x86_64|GPU|TPU", head), page.name


def test_versions_in_tables_of_loops_keep_their_budgets():
    files = list((ROOT / "examples" / "results").glob("loops_*.md"))
    rows = [
        (file.name, title, name, mebibytes)
        for file in files
        for title, (_, points) in loops_picture.read(file.read_text()).items()
        for name, (mebibytes, _) in points.items()
    ]
    assert {file for file, *_ in rows} == {file.name for file in files}
    planned = [row for row in rows if row[2].startswith("coop_jax, ")]
    assert len(planned) >= 3 * len(files)
    for *_, name, mebibytes in planned:
        assert mebibytes <= float(re.search(r", ([\d.]+) MiB", name)[1]), planned


def test_tables_are_copied_under_one_header(tmp_path, monkeypatch):
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("made by a\n\n| x |\n| --- |\n| 1 |\n\nnotes\n")
    (tmp_path / "b.md").write_text("| x |\n| --- |\n| 2 |\n\n| y |\n| --- |\n| 3 |\n")
    before = "Text.\n<!-- a.md b.md -->\n| old |\n\n<!-- b.md: table 2 -->\nold\n\nMore.\n"
    after = (
        "Text.\n<!-- a.md b.md -->\n| x |\n| --- |\n| 1 |\n| 2 |\n\n"
        "<!-- b.md: table 2 -->\n| y |\n| --- |\n| 3 |\n\nMore.\n"
    )
    assert readme_tables.with_tables(before) == after
    assert readme_tables.with_tables(after) == after
    heads = "<!-- a.md: head -->\n?\n\n<!-- a.md: foot -->\n?\n\n<!-- a.md: rows 1 -->\n?\n"
    assert readme_tables.with_tables(heads) == (
        "<!-- a.md: head -->\nmade by a.\n\n<!-- a.md: foot -->\nnotes.\n\n"
        "<!-- a.md: rows 1 -->\n| x |\n| --- |\n| 1 |\n"
    )
    (tmp_path / "c.md").write_text("made by c\n\n```\none\n\ntwo\n```\n")
    assert readme_tables.output(["c.md"]) == "```\none\n\ntwo\n```"
    assert readme_tables.output(["c.md"], "1") == "```\none\n```"


def test_policies_are_summarized_by_geometric_means(tmp_path, monkeypatch):
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    rows = [
        ("n", "as written", "100", "1.000", "", ""),
        ("n", "nothing_saveable", "40", "1.200", "20", "1.100"),
        ("n", "save_qkv_proj", "50", "1.100", "does not fit", ""),
        ("n", "the fewest bytes", "", "", "10", "2.000"),
        ("m", "as written", "10", "1.000", "", ""),
        ("m", "nothing_saveable", "9", "1.200", "8", "1.100"),
        ("m", "the fewest bytes", "", "", "4", "2.000"),
    ]

    def write(name, header, rows):
        lines = [header, ["---"] * len(header), *rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        (tmp_path / name).write_text(f"{text}\n")

    header = ["network", "policy", "a", "modelled time ×", "b", "modelled time ×"]
    write("a.md", header, rows)
    found = readme_tables.policies(["a.md"]).splitlines()
    assert found[0].endswith("| its bytes | ours | its modelled time × | ours × |")
    assert "| `nothing_saveable` | 2 | 60.0% | 40.0% | 1.200 | 1.100 |" in found
    assert "| saved by name | 0 of 1 |  |  |  |  |" in found
    assert "| the fewest bytes | 2 |  | 20.0% |  | 2.000 |" in found
    header = ["network", "policy", "a", "executable ×", "b", "executable ×"]
    header += ["products ×", "coop_jax ×", "measured ×", "coop_jax ×"]
    behind = [["1.9", "1.8", "1.3", "1.2"] if row[5] else [""] * 4 for row in rows]
    write("b.md", header, [[*row, *more] for row, more in zip(rows, behind, strict=True)])
    found = readme_tables.policies(["b.md"]).splitlines()
    assert found[0].endswith("| its executable × | ours × | its measured time × | ours × |")
    assert (
        "| `nothing_saveable` | 2 | 60.0% | 40.0% | 1.200 | 1.100 | 1.30 | 1.20 |" in found
    )


# The reference, and docstrings.

PUBLIC = [name for module in make_api.MODULES for name in make_api.public_names(module)]
WRITTEN = [
    name
    for name in {id(n.value): n for n in [*PUBLIC, *make_api.returned()]}.values()
    if callable(name.value) and not name.is_native
]
FUNCTIONS = [name for name in WRITTEN if inspect.isfunction(name.value)] + [
    member
    for name in WRITTEN
    if inspect.isclass(name.value)
    for member in make_api.members(name)
    if inspect.isfunction(member.value)
]
UNITS = (
    r"byte|second|FLOP|times|how often|number|count|part|ratio|relative|difference|index"
    r"|operation|tensor|step|address|offset|seed|multiple|power|1 means"
)


def qualified(name):
    return name.qualified


def documented(doc, title):
    """Names and texts of a section of a docstring."""
    match = re.search(rf"^{title}:\n((?: .*\n|\n)*)", doc + "\n", re.MULTILINE)
    items = {}
    body = textwrap.dedent(match[1]) if match else ""
    for item in re.split(r"^(?=\S)", body, flags=re.MULTILINE):
        names, colon, text = item.partition(":")
        if colon:
            for name in names.split(","):
                items[name.strip().lstrip("*")] = text
    return items


def test_the_reference_is_that_of_the_docstrings():
    assert make_api.PAGE.read_text() == make_api.page()


def test_public_names_are_few_and_known():
    names = [name.qualified.rpartition(".")[2] for name in PUBLIC]
    assert {"remat_train_step", "fit", "plan_graph", "Target", "read_dtr_log"} <= set(names)
    assert not any(name in names for name in ("annotations", "whole_bytes", "dataclasses"))


@pytest.mark.parametrize("name", [*WRITTEN, *FUNCTIONS], ids=qualified)
def test_it_has_a_docstring(name):
    assert make_api.own_doc(name).strip()


@pytest.mark.parametrize("name", WRITTEN, ids=qualified)
def test_public_members_have_docstrings(name):
    if not inspect.isclass(name.value):
        return
    attributes = documented(make_api.own_doc(name), "Attributes")
    for member in make_api.members(name):
        short = member.qualified.rpartition(".")[2]
        assert short in attributes or make_api.own_doc(member), member.qualified


@pytest.mark.parametrize("name", FUNCTIONS, ids=qualified)
def test_arguments_are_documented(name):
    doc = make_api.own_doc(name)
    items = documented(doc, "Arguments")
    for parameter in inspect.signature(name.value).parameters.values():
        is_rest = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.name == "self" or (is_rest and parameter.name in ("args", "kwargs")):
            continue
        is_named = re.search(rf"`{parameter.name}`", doc)
        assert parameter.name in items or is_named, parameter.name


@pytest.mark.parametrize("name", FUNCTIONS, ids=qualified)
def test_errors_are_documented(name):
    tree = ast.parse(textwrap.dedent(inspect.getsource(name.value)))
    nested = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)][1:]
    inner = {id(n) for function in nested for n in ast.walk(function)}
    doc = make_api.own_doc(name)
    for node in ast.walk(tree):
        is_error = isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        if is_error and id(node) not in inner and isinstance(node.exc.func, ast.Name):
            assert node.exc.func.id in doc


def fields_of(name):
    """Names and types of attributes of a dataclass, or of arguments."""
    if inspect.isfunction(name.value) or "\nArguments:\n" in make_api.own_doc(name):
        for parameter in inspect.signature(name.value).parameters.values():
            yield parameter.name, str(parameter.annotation)
    elif dataclasses.is_dataclass(name.value):
        for field in dataclasses.fields(name.value):
            yield field.name, str(field.type)


@pytest.mark.parametrize("name", WRITTEN, ids=qualified)
def test_attributes_are_documented(name):
    if dataclasses.is_dataclass(name.value):
        attributes = documented(make_api.own_doc(name), "Attributes")
        missing = {field.name for field in dataclasses.fields(name.value)} - set(attributes)
        assert missing == set()


@pytest.mark.parametrize("name", [*WRITTEN, *FUNCTIONS], ids=qualified)
def test_numbers_have_units(name):
    doc = make_api.own_doc(name)
    items = documented(doc, "Attributes") | documented(doc, "Arguments")
    for field, kind in fields_of(name):
        is_number = re.search(r"\b(int|float)\b", kind) and "Sequence" not in kind
        if is_number and field in items:
            has_unit = re.search(r"bytes|seconds|flops|^num_", field)
            assert has_unit or re.search(UNITS, items[field]), field


def test_the_licence_is_apache_2_and_is_shipped():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    metadata = (ROOT / "pyproject.toml").read_text()
    assert 'license = "Apache-2.0"' in metadata
    assert 'license-files = ["LICENSE"]' in metadata
