"""Runs notebooks without Jupyter: cell by cell in one namespace, with what each shows.

`python python/tests/notebooks.py FILE...` writes the outputs into the files; the tests run the same
and compare.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import struct
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _shown(value: Any) -> dict[str, Any]:
    """A value as a notebook keeps it."""
    data = {"text/plain": _lines(repr(value))}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = _lines(value._repr_html_())
    return data


def run(notebook: dict[str, Any], name: str) -> list[list[dict[str, Any]]]:
    """The outputs of each cell."""
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs: list[list[dict[str, Any]]] = []
    for number, cell in enumerate(notebook["cells"]):
        outputs.append([])
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]), f"{name}, cell {number}")
        last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        value, printed = None, io.StringIO()
        with contextlib.redirect_stdout(printed):
            before = ast.Module(tree.body[:-1] if last else tree.body, [])
            exec(compile(before, f"{name}, cell {number}", "exec"), names)
            if last:
                value = eval(compile(ast.Expression(last.value), name, "eval"), names)
        if printed.getvalue():
            text = _lines(printed.getvalue())
            outputs[-1].append({"output_type": "stream", "name": "stdout", "text": text})
        if value is not None:
            result = {"output_type": "execute_result", "execution_count": number, "metadata": {}}
            outputs[-1].append(result | {"data": _shown(value)})
        for figure in map(plt.figure, plt.get_fignums()):
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=80, metadata={"Software": None})
            data = {"image/png": base64.b64encode(image.getvalue()).decode()}
            outputs[-1].append({"output_type": "display_data", "metadata": {}, "data": data})
        plt.close("all")
    return outputs


def comparable(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Outputs as they must be the same everywhere: texts, and the sizes of pictures."""
    same = []
    for output in outputs:
        kept = {k: v for k, v in output.items() if k not in ("execution_count", "metadata")}
        image = output.get("data", {}).get("image/png")
        if image:
            kept["data"] = struct.unpack(">II", base64.b64decode(image)[16:24])
        same.append(kept)
    return same


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        notebook = json.loads(path.read_text())
        for number, (cell, outputs) in enumerate(zip(notebook["cells"], run(notebook, path.name))):
            if cell["cell_type"] == "code":
                cell |= {"outputs": outputs, "execution_count": number}
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
