"""Windows of a program, and the slowdown of the whole that is estimated from them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

from . import _terrace
from ._errors import UnknownArgument, named_arguments

if TYPE_CHECKING:
    from .experiment import Experiment

PathLike = str | os.PathLike[str]


class Estimate(NamedTuple):
    """The slowdown of a whole program, with its 95 % interval."""

    fast_share: float | None
    """The share of memory that is fast; None where the experiment has it in bytes."""
    slowdown: float
    """Run time over that with all memory fast."""
    slowdown_low: float
    slowdown_high: float
    """The ends of the interval."""
    time_ms: float
    """Run time of the whole program."""
    fast_reads: float
    """Share of lines read from memory that came from the fast tier, in the windows."""
    all_fast_ms: float
    """Run time with all memory fast."""
    windows: int
    """Windows that were simulated."""

    @property
    def error(self) -> float:
        """Half of the interval's width over the slowdown."""
        return (self.slowdown_high - self.slowdown_low) / 2 / self.slowdown


class Windows:
    """Short parts of a program at random places, each with what is needed to simulate it alone;
    `Experiment.windows` takes them."""

    _inner: _terrace.Windows

    @classmethod
    def _of(cls, inner: _terrace.Windows) -> Windows:
        made = cls.__new__(cls)
        made._inner = inner
        return made

    @classmethod
    def read(cls, path: PathLike, experiment: Experiment | None = None) -> Windows:
        """Opens a file of windows. They are simulated on the machine of `experiment` where it is
        given, else on that of the experiment that they were taken from."""
        inner = None if experiment is None else experiment._inner
        return cls._of(_terrace.Windows.read(os.fspath(path), inner))

    @property
    def workload(self) -> str:
        """What they are windows of."""
        return self._inner.workload

    @property
    def references(self) -> int:
        """Loads and stores of the whole program."""
        return self._inner.references

    @property
    def window_references(self) -> int:
        """Loads and stores of a window."""
        return self._inner.window_references

    def __len__(self) -> int:
        return len(self._inner)

    @named_arguments
    def estimate(
        self,
        fast: float | Iterable[float] = (),
        *,
        error: float | None = None,
        jobs: int = 1,
    ) -> list[Estimate]:
        """Estimates the slowdown of the whole program with these shares of its memory fast, or with
        that of the experiment. Pages stay where first touch puts them.

        With `error` (0.02 for 2 %) a quarter of the windows is simulated first, and the others only
        if an interval is wider than that.
        """
        shares = [fast] if isinstance(fast, Real) else fast
        if isinstance(shares, str) or not isinstance(shares, Iterable):
            raise UnknownArgument(f"fast = {fast!r}: expected a share, 0 to 1, or a list of such")
        shares = list(shares)
        for share in shares:
            if isinstance(share, bool) or not isinstance(share, Real):
                raise UnknownArgument(f"fast has {share!r}: expected a share, 0 to 1")
        if error is not None and not isinstance(error, Real):
            raise UnknownArgument(f"error = {error!r}: expected a number, 0.02 for 2 %")
        if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
            raise UnknownArgument(f"jobs = {jobs!r}: expected a whole number, 1 or more")
        estimates, all_fast_ms, windows = self._inner.estimate(shares, error, jobs)
        return [Estimate(*one, all_fast_ms, windows) for one in estimates]

    def __repr__(self) -> str:
        return (
            f"<terrace.Windows: {len(self)} of {self.window_references} loads and stores, of "
            f"{self.workload}'s {self.references}>"
        )
