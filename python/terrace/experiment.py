"""Experiments, machines, groups and workloads as objects.

They hold the keys of an experiment file and nothing more; Terrace checks them when an `Experiment`
is made, and refuses unusable keys in one line.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from . import _terrace
from ._terrace import Budget, Moves, Refused, Results, Scan

PathLike = str | os.PathLike[str]


@runtime_checkable
class Policy(Protocol):
    """A policy: any object with this method, called once a period for one group.

    It returns the pages to promote and those to demote (indices, or masks with an entry for each
    page), the result of `terrace.select`, or None to move nothing. Plans over the
    budget, and pages that are where they should go, are refused.

    Optional attributes: `name`, which is used in results (the class's name if there is none), and
    `allocation`, "fast-first" or "interleave": where new pages go. A method `start(seed)` is called
    before the first scan.
    """

    def decide(self, scan: Scan, budget: Budget) -> Moves | tuple[Any, Any] | None:
        """Returns the pages to move after a period."""
        ...


class _Keys:
    """Keys of an experiment file: those that were given, and no others."""

    def __init__(self, **keys: Any) -> None:
        self._keys = {name: value for name, value in keys.items() if value is not None}

    def keys_of_file(self) -> dict[str, Any]:
        """The keys as an experiment file has them."""
        return _plain(self._keys)

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self._keys.items())
        return f"{type(self).__name__}({inner})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.keys_of_file() == other.keys_of_file()


def _plain(value: Any) -> Any:
    if isinstance(value, _Keys):
        return value.keys_of_file()
    if isinstance(value, Mapping):
        return {str(name): _plain(v) for name, v in value.items() if v is not None}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        return value.item()
    return value


class Machine(_Keys):
    """The simulated machine's two tiers; every key of the section `[machine]` can be given.

    >>> Machine(fast="1G", slow_latency_ns=300)
    Machine(fast='1G', slow_latency_ns=300)
    """

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)

    @classmethod
    def preset(cls, name: str, **keys: Any) -> Machine:
        """A machine of `terrace.machines()`, at trace fidelity.

        >>> Machine.preset("server-ddr5-cxl", slow="4G").keys_of_file()["fidelity"]
        'trace'
        """
        known = [machine["name"] for machine in _terrace.machines()]
        if name not in known:
            raise Refused(f"machine '{name}': expected one of {', '.join(known)}")
        hardware = {"preset": name, **keys.pop("hardware", {})}
        return cls(fidelity="trace", hardware=hardware, **keys)


class Workload(_Keys):
    """What a group runs: a kind of `terrace.workloads()` and its parameters.

    >>> Workload("zipf", footprint_mib=64)
    Workload(kind='zipf', footprint_mib=64)
    """

    def __init__(self, kind: str, **parameters: Any) -> None:
        super().__init__(kind=kind, **parameters)

    @classmethod
    def recording(cls, path: PathLike, group: str | None = None) -> Workload:
        """The accessed pages, or references, of a recording."""
        return cls("recording", path=os.path.abspath(path), group=group)

    @classmethod
    def profile(cls, path: PathLike) -> Workload:
        """A program by its profile: run times come out at interval fidelity."""
        return cls("profile", path=os.path.abspath(path))


class Group(_Keys):
    """A workload under a policy with its share of fast memory: `fast_ratio` or `fast`.

    Other keys of the section `[[groups]]` can be given too.
    """

    def __init__(
        self,
        name: str,
        workload: Workload | Mapping[str, Any],
        *,
        policy: str | None = None,
        fast_ratio: float | None = None,
        fast: str | int | None = None,
        page_size: str | None = None,
        moved_pages_per_period: int | None = None,
        **keys: Any,
    ) -> None:
        super().__init__(
            name=name,
            workload=workload,
            policy=policy,
            fast_ratio=fast_ratio,
            fast=fast,
            page_size=page_size,
            moved_pages_per_period=moved_pages_per_period,
            **keys,
        )


PolicyLike = str | Policy | Callable[[], Policy]


class Experiment:
    """An experiment: workloads on the simulated machine under policies.

    >>> e = Experiment(name="e", period_ms=100, periods=5,
    ...                groups=[Group("a", Workload("zipf", footprint_mib=64), fast_ratio=0.5)])
    >>> e.keys["groups"][0]["policy"]
    'amp'
    >>> Experiment(name="e", period_ms=0, periods=5, groups=[])
    Traceback (most recent call last):
    ...
    terrace.Refused: period_ms = 0: expected 1 to 3600000
    """

    def __init__(
        self,
        name: str,
        *,
        period_ms: int,
        periods: int,
        groups: Sequence[Group | Mapping[str, Any]],
        machine: Machine | Mapping[str, Any] | None = None,
        policies: Mapping[str, Mapping[str, Any]] | None = None,
        seed: int = 1,
        description: str = "",
        folder: PathLike = ".",
    ) -> None:
        keys = _Keys(
            name=name,
            description=description,
            seed=seed,
            period_ms=period_ms,
            periods=periods,
            machine=machine,
            groups=list(groups),
            policies=policies,
        ).keys_of_file()
        self._inner = _terrace.Experiment.of_json(json.dumps(keys), os.fspath(folder))

    @classmethod
    def _of(cls, inner: _terrace.Experiment) -> Experiment:
        made = cls.__new__(cls)
        made._inner = inner
        return made

    @classmethod
    def read(cls, path: PathLike) -> Experiment:
        """Reads an experiment file."""
        return cls._of(_terrace.Experiment.read(os.fspath(path)))

    @classmethod
    def parse(cls, text: str, folder: PathLike = ".") -> Experiment:
        """An experiment of a file's text, whose paths are relative to `folder`."""
        return cls._of(_terrace.Experiment.parse(text, os.fspath(folder)))

    @property
    def keys(self) -> dict[str, Any]:
        """Every key, as an experiment file has them."""
        return json.loads(self._inner.json())

    def to_toml(self) -> str:
        """The text of its file."""
        return self._inner.to_toml()

    def with_keys(self, **changes: Any) -> Experiment:
        """The same experiment with other values of some keys.

        Keys of sections are given with dots, those of groups are set for every group:
        `with_keys(**{"machine.slow_latency_ns": 400, "fast_ratio": 0.3})`.

        >>> e = Experiment(name="e", period_ms=100, periods=5,
        ...                groups=[Group("a", Workload("zipf", footprint_mib=64), fast="32M")])
        >>> e.with_keys(periods=9, fast_ratio=0.25).keys["groups"][0]["fast_ratio"]
        0.25
        """
        grid = {
            "name": "one",
            "experiment": self.keys,
            "axes": [
                {
                    "name": f"key-{number}",
                    "variants": [{"name": "set", "set": {key: _plain(value)}}],
                }
                for number, (key, value) in enumerate(changes.items())
            ],
        }
        text = _terrace.Grid.of_json(json.dumps(grid), self._inner.folder).describe(0)["experiment"]
        return self.parse(text, self._inner.folder)

    def run(
        self,
        policies: PolicyLike | Iterable[PolicyLike] | None = None,
        *,
        out: PathLike | None = None,
        jobs: int = 1,
        progress: Callable[[str, int, int], object] | None = None,
    ) -> Results:
        """Runs it as written, or once under each of these policies.

        A policy is a name of `terrace.policies()`, a class that is a `Policy`, or an object of
        one, of which every group and run gets a copy of its own. Results go to the folder `out`
        (tables and recordings as `terrace run` writes them), or are deleted with their last
        user. `progress(run, number, of)` is called for each run as it begins.
        """
        names: list[str] | None = None
        own: list[tuple[str, Callable[[int], Policy]]] = []
        if policies is not None:
            if isinstance(policies, str) or not isinstance(policies, Iterable):
                policies = [policies]
            names = []
            for policy in policies:
                if isinstance(policy, str):
                    names.append(policy)
                    continue
                name, make = _own(policy)
                names.append(name)
                own.append((name, make))
        where = None if out is None else os.fspath(out)
        return self._inner.run(where, names, own, jobs, progress)

    def profile(self, out: PathLike, interval_references: int = 100_000) -> dict[str, float]:
        """Makes a profile of its only group's program, at trace fidelity, in the file `out`."""
        done = self._inner.profile(os.fspath(out), interval_references)
        return dict(
            zip(("intervals", "references", "all_fast_ms", "all_slow_ms"), done, strict=True)
        )

    def __repr__(self) -> str:
        keys = self.keys
        return f"<terrace.Experiment {keys['name']!r}: {len(keys['groups'])} groups>"

    def __reduce__(self) -> Any:
        return Experiment.parse, (self.to_toml(), os.fspath(self._inner.folder))


def _own(policy: Any) -> tuple[str, Callable[[int], Policy]]:
    kind = policy if isinstance(policy, type) else type(policy)
    if not callable(getattr(policy, "decide", None)):
        raise Refused(
            f"a policy of {kind.__name__}: expected a name of terrace.policies(), or a class or "
            "object with a method decide(scan, budget)"
        )
    name = getattr(policy, "name", None)
    name = name if isinstance(name, str) else kind.__name__

    def make(seed: int) -> Policy:
        made = policy() if isinstance(policy, type) else copy.deepcopy(policy)
        start = getattr(made, "start", None)
        if callable(start):
            start(seed)
        return made

    return name, make
