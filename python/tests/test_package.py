"""The package itself: its documents, types and notebooks."""

import ast
import doctest
import importlib
import json
from pathlib import Path

import pytest

import notebooks
import terrace
from terrace import _terrace

FOLDER = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("module", ["terrace", "terrace.experiment"])
def test_examples_in_the_documentation_hold(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0
    assert result.attempted > 3


def test_types_are_declared_for_all_that_is_there():
    package = Path(terrace.__file__).parent
    assert (package / "py.typed").is_file()
    tree = ast.parse((package / "_terrace.pyi").read_text())
    declared = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            declared[node.name] = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            declared[node.name] = set()
    there = {name for name in dir(_terrace) if not name.startswith("_")}
    assert there == set(declared)
    for name, members in declared.items():
        kind = getattr(_terrace, name)
        if isinstance(kind, type) and not issubclass(kind, Exception):
            public = {m for m in vars(kind) if not m.startswith("_")}
            assert public == {m for m in members if not m.startswith("_")}, name
    assert set(terrace.__all__) <= set(dir(terrace))


@pytest.mark.parametrize(
    "notebook", sorted((FOLDER / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem
)
def test_notebooks_show_what_is_kept_in_them(notebook, tmp_path, monkeypatch):
    """Cell by cell in one namespace, as a kernel does; without Jupyter. After a change that is meant,
    `python python/tests/notebooks.py FILE` keeps what comes out."""
    monkeypatch.chdir(tmp_path)
    kept = json.loads(notebook.read_text())
    figures = texts = 0
    outputs = notebooks.run(kept, notebook.name)
    for number, (cell, got) in enumerate(zip(kept["cells"], outputs, strict=True)):
        assert notebooks.comparable(got) == notebooks.comparable(cell.get("outputs", [])), number
        figures += sum("image/png" in output.get("data", {}) for output in got)
        texts += sum("text/html" in output.get("data", {}) for output in got)
    assert figures >= 3 and texts >= 2
