"""Work on a Ray cluster: many small units, in tasks of about a second.

A unit is finished once, whichever worker or node dies: results are kept where the work was handed out,
and what was under way is run again. A unit whose worker dies each time is given up with its reason; the
others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ._terrace import Refused

# Tasks that wait for a processor, by processor: enough that none waits for the next, few enough
# that memory does not grow with the number of units.
_AHEAD = 2
# A task has as many units as take about this long: sending and receiving is little beside it, and
# little is run again when a worker dies.
_TASK_S = 1.0
_MOST_UNITS = 64


@dataclasses.dataclass(frozen=True)
class Unit:
    """What a worker does at a time."""

    index: int
    what: Any
    """It as a worker's argument."""
    attempt: int = 1


def _whole_number(least: int) -> Callable[[str], int]:
    """Reads a number of at least so much."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"got '{text}', expected a whole number from {least}")
        return int(text)

    return read


def add_arguments(parser: argparse.ArgumentParser, unit: str) -> None:
    """The options by which a command says where its units, of this name, are worked on."""
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=_whole_number(1),
        help=f"{unit}s at the same time, without Ray; as many as there are processors by default",
    )
    parser.add_argument(
        "--retries",
        metavar="N",
        type=_whole_number(0),
        default=1,
        help=f"how often a {unit} that failed is tried again (1)",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const=True,
        default=False,
        help="work on Ray: started here, or the cluster at ADDRESS ('auto': this machine's)",
    )


@contextlib.contextmanager
def joined(address: str | None) -> Iterator[Any]:
    """Ray, joined to the cluster at `address`, or started here; what the caller joined is kept."""
    try:
        import ray
    except ImportError as error:
        raise Refused(
            "no module 'ray': expected it for work on a cluster; "
            "install the extra with pip install './python[ray]'"
        ) from error
    started = not ray.is_initialized()
    if started:
        ray.init(address=address, log_to_driver=False, include_dashboard=False)
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


def spread(
    ray: Any,
    work: Callable[..., list[tuple[str, Any, float]]],
    units: Iterable[Unit | None],
    of: int,
    ended: Callable[[Unit, str, Any, float | None], None],
    *,
    retries: int,
    arguments: Callable[[list[Unit]], tuple] = lambda _: (),
) -> None:
    """Runs `work` in workers, on each of `units` (`of` at most; None is none).

    `work` receives the `what` of some units, and `arguments` of them. It returns for each an outcome,
    what came of it, and the seconds that it took. `ended` receives these once for each unit; what
    "failed" is tried `retries` times more before.
    """
    # A worker or node that dies takes its tasks along, not what has ended: that is here. Ray runs
    # such a task again, unless its workers die of it each time.
    task = ray.remote(max_retries=3, num_cpus=1)(work)
    running: dict[Any, list[Unit]] = {}
    # Units that failed, each to be tried alone.
    again: list[Unit] = []
    left = of
    known, seconds = 0, 0.0

    def counted() -> Iterator[Unit]:
        nonlocal left
        for unit in units:
            left -= 1
            if unit is not None:
                yield unit

    following = counted()
    try:
        while True:
            ahead = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while len(running) < ahead:
                # Small tasks until it is known how long a unit takes, and towards the end.
                size = int(_TASK_S * known / seconds) if seconds > 0 else 1
                size = max(1, min(size, _MOST_UNITS, left // (2 * ahead)))
                some = [again.pop(0)] if again else list(itertools.islice(following, size))
                if not some:
                    break
                running[task.remote([unit.what for unit in some], *arguments(some))] = some
            if not running:
                return
            ready, _ = ray.wait(list(running), num_returns=1)
            for reference in ready:
                some = running.pop(reference)
                try:
                    results = ray.get(reference)
                except ray.exceptions.RayError as error:
                    if len(some) > 1:
                        # One of them may be the cause; the others must not fail with it.
                        again.extend(some)
                        continue
                    results = [("failed", f"{type(error).__name__}: {error}", None)]
                del reference
                for unit, (outcome, what, elapsed_s) in zip(some, results, strict=True):
                    if elapsed_s is not None:
                        known, seconds = known + 1, seconds + elapsed_s
                    if outcome == "failed" and unit.attempt <= retries:
                        again.append(dataclasses.replace(unit, attempt=unit.attempt + 1))
                    else:
                        ended(unit, outcome, what, elapsed_s)
    finally:
        # Nothing is left under way in a cluster that others use, whatever ended this.
        for reference in running:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)
