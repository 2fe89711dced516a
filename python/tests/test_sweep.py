"""Sweeps, here and on Ray."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pytest
from conftest import KEYS

import terrace

GRID = """
name = "grid"
[experiment]
name = "e"
period_ms = 100
periods = 10
[[experiment.groups]]
name = "a"
fast_ratio = 0.5
page_size = "4K"
workload = { kind = "zipf", footprint_mib = 8 }
[[axes]]
key = "policy"
values = ["lru", "lfu", "random"]
[[axes]]
key = "seed"
values = [%s]
"""


def grid(folder, seeds=4):
    file = folder / "grid.toml"
    file.write_text(GRID % ", ".join(str(n) for n in range(1, seeds + 1)))
    return file


def grid_of_a_recording(folder, small, seeds=4):
    """The same over a recording beside the grid's folder, named by a path that goes up."""
    small.run(out=folder / "made")
    (folder / "recordings").mkdir()
    (recording,) = (folder / "made/recordings").glob("*.trec")
    shutil.copy(recording, folder / "recordings/a.trec")
    (folder / "grids").mkdir()
    file = grid(folder / "grids", seeds)
    workload = 'workload = { kind = "zipf", footprint_mib = 8 }'
    text = file.read_text()
    assert workload in text
    recording = 'workload = { kind = "recording", path = "../recordings/a.trec" }'
    file.write_text(text.replace(workload, recording))
    return file


def tables(folder):
    return {f.name: f.read_bytes() for f in sorted(folder.glob("*.parquet"))}


def cells(folder):
    files = sorted((folder / "cells").rglob("*"))
    assert not [f for f in files if f.name.endswith(".part")]
    return {f.relative_to(folder): f.read_bytes() for f in files if f.is_file()}


def test_a_sweep_is_that_of_the_command(tmp_path, command):
    file = grid(tmp_path)
    done = terrace.sweep(file, tmp_path / "python", jobs=2)
    assert (done.cells, done.done, done.failed, done.missing) == (12, 12, 0, 0)
    subprocess.run(
        [command, "sweep", file, "--out", tmp_path / "command"], check=True, capture_output=True
    )
    assert tables(tmp_path / "python") == tables(tmp_path / "command")
    assert cells(tmp_path / "python") == cells(tmp_path / "command")
    table = pa.table(done.table)
    assert table["axis_policy"].to_pylist() == ["lru"] * 4 + ["lfu"] * 4 + ["random"] * 4
    assert done.runs.num_rows == 12 and done.periods.num_rows == 120


def test_tables_are_read_from_an_object_store(tmp_path, endpoint, store, monkeypatch):
    out = tmp_path / "out"
    done = terrace.sweep(grid(tmp_path), out)
    store.create_bucket(Bucket="sweeps")
    for name, content in tables(out).items():
        store.put_object(Bucket="sweeps", Key=f"first/{name}", Body=content)
    store.put_object(Bucket="sweeps", Key="damaged.parquet", Body=b"no table")
    copies = tmp_path / "copies"
    copies.mkdir()
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint, "TMPDIR": str(copies)}.items():
        monkeypatch.setenv(name, value)
    table = terrace.Table.read("s3://sweeps/first/sweep.parquet")
    assert pa.table(table).equals(pa.table(done.table))
    results = terrace.Results.read("s3://sweeps/first")
    assert pa.table(results.periods).equals(pa.table(done.periods))
    assert results["lfu"].periods.num_rows == 40
    del results
    assert list(copies.iterdir()) == []
    for path, parts in {
        "s3://sweeps/damaged.parquet": ["s3://sweeps/damaged.parquet", "run the experiment again"],
        "s3://sweeps/gone.parquet": ["s3://sweeps/gone.parquet", "NoSuchKey"],
        "gs://sweeps/sweep.parquet": ["got 'gs://'", "s3://BUCKET/PATH"],
    }.items():
        with pytest.raises(terrace.Refused) as error:
            terrace.Table.read(path)
        assert all(part in str(error.value) for part in parts), error.value
        assert str(copies) not in str(error.value)
    with pytest.raises(terrace.Refused, match="no runs.parquet"):
        terrace.Results.read("s3://sweeps/gone")


@pytest.mark.parametrize("name", ["runs.parquet", "plan.json", "fleet.json"])
def test_results_of_another_command_are_not_replaced(tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("results")
    with pytest.raises(terrace.Refused, match=f"results of another command .{name}.;"):
        terrace.sweep(grid(tmp_path), out)
    assert [path.name for path in out.iterdir()] == [name]


def test_finished_cells_are_not_run_again(tmp_path):
    file, out = grid(tmp_path), tmp_path / "out"
    reported = []
    terrace.sweep(file, out, progress=reported.append)
    assert sorted(p.outcome for p in reported) == ["done"] * 12
    assert [p.finished for p in reported] == list(range(1, 13)) and reported[0].of == 12
    before = tables(out)
    shutil.rmtree(sorted((out / "cells").iterdir())[5])
    reported.clear()
    terrace.sweep(file, out, progress=reported.append)
    assert sorted(p.outcome for p in reported) == ["done"] + ["skipped"] * 11
    assert tables(out) == before
    # A grid that grew runs its new cells only.
    reported.clear()
    assert terrace.sweep(grid(tmp_path, 5), out, progress=reported.append).done == 15
    assert [p.outcome for p in reported].count("done") == 3


@pytest.fixture
def interruptible():
    # A test that runs in the background of a shell ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_exception_or_a_signal_ends_the_sweep_before_the_next_cell(tmp_path):
    file, out = grid(tmp_path), tmp_path / "out"
    reported = []

    def fail(step):
        reported.append(step)
        raise ValueError("enough")

    def interrupt(step):
        reported.append(step)
        os.kill(os.getpid(), signal.SIGINT)
        # Until the first thread has taken it.
        time.sleep(1)

    for number, (progress, error) in enumerate(
        [(fail, ValueError), (interrupt, KeyboardInterrupt)]
    ):
        reported.clear()
        with pytest.raises(error):
            terrace.sweep(file, out / str(number), jobs=1, progress=progress)
        assert len(reported) == 1
        assert len(list((out / str(number) / "cells").iterdir())) == 1
        assert terrace.sweep(file, out / str(number)).done == 12


def test_a_cell_run_elsewhere_is_the_same_bytes(tmp_path):
    from terrace import _terrace

    file = grid(tmp_path)
    terrace.sweep(file, tmp_path / "here")
    made = _terrace.Grid.read(file)
    out = str(tmp_path / "there")
    made.prepare(out)
    for index in reversed(range(len(made))):
        d = made.describe(index)
        files = _terrace.run_cell(d["experiment"], d["folder"], d["hash"])
        made.take_in(out, d["hash"], files)
    assert made.merge(out) == (12, 0, 0, None)
    assert tables(tmp_path / "here") == tables(tmp_path / "there")
    assert cells(tmp_path / "here") == cells(tmp_path / "there")
    with pytest.raises(terrace.Refused, match="another version"):
        _terrace.run_cell(d["experiment"], d["folder"], "0" * 16)
    with pytest.raises(terrace.Refused, match="expected a plain name"):
        made.take_in(out, "1" * 16, [("../x", b"")])
    assert not (tmp_path / "there/cells" / ("1" * 16)).exists()


def test_a_workloads_file_travels_with_its_cells(tmp_path, small):
    """A worker has the grid's folder neither by name nor by content."""
    from terrace import _sweeps, _terrace

    file = grid_of_a_recording(tmp_path, small)
    terrace.sweep(file, tmp_path / "here")
    made = _terrace.Grid.read(file)
    out = str(tmp_path / "there")
    made.prepare(out)
    content = (tmp_path / "recordings/a.trec").read_bytes()
    described = [made.describe(index) for index in range(len(made))]
    # A worker cannot find them.
    (tmp_path / "recordings").rename(tmp_path / "hidden")
    for d in described:
        paths = _sweeps._files(d)
        assert paths == ["../recordings/a.trec"]
        outcome, files, _ = _sweeps._run_elsewhere(
            d["experiment"], str(tmp_path / "no-such-folder"), d["hash"], paths, content
        )
        assert outcome == "done", files
        made.take_in(out, d["hash"], files)
    (tmp_path / "hidden").rename(tmp_path / "recordings")
    assert made.merge(out) == (12, 0, 0, None)
    assert tables(tmp_path / "here") == tables(tmp_path / "there")
    assert cells(tmp_path / "here") == cells(tmp_path / "there")


def test_a_policys_file_travels_with_its_cells(tmp_path):
    from terrace import _sweeps, _terrace

    (tmp_path / "own").mkdir()
    policy = tmp_path / "own/fixed.py"
    policy.write_text("class Fixed:\n    def decide(self, scan, budget):\n        return None\n")
    file = grid(tmp_path, 1)
    keys = 'kind = "python"\nclass = "Fixed"\nfile = "own/fixed.py"'
    tables = f"[experiment.policies.fixed]\n{keys}\n"
    text = file.read_text().replace('["lru", "lfu", "random"]', '["lru", "fixed"]')
    file.write_text(text.replace("[[axes]]", f"{tables}[[axes]]", 1))
    made = _terrace.Grid.read(file)
    lru, fixed = (made.describe(index) for index in range(len(made)))
    assert _sweeps._files(lru) == ["own/fixed.py"]
    assert _sweeps._files(fixed) == ["own/fixed.py"]
    content = policy.read_bytes()
    policy.unlink()
    # Without the file no cell of the experiment can be read, whichever policy it has.
    with pytest.raises(terrace.Refused):
        _terrace.Grid.read(file).describe(0)
    outcome, files, _ = _sweeps._run_elsewhere(
        lru["experiment"], str(tmp_path / "none"), lru["hash"], ["own/fixed.py"], content
    )
    assert outcome == "done", files


def test_failures_are_reported_and_the_rest_goes_on(tmp_path):
    file = grid(tmp_path)
    text = (
        file.read_text().replace('"lru", "lfu", "random"]', '"lru"]')
        + """
[[axes]]
name = "what"
variants = [
  { name = "good", set = { periods = 5 } },
  { name = "gone", set = { "workload" = { kind = "recording", path = "gone.trec" } } },
]
"""
    )
    file.write_text(text)
    (tmp_path / "gone.trec").write_bytes(b"not a recording")
    reported = []
    done = terrace.sweep(file, tmp_path / "out", progress=reported.append)
    assert (done.done, done.failed) == (4, 4)
    assert "gone.trec" in done.first_error
    assert [p.error for p in reported if p.outcome == "failed"][0]
    assert len((tmp_path / "out/failures.jsonl").read_text().splitlines()) == 4
    assert done.table.num_rows == 4


def test_the_module_is_a_command(tmp_path):
    file = grid(tmp_path, 1)
    run = lambda *a: subprocess.run(
        [sys.executable, "-m", "terrace.sweep", *a], text=True, capture_output=True
    )
    good = run(str(file), "--out", str(tmp_path / "out"))
    assert good.returncode == 0 and "3 of 3 cells are there" in good.stdout
    bad = run(str(tmp_path / "none.toml"), "--out", str(tmp_path / "out"))
    assert bad.returncode == 2 and bad.stderr.startswith("terrace: ")
    assert len(bad.stderr.splitlines()) == 1
    assert run().returncode == 2


def test_without_ray_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(terrace.Refused, match=r"pip install '\./python\[ray\]'"):
        terrace.sweep(grid(tmp_path), tmp_path / "out", ray=True)


def test_on_ray_a_killed_worker_loses_no_cell(tmp_path, small):
    """Two workers, one of them killed half-way: every cell once, the bytes of a serial run."""
    ray = pytest.importorskip("ray")
    file = grid_of_a_recording(tmp_path, small, 20)
    terrace.sweep(file, tmp_path / "serial", jobs=1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        killed = []

        def kill(step):
            if step.finished == step.of // 2:

                @ray.remote
                def who():
                    return os.getpid()

                pid = ray.get(who.remote())
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        done = terrace.sweep(file, tmp_path / "ray", ray=True, progress=kill)
        assert killed and (done.done, done.failed) == (60, 0)
        assert ray.is_initialized(), "what the caller started is left running"
    finally:
        ray.shutdown()
    assert tables(tmp_path / "ray") == tables(tmp_path / "serial")
    assert cells(tmp_path / "ray") == cells(tmp_path / "serial")


def test_on_ray_a_cell_whose_worker_dies_each_time_is_given_up_with_its_reason(tmp_path):
    ray = pytest.importorskip("ray")

    def deadly():
        """Workers kill themselves where they are to run a cell under LFU."""
        import os
        import signal

        from terrace import _terrace

        run = _terrace.run_cell

        def run_cell(experiment, *rest):
            if '"lfu"' in experiment:
                os.kill(os.getpid(), signal.SIGKILL)
            return run(experiment, *rest)

        _terrace.run_cell = run_cell

    workers = {"worker_process_setup_hook": deadly}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=workers)
    reported = []
    try:
        swept = terrace.sweep(
            grid(tmp_path, 2), tmp_path / "out", ray=True, retries=0, progress=reported.append
        )
    finally:
        ray.shutdown()
    assert (swept.done, swept.failed) == (4, 2)
    errors = [step.error for step in reported if step.outcome == "failed"]
    assert len(errors) == 2 and all(e.startswith("WorkerCrashedError") for e in errors), errors
    assert len((tmp_path / "out/failures.jsonl").read_text().splitlines()) == 2
