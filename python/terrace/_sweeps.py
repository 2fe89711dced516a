"""Sweeps: an experiment over a grid of its keys, on this machine or on a Ray cluster.

Cells are run by Terrace itself and kept under a hash of what they compute: each is there once and
whole, or not at all. A sweep that was interrupted continues where it stopped, and the merged tables
are the same bytes wherever, and in whatever order, cells ran.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import _cluster, _terrace
from ._errors import exit_code
from ._terrace import Refused, Table

PathLike = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Progress:
    """The outcome of a cell, and the progress of the sweep."""

    cell: int
    outcome: str
    """"skipped" (was there before), "done" or "failed"."""
    error: str | None
    finished: int
    of: int
    elapsed_s: float | None = None
    """Time that the cell took its worker on Ray, which shows how busy workers are."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The result of a sweep."""

    path: Path
    cells: int
    done: int
    failed: int
    missing: int
    first_error: str | None

    @property
    def table(self) -> Table:
        """A row for each cell and group: the values of the axes beside the results."""
        return Table.read(self.path / "sweep.parquet")

    @property
    def runs(self) -> Table:
        """The run tables of all cells."""
        return Table.read(self.path / "runs.parquet")

    @property
    def periods(self) -> Table:
        """The period tables of all cells."""
        return Table.read(self.path / "periods.parquet")


def sweep(
    grid: PathLike,
    out: PathLike,
    *,
    jobs: int | None = None,
    retries: int = 1,
    ray: bool | str = False,
    progress: Callable[[Progress], object] | None = None,
) -> Sweep:
    """Runs the cells of a grid file that are not there yet and merges all of them into `out`.

    `ray=True` starts Ray here, or joins what `ray.init` joined already; `ray="ADDRESS"` joins that
    cluster ("auto": the one this machine belongs to). Otherwise `jobs` threads run them here. A cell
    that fails is tried `retries` times more; the others go on. After an exception of `progress`, or
    Ctrl-C, no further cell is begun here.
    """
    made = _terrace.Grid.read(os.fspath(grid))
    folder = os.fspath(out)
    _terrace.Grid.prepare(folder)
    finished = 0

    def reported(
        cell: int, outcome: str, error: str | None, elapsed_s: float | None = None
    ) -> None:
        nonlocal finished
        finished += 1
        if progress is not None:
            progress(Progress(cell, outcome, error, finished, len(made), elapsed_s))

    if ray:
        _on_ray(made, folder, retries, None if ray is True else ray, reported)
    else:
        made.work(folder, jobs or os.cpu_count() or 1, retries, reported)
    done, failed, missing, first = made.merge(folder)
    return Sweep(Path(folder), len(made), done, failed, missing, first)


def _files(described: dict[str, Any]) -> list[str]:
    """Files that a cell's workloads and policies name, each once."""
    import tomllib

    experiment = tomllib.loads(described["experiment"])
    groups, policies = experiment["groups"], experiment.get("policies", {})
    workloads = [group["workload"].get("path") for group in groups]
    # Those that no group has are checked, too.
    own = [policy.get("file") for policy in policies.values()]
    return [path for path in dict.fromkeys(workloads + own) if isinstance(path, str)]


def _run_elsewhere(
    experiment: str, folder: str, hash: str, paths: list[str], *contents: bytes
) -> tuple[str, Any, float]:
    """Runs a cell in a worker: "done" and its files, or "refused" or "failed" and why; and how long
    that took."""
    import tempfile

    begun = time.monotonic()
    try:
        if paths:
            with tempfile.TemporaryDirectory() as top:
                # As deep as the paths go up, so that each lands inside.
                depth = max(Path(path).parts.count("..") for path in paths)
                here = Path(top).joinpath(*["d"] * depth)
                for path, content in zip(paths, contents, strict=True):
                    target = here / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)
                files = _terrace.run_cell(experiment, os.fspath(here), hash)
        else:
            files = _terrace.run_cell(experiment, folder, hash)
        return "done", files, time.monotonic() - begun
    except Refused as error:
        return "refused", str(error), time.monotonic() - begun
    except Exception as error:  # A cell's failure is a result like any other.
        return "failed", str(error) or type(error).__name__, time.monotonic() - begun


def _run_several(
    cells: list[tuple[str, str, str, list[str]]], full: list[str], *contents: bytes
) -> list[tuple[str, Any, float]]:
    """Runs cells in a worker, one after the other: for each its experiment, its folder, its hash and
    the files that it needs, which came along under their full paths."""
    files = dict(zip(full, contents, strict=True))
    return [
        _run_elsewhere(
            experiment, folder, hash, paths, *(files[os.path.join(folder, p)] for p in paths)
        )
        for experiment, folder, hash, paths in cells
    ]


def _on_ray(
    grid: _terrace.Grid,
    out: str,
    retries: int,
    address: str | None,
    reported: Callable[[int, str, str | None, float | None], None],
) -> None:
    with _cluster.joined(address) as ray:
        stored: dict[str, Any] = {}

        def described(index: int) -> _cluster.Unit | None:
            d = grid.describe(index)
            if _terrace.Grid.is_done(out, d["hash"]):
                reported(index, "skipped", None, None)
                return None
            folder = os.path.abspath(d["folder"])
            # Files travel with the task through Ray's store, where each is once; absolute paths
            # must be the same everywhere.
            paths = [path for path in _files(d) if not os.path.isabs(path)]
            return _cluster.Unit(index, (d["experiment"], folder, d["hash"], paths))

        def files(some: list[_cluster.Unit]) -> tuple:
            full = sorted({os.path.join(c.what[1], path) for c in some for path in c.what[3]})
            for path in full:
                if path not in stored:
                    with open(path, "rb") as file:
                        stored[path] = ray.put(file.read())
            return (full, *(stored[path] for path in full))

        def ended(cell: _cluster.Unit, outcome: str, what: Any, elapsed_s: float | None) -> None:
            if outcome == "done":
                _terrace.Grid.take_in(out, cell.what[2], what)
                reported(cell.index, "done", None, elapsed_s)
            else:
                grid.note(out, cell.index, cell.attempt, what)
                reported(cell.index, "failed", what, elapsed_s)

        units = map(described, range(len(grid)))
        _cluster.spread(
            ray, _run_several, units, len(grid), ended, retries=retries, arguments=files
        )


def main(arguments: list[str] | None = None) -> int:
    """`python -m terrace.sweep`."""
    parser = argparse.ArgumentParser(
        prog="python -m terrace.sweep",
        description="Run an experiment over a grid of its keys, here or on a Ray cluster. "
        "Finished cells are never run twice; the merged tables are those of 'terrace sweep'.",
    )
    parser.add_argument(
        "grid", metavar="GRID.toml", help="the grid file: see 'terrace sweep --help'"
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="folder for the results")
    _cluster.add_arguments(parser, "cell")
    given = parser.parse_args(arguments)
    last = time.monotonic()

    def show(step: Progress) -> None:
        nonlocal last
        if step.outcome == "failed":
            print(f"cell {step.cell} failed: {step.error}", file=sys.stderr)
        if time.monotonic() - last >= 10 or step.finished == step.of:
            print(f"  {step.finished} of {step.of} cells", file=sys.stderr)
            last = time.monotonic()

    def swept() -> int:
        done = sweep(
            given.grid,
            given.out,
            jobs=given.jobs,
            retries=given.retries,
            ray=given.ray,
            progress=show,
        )
        print(f"{done.done} of {done.cells} cells are there; tables in {done.path}")
        if done.failed:
            print(
                f"terrace: {done.failed} of {done.cells} cells failed, see "
                f"{done.path / 'failures.jsonl'}; the first: {done.first_error}",
                file=sys.stderr,
            )
        return 1 if done.failed else 0

    return exit_code(swept)
