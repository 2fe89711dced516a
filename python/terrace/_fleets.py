"""Fleets: how much fast memory many hosts need, planned on this machine or on a Ray cluster.

Hosts are read by Terrace itself, each reduced to a few numbers where it is read. Only these come back,
and the answer is the same bytes wherever, and in whatever order, hosts were read.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import _cluster, _terrace
from ._errors import exit_code
from ._terrace import FleetAnswer, Refused

PathLike = str | os.PathLike[str]

RESULTS = ("fleet.json", "plan.json", "runs.parquet")
"""Files of results that a command does not replace unasked."""

Host = tuple[int, str, str]
"""Class, name and folder of a host."""


def fleet(
    file: PathLike,
    *,
    jobs: int | None = None,
    ray: bool | str = False,
    retries: int = 1,
    progress: Callable[[int, int], object] | None = None,
) -> FleetAnswer:
    """Answers how much fast memory the hosts of a fleet file need, as `terrace fleet` does.

    `ray=True` starts Ray here, or joins what `ray.init` joined already; `ray="ADDRESS"` joins that
    cluster ("auto": the one this machine belongs to). Its machines read the histories themselves:
    from folders that all of them share, or from a bucket. Otherwise `jobs` threads read them here. A
    host that cannot be read `retries` times more is left out with its reason. `progress` receives how
    many of how many hosts have been read.
    """
    made = _terrace.Fleet.read(os.fspath(file))
    threads = jobs or os.cpu_count() or 1
    if not ray:
        return made.answer(threads, progress)
    return made.join(_on_ray(made, retries, None if ray is True else ray, progress), threads)


def _is_away(place: str) -> bool:
    """Whether a host's folder of files is not there."""
    return "://" not in place and not os.path.isdir(place)


def _read_several(
    hosts: list[Host], text: str, folder: str, build: str
) -> list[tuple[str, Any, float]]:
    """Reads hosts in a worker: for each "done" and its bytes, "away", or "refused" or "failed" and
    why; and how long that took."""
    if build != _terrace.__build__:
        other = (
            f"Terrace is {_terrace.__build__} on a worker, expected {build}; "
            "install the same on all machines"
        )
        return [("refused", other, 0.0) for _ in hosts]
    made = _terrace.Fleet.parse(text, folder)

    def read(host: Host) -> tuple[str, Any]:
        try:
            return ("away", None) if _is_away(host[2]) else ("done", made.read_hosts([host])[0])
        except Refused as error:
            return "refused", str(error)
        except Exception as error:  # A host's failure is a result like any other.
            return "failed", str(error) or type(error).__name__

    def timed(host: Host) -> tuple[str, Any, float]:
        begun = time.monotonic()
        return (*read(host), time.monotonic() - begun)

    return [timed(host) for host in hosts]


def _on_ray(
    made: _terrace.Fleet,
    retries: int,
    address: str | None,
    progress: Callable[[int, int], object] | None,
) -> list[bytes]:
    """What is left of each host, in their order."""
    hosts = made.hosts()
    read: dict[int, bytes] = {}
    fixed = (made.text, os.fspath(made.folder), _terrace.__build__)

    def ended(unit: _cluster.Unit, outcome: str, what: Any, _: float | None) -> None:
        host = unit.what
        if outcome == "away" and not _is_away(host[2]):
            raise Refused(
                f"{host[2]}: not there on a worker of the cluster; expected histories in folders "
                "that all its machines share, or in a bucket (s3://)"
            )
        if outcome == "refused":
            raise Refused(what)
        if outcome == "away":
            # It is not here any more either: reading it says so.
            read[unit.index] = made.read_hosts([host])[0]
        elif outcome == "failed":
            read[unit.index] = made.given_up(host, what)
        else:
            read[unit.index] = what
        if progress is not None:
            progress(len(read), len(hosts))

    with _cluster.joined(address) as ray:
        units = (_cluster.Unit(index, host) for index, host in enumerate(hosts))
        _cluster.spread(
            ray,
            _read_several,
            units,
            len(hosts),
            ended,
            retries=retries,
            arguments=lambda _: fixed,
        )
    return [read[index] for index in range(len(hosts))]


def _check_folder(folder: Path) -> None:
    """Refuses a folder that could not be written to, before hosts are read; it is not made."""
    place = next((path for path in (folder, *folder.parents) if path.exists()), Path("."))
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise Refused(
            f"{folder}: {error.strerror}; expected a folder for results that can be written to"
        ) from None


def main(arguments: list[str] | None = None) -> int:
    """`python -m terrace.fleet`."""
    parser = argparse.ArgumentParser(
        prog="python -m terrace.fleet",
        description="Find how much fast memory the hosts of a fleet need, here or on a Ray cluster. "
        "The answer is that of 'terrace fleet'.",
    )
    parser.add_argument(
        "file", metavar="FILE.toml", help="the fleet file: see 'terrace fleet --help'"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="folder for tables, report.html and fleet.json"
    )
    parser.add_argument("--force", action="store_true", help="replace an answer that is in DIR")
    parser.add_argument(
        "--rollout", action="store_true", help="show with which hosts to begin, and when to stop"
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="format of the answer (text)"
    )
    _cluster.add_arguments(parser, "host")
    given = parser.parse_args(arguments)
    last = time.monotonic()

    def show(finished: int, of: int) -> None:
        nonlocal last
        if time.monotonic() - last >= 10:
            print(f"  {finished} of {of} hosts", file=sys.stderr)
            last = time.monotonic()

    def answered() -> int:
        for name in RESULTS if given.out and not given.force else ():
            if (Path(given.out) / name).exists():
                raise Refused(
                    f"{given.out} has results already ({name}); expected a name that is free: "
                    "give another --out, or --force to replace it"
                )
        if given.out:
            _check_folder(Path(given.out))
        answer = fleet(
            given.file, jobs=given.jobs, ray=given.ray, retries=given.retries, progress=show
        )
        try:
            if given.out:
                answer.write(given.out, " ".join(sys.orig_argv))
        except Exception:
            # Hosts may have taken hours to read.
            show_answer(answer)
            raise
        show_answer(answer)
        if given.out and given.format == "text":
            print(f"\nanswer: {given.out}")
        return 0

    def show_answer(answer: FleetAnswer) -> None:
        if given.format == "json":
            print(answer.json())
            return
        for line in (*answer.words, *answer.remarks):
            print(line)
        if given.rollout:
            print("\nRollout:", *answer.rollout, sep="\n")

    return exit_code(answered)
