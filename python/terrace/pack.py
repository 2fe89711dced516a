"""`python -m terrace.pack [--into FOLDER] FILE...`: puts what policies in these files need of this Python
into FOLDER, which is then a Python of its own that works in any place: for virtual machines, which
have none. Without FOLDER this only tries whether it can be done. Not for people.

That is the interpreter, its standard library, this package, NumPy, and the packages that they import.
Modules are put there compiled, so that a machine whose processor is emulated need not do it; what only
tests and builds need is left out. Shared libraries from elsewhere are the caller's to find.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import marshal
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

# Loads all that a policy's process loads before the policy itself.
from . import serve  # noqa: F401

# Folders of the standard library that no policy can use in a machine without screen and network.
_NOT_OF_THE_LIBRARY = {
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tkinter",
    "turtledemo",
}
_NOT_OF_ANY = {"__pycache__", "tests"}
# For compilers and editors.
_NO_SUFFIXES = {".a", ".c", ".h", ".o", ".pxd", ".pyc", ".pyi", ".pyx"}


def _imported(file: Path) -> set[str]:
    """Packages that a file imports anywhere. One with an error in it reports that itself, later."""
    names = set()
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


def _load(names: set[str]) -> None:
    """Loads modules, and with them what they import; those that cannot be are the policy's affair."""
    for name in sorted(names):
        try:
            importlib.import_module(name)
        except Exception:
            continue


def _packages() -> Iterator[Path]:
    """Folders and files of the loaded modules that are not the standard library's."""
    loaded = {name.partition(".")[0] for name in sys.modules}
    for name in sorted(loaded - sys.stdlib_module_names - {"__main__", "sitecustomize"}):
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec is None:
            continue
        folders = [Path(folder) for folder in spec.submodule_search_locations or []]
        if not folders and spec.has_location and spec.origin:
            yield Path(spec.origin)
        for folder in folders:
            yield folder
            # Shared libraries that a wheel brings.
            yield folder.with_name(f"{name}.libs")


def _put(file: Path, to: Path) -> None:
    """Puts a file; of a module, what it is compiled to."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".py":
        try:
            code = SourceFileLoader(file.stem, str(file)).get_code(file.stem)
        except (SyntaxError, ValueError):
            # A template, or a test of the compiler's.
            return
        # Without its source beside it, a compiled module's time is not looked at.
        header = importlib.util.MAGIC_NUMBER + bytes(12)
        to.with_suffix(".pyc").write_bytes(header + marshal.dumps(code))
    elif file.suffix not in _NO_SUFFIXES:
        shutil.copyfile(file, to)


def _put_all(source: Path, to: Path, without: set[str]) -> None:
    """Puts a file or all of a folder, if there is one."""
    if source.is_file():
        _put(source, to)
    for folder, folders, files in os.walk(source):
        folders[:] = [
            name for name in folders if name not in without and not name.startswith("config-")
        ]
        for name in files:
            file = Path(folder, name)
            if file.is_file():
                _put(file, to / file.relative_to(source))


def _put_python(folder: Path) -> None:
    """Puts this Python and what is loaded."""
    interpreter = folder / "bin/python3"
    interpreter.parent.mkdir(parents=True)
    shutil.copyfile(os.path.realpath(getattr(sys, "_base_executable", sys.executable)), interpreter)
    interpreter.chmod(0o755)
    library = Path(sysconfig.get_path("stdlib"))
    modules = folder / sys.platlibdir / library.name
    _put_all(library, modules, _NOT_OF_THE_LIBRARY | _NOT_OF_ANY)
    # Packages are put where every Python looks, whatever its distribution calls their place.
    for package in _packages():
        _put_all(package, modules / package.name, _NOT_OF_ANY)


def main(arguments: list[str]) -> int:
    """Puts it all there."""
    parser = argparse.ArgumentParser("terrace.pack")
    parser.add_argument("--into", type=Path)
    parser.add_argument("file", type=Path, nargs="+")
    wanted = parser.parse_args(arguments)
    _load({"numpy"}.union(*map(_imported, wanted.file)))
    if "numpy" not in sys.modules:
        print("terrace.pack: no module named 'numpy'", file=sys.stderr)
        return 2
    if wanted.into is not None:
        # Whoever makes this has a mask of their own, and policies run as another user.
        os.umask(0o022)
        _put_python(wanted.into)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
