"""Terrace: experiments, policies, plans and sweeps of two-tier memory, from Python.

>>> import terrace
>>> e = terrace.Experiment(
...     name="first", period_ms=100, periods=20,
...     groups=[terrace.Group("a", terrace.Workload("zipf", footprint_mib=64), fast_ratio=0.5)])
>>> results = e.run(policies=["lru", "lfu"])
>>> results.runs.num_rows
2
>>> "hit_ratio" in results.periods.column_names
True

`docs/python.md` of the project describes the package.
"""

from ._sweeps import Progress, Sweep, sweep
from ._terrace import (
    Budget,
    Column,
    Moves,
    Plan,
    Recording,
    Refused,
    Results,
    Scan,
    Scans,
    Table,
    TerraceError,
    __build__,
    __version__,
    machines,
    plan,
    policies,
    select,
    workloads,
)
from .experiment import Experiment, Group, Machine, Policy, Workload

__all__ = [
    "Budget",
    "Column",
    "Experiment",
    "Group",
    "Machine",
    "Moves",
    "Plan",
    "Policy",
    "Progress",
    "Recording",
    "Refused",
    "Results",
    "Scan",
    "Scans",
    "Sweep",
    "Table",
    "TerraceError",
    "Workload",
    "__build__",
    "__version__",
    "machines",
    "plan",
    "policies",
    "select",
    "sweep",
    "workloads",
]
