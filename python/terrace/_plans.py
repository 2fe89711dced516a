"""Plans: how much fast memory programs need."""

from __future__ import annotations

import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import NamedTuple

from . import _terrace
from ._errors import UnknownArgument, check_name, named_arguments
from ._names import MachineName, PolicyName
from ._terrace import Plan

PathLike = str | os.PathLike[str]


class Recommended(NamedTuple):
    """What a plan recommends for a program."""

    program: str
    policy: str
    fast_share: float
    """Its fast memory over its footprint."""
    fast_bytes: int
    slowdown: float
    """Run time over that with all memory fast."""
    slowdown_low: float
    slowdown_high: float
    """The ends of the slowdown's interval."""


def _listed(name: str, given: object, kinds: type | tuple[type, ...], words: str) -> list:
    """An argument that is one thing or several of them, as a list."""
    several = [given] if isinstance(given, kinds) else given
    if not isinstance(several, Iterable):
        raise UnknownArgument(f"{name} = {given!r}: expected {words}, or a list of such")
    several = list(several)
    for one in several:
        if not isinstance(one, kinds) or isinstance(one, bool):
            raise UnknownArgument(f"{name} has {one!r}: expected {words}")
    return several


@named_arguments
def plan(
    recordings: PathLike | Iterable[PathLike],
    slowdown: float,
    *,
    policies: PolicyName | Iterable[PolicyName] | None = None,
    machines: MachineName | Iterable[MachineName] = (),
    slow_latencies_ns: float | Iterable[float] = (),
    price_fast: float | None = None,
    price_slow: float | None = None,
    fast_at_most: float = 1.0,
    period_ms: int | None = None,
    moved_pages: int | None = None,
    settle_periods: int = 0,
    memory_share: float = 0.4,
    memory_share_error: float = 0.2,
    seeds: int = 3,
    jobs: int = 1,
) -> Plan:
    """Finds how much fast memory programs need to stay within a slowdown (1.05 for 5 %).

    `recordings` are paths of recordings or profiles, one for each program. Policies are names of
    `terrace.policies()`, machines of `terrace.machines()`; without machines it is the one of the
    recordings. Prices are of a GB of memory of each tier, in any unit.
    """
    paths = _listed("recordings", recordings, (str, os.PathLike), "a path")
    names = None if policies is None else _listed("policies", policies, str, "a policy's name")
    for name in names or ():
        check_name("policy", name, [policy["name"] for policy in _terrace.policies()])
    presets = _listed("machines", machines, str, "a machine's name")
    for name in presets:
        check_name("machine", name, [machine["name"] for machine in _terrace.machines()])
    latencies = _listed("slow_latencies_ns", slow_latencies_ns, Real, "a number")
    numbers = {
        "slowdown": slowdown,
        "price_fast": price_fast,
        "price_slow": price_slow,
        "fast_at_most": fast_at_most,
        "memory_share": memory_share,
        "memory_share_error": memory_share_error,
    }
    for name, value in numbers.items():
        if value is not None and not isinstance(value, Real):
            raise UnknownArgument(f"{name} = {value!r}: expected a number")
    counts = {
        "period_ms": period_ms,
        "moved_pages": moved_pages,
        "settle_periods": settle_periods,
        "seeds": seeds,
        "jobs": jobs,
    }
    for name, value in counts.items():
        if value is not None and (not isinstance(value, Integral) or value < 0):
            raise UnknownArgument(f"{name} = {value!r}: expected a whole number, 0 or more")
    return _terrace.plan(
        paths,
        slowdown,
        policies=names,
        machines=presets,
        slow_latencies_ns=latencies,
        price_fast=price_fast,
        price_slow=price_slow,
        fast_at_most=fast_at_most,
        period_ms=period_ms,
        moved_pages=moved_pages,
        settle_periods=settle_periods,
        memory_share=memory_share,
        memory_share_error=memory_share_error,
        seeds=seeds,
        jobs=jobs,
    )
