"""The compiled half of the package."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ._plans import Recommended

PathLike = str | os.PathLike[str]

__version__: str
"""The version: MAJOR.MINOR.PATCH."""
__build__: str
"""The version with the commit that it was built from, as far as it is known."""

class TerraceError(RuntimeError):
    """A failure while it ran."""

class Refused(ValueError):
    """Input that cannot be used: what was got, what was expected, what to do. Nothing was changed."""

class Column:
    """The object that owns an array's memory: its `base`."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Table:
    """A table of results. `t["column"]` is a column as a NumPy array, `t[["a", "b"]]` some columns,
    `t[0]` a row, `t[5:9]` and `t[mask]` some rows. pyarrow.table(t) and polars.DataFrame(t) read it
    without copying, pandas.DataFrame(t) too reads it."""

    @staticmethod
    def read(path: PathLike) -> Table:
        """Reads the Parquet file of a table, here or in an object store (`s3://BUCKET/PATH`)."""
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
    @property
    def column_names(self) -> list[str]:
        """Names of the columns, as pyarrow calls them."""
    @property
    def num_rows(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns it has."""
    def __len__(self) -> int: ...
    def __contains__(self, name: str) -> bool:
        """Whether it has a column of this name."""
    @overload
    def __getitem__(self, key: str) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice | list[str] | npt.NDArray[Any]) -> Table: ...
    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Its rows, each as a dict."""
    def head(self, rows: int = 5) -> Table:
        """The first rows."""
    def _repr_html_(self) -> str: ...
    def to_pyarrow(self) -> Any:
        """As a pyarrow.Table."""
    def to_polars(self) -> Any:
        """As a polars.DataFrame."""
    def to_pandas(self) -> Any:
        """As a pandas.DataFrame, by way of pyarrow."""

class Scan:
    """The scan of a group's pages in one period. Arrays have an entry for each page, in the
    order of addresses, and cannot be written to."""

    @property
    def period(self) -> int: ...
    @property
    def lost_periods(self) -> int: ...
    @property
    def pages(self) -> int: ...
    def __len__(self) -> int: ...
    @property
    def page_size_bytes(self) -> int: ...
    @property
    def accessed(self) -> npt.NDArray[np.bool_]: ...
    @property
    def fast(self) -> npt.NDArray[np.bool_]: ...
    @property
    def active(self) -> npt.NDArray[np.bool_] | None: ...
    @property
    def accessed_words(self) -> npt.NDArray[np.uint64]: ...
    @property
    def fast_words(self) -> npt.NDArray[np.uint64]: ...
    @property
    def samples(self) -> npt.NDArray[np.uint16] | None: ...
    @property
    def addresses(self) -> npt.NDArray[np.uint64]: ...
    @property
    def counters(self) -> dict[str, Any] | None: ...
    @property
    def pages_changed(self) -> bool: ...
    def remap(self, array: npt.NDArray[Any], fresh: object = None) -> npt.NDArray[Any]: ...
    @property
    def measures(self) -> dict[str, Any] | None: ...
    def carry(self, array: npt.NDArray[Any], fresh: object = None) -> npt.NDArray[Any]: ...

class Budget:
    """The bounds of a plan."""

    def __new__(cls, fast_pages: int, moved_pages: int | None = None) -> Budget: ...
    @property
    def fast_pages(self) -> int: ...
    @property
    def moved_pages(self) -> int | None: ...

class Moves:
    """Pages to move, as `select` chose them; what `decide` may return."""

    @property
    def promote(self) -> npt.NDArray[np.uint64]: ...
    @property
    def demote(self) -> npt.NDArray[np.uint64]: ...

class Experiment:
    @staticmethod
    def read(path: PathLike) -> Experiment: ...
    @staticmethod
    def parse(text: str, folder: PathLike = ".") -> Experiment: ...
    @staticmethod
    def of_json(text: str, folder: PathLike = ".") -> Experiment: ...
    def json(self) -> str: ...
    def to_toml(self) -> str: ...
    @property
    def folder(self) -> os.PathLike[str]: ...
    def run(
        self,
        out: PathLike | None = None,
        policies: list[str] | None = None,
        own: list[tuple[str, Callable[[int], Any]]] = ...,
        jobs: int = 1,
        progress: Callable[[str, int, int], object] | None = None,
    ) -> Results: ...
    def profile(
        self, out: PathLike, interval_references: int = 100_000
    ) -> tuple[int, int, float, float]: ...
    def windows(
        self, out: PathLike, windows: int, length: int, lead: int, lines: int, seed: int
    ) -> Windows: ...
    def hash(self) -> str: ...

class Windows:
    @staticmethod
    def read(path: PathLike, experiment: Experiment | None = None) -> Windows: ...
    @property
    def workload(self) -> str: ...
    @property
    def references(self) -> int: ...
    @property
    def window_references(self) -> int: ...
    def __len__(self) -> int: ...
    def estimate(
        self, fast: list[float], error: float | None = None, jobs: int = 1
    ) -> tuple[list[tuple[float | None, float, float, float, float, float]], float, int]: ...

class Results:
    """The results of an experiment: tables, and recordings of scans and decisions. `results["amp"]`
    has those of one policy."""

    @staticmethod
    def read(path: PathLike) -> Results:
        """The results in a folder; of one in an object store (`s3://BUCKET/PATH`) the tables."""
    @property
    def path(self) -> os.PathLike[str]: ...
    @property
    def policies(self) -> list[str]:
        """The policies that were run, in the order of their runs."""
    @property
    def runs(self) -> Table:
        """A row for each run and group."""
    @property
    def periods(self) -> Table:
        """A row for each period of each group in each run."""
    @property
    def heat(self) -> Table:
        """Accesses by address and period, binned."""
    @property
    def hardware(self) -> Table | None:
        """Hardware costs of periods; None at interval fidelity, which has no references."""
    @property
    def recordings(self) -> list[os.PathLike[str]]: ...
    def report(self, path: PathLike | None = None) -> os.PathLike[str]:
        """Writes the report, one HTML file without scripts, into the folder or to `path`."""
    def __getitem__(self, policy: str) -> Run: ...
    def __len__(self) -> int: ...
    def __contains__(self, policy: str) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def _repr_html_(self) -> str: ...

class Run:
    """What was run under one policy. Every column of `runs` is an attribute where there is one group;
    of several, `run["group"]` has one."""

    @property
    def policy(self) -> str: ...
    @property
    def groups(self) -> list[str]: ...
    @property
    def runs(self) -> Table: ...
    @property
    def periods(self) -> Table: ...
    @property
    def heat(self) -> Table: ...
    @property
    def hardware(self) -> Table | None: ...
    def __getitem__(self, group: str) -> Run: ...
    def _repr_html_(self) -> str: ...

    # The columns of `runs`; those that a machine does not count are None.
    run: str
    experiment: str
    machine: str
    kernel: str | None
    tracker: str | None
    mover: str | None
    parameters: str
    group: str
    workload: str
    page_size_bytes: int
    period_ms: int
    seed: int
    fast_ratio: float
    lost_periods: int
    pages_max: int
    hit_ratio: float
    accessed_ratio: float
    stability: float
    promoted_pages: int
    demoted_pages: int
    exchanged_pairs: int
    migration_operations: int
    failed_busy: int
    failed_absent: int
    failed_no_room: int
    failed_not_allowed: int
    failed_denied: int
    failed_process_gone: int
    failed_stayed_put: int
    failed_out_of_time: int
    failed_unsupported: int
    applied_main: str
    applied_main_share: float
    tracker_cpu_ms: float | None
    daemon_cpu_ms: float | None
    operations: int | None
    operations_per_s: float | None
    latency_p50_us: float | None
    latency_p99_us: float | None
    duration_ms: float | None
    duration_error_ms: float | None
    sampled_ratio: float | None
    slowdown: float | None
    slowdown_of: str | None
    slowdown_instructions: int | None
    reference_hit_ratio: float | None
    program_hit_ratio: float | None
    kernel_hit_ratio: float | None
    measured_periods: int | None
    access_hit_ratio: float | None
    references: int | None
    walk_ms: float | None
    walk_stall_ms: float | None
    fast_stall_ms: float | None
    slow_stall_ms: float | None
    fast_loaded_ns: float | None
    slow_loaded_ns: float | None
    kernel_ms: float | None
    migration_ms: float | None
    migrated_bytes: int | None
    shootdowns: int | None
    table_moves: int | None
    table_already_there: int | None
    table_within_tier: int | None
    table_maps_fast: int | None
    table_lock_contended: int | None
    table_no_room: int | None
    projected_duration_ms: float | None
    projected_slowdown: float | None
    projection_error: float | None
    killed: bool | None
    checksum_ok: bool | None
    clock: str | None
    emulated: bool
    notes: str | None
    period_us: int | None

class Recording:
    """A recording: accessed pages by period (.trec), references (.tref), or a profile (.tprof)."""

    def __new__(cls, path: PathLike) -> Recording: ...
    @property
    def path(self) -> os.PathLike[str]: ...
    @property
    def kind(self) -> str: ...
    @property
    def info(self) -> dict[str, Any]: ...
    def scans(self, group: str | None = None) -> Scans: ...

class Scans(Iterator[Scan]):
    """The scans of a group in a recording."""

    def __next__(self) -> Scan: ...

class Grid:
    @staticmethod
    def read(path: PathLike) -> Grid: ...
    @staticmethod
    def parse(text: str, folder: PathLike = ".") -> Grid: ...
    @staticmethod
    def of_json(text: str, folder: PathLike = ".") -> Grid: ...
    @property
    def name(self) -> str: ...
    @property
    def axes(self) -> list[tuple[str, list[str]]]: ...
    def __len__(self) -> int: ...
    def describe(self, index: int) -> dict[str, Any]: ...
    @staticmethod
    def prepare(out: PathLike) -> None: ...
    @staticmethod
    def is_done(out: PathLike, hash: str) -> bool: ...
    @staticmethod
    def take_in(out: PathLike, hash: str, files: list[tuple[str, bytes]]) -> None: ...
    def note(self, out: PathLike, index: int, attempts: int, error: str) -> None: ...
    def work(
        self,
        out: PathLike,
        jobs: int,
        retries: int,
        reported: Callable[[int, str, str | None], None] | None = None,
    ) -> int: ...
    def merge(self, out: PathLike) -> tuple[int, int, int, str | None]: ...

class Conversation:
    def hello(self) -> dict[str, Any]: ...
    def take_no_privileges(self) -> None: ...
    def ready(self) -> None: ...
    def period(self) -> tuple[Scan, Budget] | None: ...
    def answer(self, answer: object) -> None: ...
    def refuse(self, text: str) -> None: ...
    def fail(self, text: str) -> None: ...

class Plan:
    """How much fast memory programs need, as curves, an answer and a configuration."""

    @property
    def words(self) -> list[str]: ...
    @property
    def recommended(self) -> list[Recommended]:
        """The recommendation for each program."""
    @property
    def warnings(self) -> list[str]: ...
    @property
    def terraced_toml(self) -> str: ...
    def json(self) -> str: ...
    @property
    def points(self) -> Table: ...
    @property
    def answers(self) -> Table: ...
    @property
    def front(self) -> Table: ...
    @property
    def sensitivity(self) -> Table: ...
    def _repr_html_(self) -> str: ...

class Fleet:
    @staticmethod
    def read(path: PathLike) -> Fleet: ...
    @staticmethod
    def parse(text: str, folder: PathLike) -> Fleet: ...
    @property
    def text(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    def hosts(self) -> list[tuple[int, str, str]]: ...
    def read_hosts(self, hosts: list[tuple[int, str, str]]) -> list[bytes]: ...
    def given_up(self, host: tuple[int, str, str], reason: str) -> bytes: ...
    def answer(
        self, jobs: int, reported: Callable[[int, int], object] | None = None
    ) -> FleetAnswer: ...
    def join(self, read: list[bytes], jobs: int) -> FleetAnswer: ...

class FleetAnswer:
    """How much fast memory the hosts of a fleet need."""

    @property
    def words(self) -> list[str]: ...
    @property
    def remarks(self) -> list[str]:
        """What the answer rests on."""

    @property
    def rollout(self) -> list[str]:
        """With which hosts to begin, what to watch, when to stop."""

    @property
    def classes(self) -> Table: ...
    @property
    def services(self) -> Table: ...
    @property
    def hosts(self) -> Table: ...
    @property
    def pairs(self) -> Table: ...
    @property
    def left_out(self) -> Table:
        """Files and folders that could not be used, with the reason."""

    def json(self) -> str: ...
    def write(self, out: PathLike, command: str = "") -> None:
        """Writes the tables, report.html and fleet.json."""

    def _repr_html_(self) -> str: ...

def select(
    scan: Scan, budget: Budget, keys: npt.NDArray[np.uint8], resident_bonus: int = 1
) -> Moves:
    """Moves that put the pages with the smallest keys (uint8, 0 to 127) into fast memory, within the
    budget, by counting keys instead of sorting pages."""

def run_cell(experiment: str, folder: PathLike, hash: str) -> list[tuple[str, bytes]]: ...
def plan(
    recordings: list[PathLike],
    slowdown: float,
    *,
    policies: list[str] | None = None,
    machines: list[str] = ...,
    slow_latencies_ns: list[float] = ...,
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
    """Finds how much fast memory programs need to stay within a slowdown (1.05 for 5 %)."""

def hint(got: str, known: list[str]) -> str:
    """The end of an error about an unknown name: `; did you mean 'amp'?`, or nothing."""

def policies() -> list[dict[str, Any]]: ...
def workloads() -> list[dict[str, Any]]: ...
def machines() -> list[dict[str, Any]]: ...
