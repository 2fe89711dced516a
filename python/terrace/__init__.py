"""Terrace: experiments, policies, plans and sweeps of two-tier memory, from Python.

>>> import terrace
>>> e = terrace.Experiment(
...     name="first", period_ms=100, periods=20,
...     groups=[terrace.Group("a", terrace.Workload("zipf", footprint_mib=64), fast_ratio=0.5)])
>>> results = e.run(policies=["lru", "lfu"])
>>> results.runs.num_rows
2
>>> bool(results["lru"].hit_ratio > 0.5)
True
>>> results.periods["hit_ratio"].shape
(40,)

`docs/python.md` of the project describes the package.
"""

from ._errors import UnknownArgument, UnknownName
from ._fleets import fleet
from ._plans import Recommended, plan
from ._sweeps import Progress, Sweep, sweep
from ._terrace import (
    Budget,
    Column,
    FleetAnswer,
    Moves,
    Plan,
    Recording,
    Refused,
    Results,
    Run,
    Scan,
    Scans,
    Table,
    TerraceError,
    __build__,
    __version__,
    machines,
    policies,
    select,
    workloads,
)
from ._windows import Estimate, Windows
from .experiment import Experiment, Group, Machine, Policy, Workload

__all__ = [
    "Budget",
    "Column",
    "Estimate",
    "Experiment",
    "FleetAnswer",
    "Group",
    "Machine",
    "Moves",
    "Plan",
    "Policy",
    "Progress",
    "Recommended",
    "Recording",
    "Refused",
    "Results",
    "Run",
    "Scan",
    "Scans",
    "Sweep",
    "Table",
    "TerraceError",
    "UnknownArgument",
    "UnknownName",
    "Windows",
    "Workload",
    "__build__",
    "__version__",
    "fleet",
    "machines",
    "plan",
    "policies",
    "select",
    "sweep",
    "workloads",
]
