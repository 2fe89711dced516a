"""Experiments as objects, and their results as Arrow tables."""

import copy
import pickle
import subprocess
import threading

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import REPOSITORY

import terrace


def test_an_experiment_of_objects_is_that_of_its_file(small, tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(small.to_toml())
    again = terrace.Experiment.read(file)
    assert again.keys == small.keys
    assert pickle.loads(pickle.dumps(small)).keys == copy.deepcopy(small).keys == small.keys
    example = terrace.Experiment.read(REPOSITORY / "examples/amp/lru-favor.toml")
    made = terrace.Experiment(
        name="lru-favor",
        period_ms=1000,
        periods=200,
        groups=[
            terrace.Group(
                "lru-favor",
                terrace.Workload("lru-favor", footprint_mib=1024),
                policy="amp",
                fast_ratio=0.5,
            )
        ],
    )
    assert made.keys == example.keys


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"period_ms": 0}, "period_ms = 0: expected 1 to 3600000"),
        ({"machine": {"cpuz": 3}}, "unknown key 'cpuz'"),
        ({"machine": terrace.Machine(fast="1K")}, "machine.fast: expected at least one huge page"),
        ({"groups": []}, "no groups: expected at least one terrace.Group"),
        ({"policies": {"lru": {"bonus": 1}}}, "unknown key 'bonus'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(small, keys, message):
    given = {**small.keys, **keys}
    given = {k: given[k] for k in ("name", "period_ms", "periods", "groups", "machine", "policies")}
    with pytest.raises(terrace.Refused) as error:
        terrace.Experiment(**given)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert isinstance(error.value, ValueError)


def test_unknown_machines_and_missing_files_are_refused(tmp_path):
    with pytest.raises(terrace.Refused, match="expected one of .*server-ddr5-cxl"):
        terrace.Machine.preset("toaster")
    with pytest.raises(terrace.Refused, match="expected an experiment file"):
        terrace.Experiment.read(tmp_path / "none.toml")
    with pytest.raises(terrace.Refused, match="expected a results directory"):
        terrace.Results.read(tmp_path)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + bytes(40) + b"PAR1")
    with pytest.raises(terrace.Refused, match="run the experiment again"):
        terrace.Table.read(tmp_path / "bad.parquet")


def test_tables_are_those_that_the_command_writes(small, tmp_path, command):
    (tmp_path / "small.toml").write_text(small.to_toml())
    subprocess.run(
        [
            command,
            "compare",
            tmp_path / "small.toml",
            "--policies",
            "lru,amp",
            "--out",
            tmp_path / "command",
        ],
        check=True,
        capture_output=True,
    )
    small.run(["lru", "amp"], out=tmp_path / "python", jobs=2)
    for name in ("runs", "periods", "heat"):
        one, other = (
            (tmp_path / d / f"{name}.parquet").read_bytes() for d in ("command", "python")
        )
        assert one == other, name
    assert len(terrace.Results.read(tmp_path / "python").recordings) == 2


def test_arrow_tables_are_read_without_a_copy(small, tmp_path):
    results = small.run(["lru", "lfu"], out=tmp_path)
    table = results.periods
    one, two = pa.table(table), pa.table(table)
    assert one.equals(pq.read_table(tmp_path / "periods.parquet"))
    addresses = lambda t: [b.address for b in t["hit_ratio"].chunk(0).buffers() if b is not None]
    assert addresses(one) == addresses(two), "both look at the same memory"
    frame = pl.DataFrame(table)
    assert frame["hit_ratio"].to_list() == one["hit_ratio"].to_pylist()
    # polars copies nothing either: its column begins where pyarrow's does.
    arrow = frame["hit_ratio"].to_arrow()
    assert arrow.buffers()[-1].address == addresses(one)[-1]
    assert table.to_polars().equals(frame)
    panda = table.to_pandas()
    assert isinstance(panda, pd.DataFrame)
    assert panda["hit_ratio"].tolist() == one["hit_ratio"].to_pylist()
    assert len(table) == table.num_rows == one.num_rows == 80
    assert table.column_names == one.column_names
    assert pa.schema(table) == one.schema


def test_a_table_outlives_its_results(small):
    table = small.run("lru").periods
    assert pa.table(table).num_rows == 40


def test_other_threads_go_on_while_an_experiment_runs(small, tmp_path):
    longer = small.with_keys(periods=2000)
    done = threading.Event()

    def work():
        longer.run("lru", out=tmp_path)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    seen = False
    while not done.is_set():
        # The recording is under its other name only while the run is under way.
        seen = seen or bool(list((tmp_path / "recordings").glob("*.partial*")))
    thread.join()
    assert seen


def test_progress_is_reported_and_may_stop_the_run(small):
    reported = []
    small.run(["lru", "lfu"], progress=lambda *what: reported.append(what))
    assert reported == [("lru", 1, 2), ("lfu", 2, 2)]

    def stop(*_):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        small.run("lru", progress=stop)


def test_a_report_is_written_where_the_results_are_or_where_one_says(small, tmp_path):
    results = small.run(["lru", "lfu"], out=tmp_path / "r")
    path = results.report()
    assert path == tmp_path / "r/report.html"
    page = path.read_text()
    assert "<svg" in page and "lfu" in page and "Results.read" in page
    elsewhere = results.report(tmp_path / "elsewhere.html")
    assert elsewhere.read_text()[:15] == page[:15] == "<!doctype html>"
    with pytest.raises(terrace.TerraceError, match="nowhere"):
        results.report(tmp_path / "nowhere/report.html")


def test_recordings_give_their_scans(small, tmp_path):
    results = small.run("lru", out=tmp_path)
    [path] = results.recordings
    recording = terrace.Recording(path)
    assert recording.kind == "periods"
    assert recording.info["groups"][0]["periods"] == 40
    scans = list(recording.scans())
    rows = pa.table(results.periods)
    assert [int(s.accessed.sum()) for s in scans] == rows["accessed_pages"].to_pylist()
    assert [int(s.fast.sum()) for s in scans] == rows["fast_pages"].to_pylist()
    changed = [now.pages != before.pages for now, before in zip(scans[1:], scans)]
    assert scans[0].pages_changed and [s.pages_changed for s in scans[1:]] == changed
    assert True in changed and False in changed
    with pytest.raises(terrace.Refused, match="no group"):
        recording.scans("b")
    with pytest.raises(terrace.Refused):
        terrace.Recording(tmp_path / "runs.parquet")
    # The recording is a workload: the same pages again, under another policy.
    again = small.with_keys(workload={"kind": "recording", "path": str(path)}).run("lfu")
    accessed = pa.table(again.periods)["accessed_pages"]
    assert accessed.to_pylist() == rows["accessed_pages"].to_pylist()


def test_a_plan_is_words_tables_and_a_configuration(small, tmp_path):
    [path] = small.run("lru", out=tmp_path).recordings
    plan = terrace.plan([path], 1.10, policies=["lru", "lfu"], price_fast=4.0, price_slow=1.0)
    [(program, policy, share, size, slowdown, low, high)] = plan.recommended
    assert policy in ("lru", "lfu") and 0 < share <= 1 and low <= slowdown <= high
    assert slowdown <= 1.10 + 1e-6
    assert any("fast memory" in line for line in plan.words)
    assert f'policy = "{policy}"' in plan.terraced_toml
    points = pl.DataFrame(plan.points)
    assert set(points["policy"]) == {"lru", "lfu"}
    assert points.filter(pl.col("fast_share") == 1.0)["slowdown"].unique().to_list() == [1.0]
    assert plan.front.num_rows > 0 and plan.answers.num_rows == 2
    with pytest.raises(terrace.Refused, match="expected a factor of at least 1"):
        terrace.plan([path], 0.9)
    with pytest.raises(terrace.Refused):
        terrace.plan([path], 1.0, fast_at_most=0.0)
    for waiting in ({"memory_share": 40.0}, {"memory_share_error": -0.1}):
        with pytest.raises(terrace.Refused, match="expected 0 to 1"):
            terrace.plan([path], 1.05, **waiting)
    with pytest.raises(terrace.Refused, match="no recordings"):
        terrace.plan([], 1.05)


def test_everything_there_is_can_be_listed():
    assert {"lru", "lfu", "amp"} <= {p["name"] for p in terrace.policies()}
    assert {"zipf", "program"} <= {w["name"] for w in terrace.workloads()}
    machines = {m["name"]: m for m in terrace.machines()}
    assert len(machines["server-ddr5-cxl"]["configuration"]["tiers"]) == 2
