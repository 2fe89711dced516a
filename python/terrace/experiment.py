"""Experiments, machines, groups and workloads as objects.

They hold the keys of an experiment file and nothing more; Terrace checks them when an `Experiment`
is made, and refuses unusable keys in one line.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, Protocol, runtime_checkable

from . import _terrace
from ._errors import UnknownArgument, check_name, named_arguments
from ._names import MachineName, PolicyName, WorkloadKind
from ._terrace import Budget, Moves, Refused, Results, Scan, hint
from ._windows import Windows

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

    def __getattr__(self, name: str) -> Any:
        keys = self.__dict__.get("_keys", {})
        if name in keys:
            return keys[name]
        raise AttributeError(
            f"{type(self).__name__} was given no '{name}'; it has {', '.join(keys) or 'nothing'}"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._keys]


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


Size = str | int


def _json(keys: Any) -> str:
    try:
        return json.dumps(keys)
    except (TypeError, ValueError) as error:
        raise UnknownArgument(
            f"{error}: expected numbers, texts, lists and dicts as values of keys"
        ) from None


class Machine(_Keys):
    """The simulated machine's two tiers, by the keys of the section `[machine]`.

    Sizes are texts such as "512M", or bytes. Without `fast`, the fast tier is what the groups may
    use; without `slow`, the slow tier has no bound. `fidelity` "trace" plays every reference on
    `hardware` under the operating system `os`, in the way of `simulation`; `Machine.preset` has
    hardware. `sample_reads` passes one read in so many to policies
    ("auto" and without it: none of a simulated machine). The keys of live and virtual
    machines (`kernel`, `qemu`, `mechanisms`, `clock`, `window_instructions` and its companions, `full`,
    `hint_faults`, nodes) are there for files that are written.

    >>> Machine(fast="1G", slow_latency_ns=300)
    Machine(fast='1G', slow_latency_ns=300)
    >>> Machine(slow_latency=300)
    Traceback (most recent call last):
    ...
    terrace.UnknownArgument: Machine has no argument 'slow_latency'; expected one of \
fast, slow, fast_latency_ns, slow_latency_ns, cpus, fidelity, sample_reads, hardware, os, \
simulation, fast_nodes, slow_nodes, kernel, qemu, mechanisms, full, clock, window_instructions, \
window_warm_up_instructions, window_interval_instructions, hint_faults; did you mean 'slow_latency_ns'?
    """

    @named_arguments
    def __init__(
        self,
        *,
        fast: Size | None = None,
        slow: Size | None = None,
        fast_latency_ns: int | None = None,
        slow_latency_ns: int | None = None,
        cpus: int | None = None,
        fidelity: Literal["interval", "trace"] | None = None,
        sample_reads: int | Literal["auto"] | None = None,
        hardware: Mapping[str, Any] | None = None,
        os: Mapping[str, Any] | None = None,
        simulation: Mapping[str, Any] | None = None,
        fast_nodes: Sequence[int] | None = None,
        slow_nodes: Sequence[int] | None = None,
        kernel: PathLike | None = None,
        qemu: str | None = None,
        mechanisms: Literal["auto", "stock", "terrace"] | None = None,
        full: bool | None = None,
        clock: Literal["host", "instructions", "memory"] | None = None,
        window_instructions: int | None = None,
        window_warm_up_instructions: int | None = None,
        window_interval_instructions: int | None = None,
        hint_faults: bool | None = None,
    ) -> None:
        super().__init__(
            fast=fast,
            slow=slow,
            fast_latency_ns=fast_latency_ns,
            slow_latency_ns=slow_latency_ns,
            cpus=cpus,
            fidelity=fidelity,
            sample_reads=sample_reads,
            hardware=hardware,
            os=os,
            simulation=simulation,
            fast_nodes=fast_nodes,
            slow_nodes=slow_nodes,
            kernel=kernel,
            qemu=qemu,
            mechanisms=mechanisms,
            full=full,
            clock=clock,
            window_instructions=window_instructions,
            window_warm_up_instructions=window_warm_up_instructions,
            window_interval_instructions=window_interval_instructions,
            hint_faults=hint_faults,
        )

    @classmethod
    def preset(cls, name: MachineName, **keys: Any) -> Machine:
        """A machine of `terrace.machines()`, at trace fidelity.

        >>> Machine.preset("server-ddr5-cxl", slow="4G").keys_of_file()["fidelity"]
        'trace'
        """
        check_name("machine", name, [machine["name"] for machine in _terrace.machines()])
        hardware = {"preset": name, **keys.pop("hardware", {})}
        return cls(fidelity="trace", hardware=hardware, **keys)


class Workload(_Keys):
    """What a group runs: a kind of `terrace.workloads()` and its parameters.

    >>> Workload("zipf", footprint_mib=64)
    Workload(kind='zipf', footprint_mib=64)
    """

    def __init__(self, kind: WorkloadKind, **parameters: Any) -> None:
        kinds = {k["name"]: [p["name"] for p in k["parameters"]] for k in _terrace.workloads()}
        check_name("kind of workload", kind, kinds)
        for name in parameters:
            if name not in kinds[kind]:
                raise UnknownArgument(
                    f"workload '{kind}' has no parameter '{name}'; expected one of "
                    f"{', '.join(kinds[kind])}{hint(name, kinds[kind])}"
                )
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
    """A workload under a policy with its share of fast memory: `fast_ratio` of its footprint, or the
    size `fast`.

    `tables` and `sparse` are about its page tables, `start_ms`, `stop_ms` and
    `stop_after_start_up_of` (another group) about when it runs; they are for trace fidelity.

    >>> Group("a", Workload("zipf", footprint_mib=64), fast_ratio=0.4).fast_ratio
    0.4
    """

    @named_arguments
    def __init__(
        self,
        name: str,
        workload: Workload | Mapping[str, Any],
        *,
        policy: PolicyName | None = None,
        fast_ratio: float | None = None,
        fast: Size | None = None,
        page_size: Literal["2M", "4K", "auto"] | None = None,
        moved_pages_per_period: int | None = None,
        cpus: Sequence[int] | None = None,
        tables: Mapping[str, Any] | None = None,
        sparse: Mapping[str, Any] | None = None,
        start_ms: int | None = None,
        stop_ms: int | None = None,
        stop_after_start_up_of: str | None = None,
    ) -> None:
        if not isinstance(workload, (Workload, Mapping)):
            raise UnknownArgument(
                f"workload = {workload!r}: expected a terrace.Workload, as in "
                'Workload("zipf", footprint_mib=64)'
            )
        if fast_ratio is not None and fast is not None:
            raise Refused(f"fast_ratio = {fast_ratio} and fast = {fast!r}: expected one of them")
        if policy is not None and not isinstance(policy, str):
            raise UnknownArgument(
                f"policy = {policy!r}: expected a name; policies in Python are given to "
                "Experiment.run"
            )
        super().__init__(
            name=name,
            workload=workload,
            policy=policy,
            fast_ratio=fast_ratio,
            fast=fast,
            page_size=page_size,
            moved_pages_per_period=moved_pages_per_period,
            cpus=cpus,
            tables=tables,
            sparse=sparse,
            start_ms=start_ms,
            stop_ms=stop_ms,
            stop_after_start_up_of=stop_after_start_up_of,
        )


PolicyLike = PolicyName | Policy | Callable[[], Policy]


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

    @named_arguments
    def __init__(
        self,
        name: str,
        *,
        groups: Group | Sequence[Group | Mapping[str, Any]],
        periods: int,
        period_ms: int | None = None,
        period_us: int | None = None,
        warm_up_periods: int | None = None,
        slowdown: bool | None = None,
        machine: Machine | Mapping[str, Any] | None = None,
        policies: Mapping[str, Mapping[str, Any]] | None = None,
        seed: int = 1,
        description: str = "",
        folder: PathLike = ".",
    ) -> None:
        several = [groups] if isinstance(groups, (Group, Mapping)) else groups
        if not isinstance(several, Iterable) or isinstance(several, str):
            raise UnknownArgument(f"groups = {groups!r}: expected a list of terrace.Group")
        several = list(several)
        for group in several:
            if not isinstance(group, (Group, Mapping)):
                raise UnknownArgument(f"groups has {group!r}: expected a terrace.Group")
        if machine is not None and not isinstance(machine, (Machine, Mapping)):
            raise UnknownArgument(
                f"machine = {machine!r}: expected a terrace.Machine, as in "
                'Machine(fast="512M"), or Machine.preset(NAME)'
            )
        keys = _Keys(
            name=name,
            description=description,
            seed=seed,
            period_ms=period_ms,
            period_us=period_us,
            periods=periods,
            warm_up_periods=warm_up_periods,
            slowdown=slowdown,
            machine=machine,
            groups=several,
            policies=policies,
        ).keys_of_file()
        self._inner = _terrace.Experiment.of_json(_json(keys), os.fspath(folder))

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
        `with_keys(**{"machine.slow_latency_ns": 400, "fast_ratio": 0.3})`. A group's keys and those
        of the experiment can be given as such.

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
        text = _terrace.Grid.of_json(_json(grid), self._inner.folder).describe(0)["experiment"]
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
                    check_name("policy", policy, [p["name"] for p in _terrace.policies()])
                    names.append(policy)
                    continue
                name, make = _own(policy)
                names.append(name)
                own.append((name, make))
        if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
            raise UnknownArgument(f"jobs = {jobs!r}: expected a whole number, 1 or more")
        where = None if out is None else os.fspath(out)
        return self._inner.run(where, names, own, jobs, progress)

    def profile(self, out: PathLike, interval_references: int = 100_000) -> dict[str, float]:
        """Makes a profile of its only group's program, at trace fidelity, in the file `out`."""
        done = self._inner.profile(os.fspath(out), interval_references)
        return dict(
            zip(("intervals", "references", "all_fast_ms", "all_slow_ms"), done, strict=True)
        )

    @named_arguments
    def windows(
        self,
        out: PathLike,
        windows: int = 200,
        *,
        length: int = 20_000,
        lead: int = 2_000,
        lines: int = 1 << 20,
        seed: int = 1,
    ) -> Windows:
        """Takes windows of its only group's program: short parts at random places, in the file `out`.

        `length` is the loads and stores of each, `lead` those before it that are simulated and not
        measured, `lines` how many lines of 64 bytes before it are kept: somewhat more than the
        caches hold of the machines on which they will be simulated.
        """
        numbers = {
            "windows": windows,
            "length": length,
            "lead": lead,
            "lines": lines,
            "seed": seed,
        }
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
                raise UnknownArgument(f"{name} = {value!r}: expected a whole number, 0 or more")
        return Windows._of(self._inner.windows(os.fspath(out), **numbers))

    def __repr__(self) -> str:
        keys = self.keys
        length = f"{keys['period_us']} us" if "period_us" in keys else f"{keys['period_ms']} ms"
        lines = [f"<terrace.Experiment {keys['name']!r}: {keys['periods']} periods of {length}>"]
        for group in keys["groups"]:
            share = f"fast_ratio {group['fast_ratio']}" if "fast_ratio" in group else ""
            share = share or f"fast {group['fast']}"
            workload = ", ".join(f"{name} {value}" for name, value in group["workload"].items())
            lines.append(f"group {group['name']!r}: {workload}; {share}, policy {group['policy']}")
        return "\n".join(lines)

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
