"""Policies in processes of their own, as live programs have them: `terrace.serve` with the half of
Terrace that starts and asks it. The simulated machine takes the place of live programs; what is late,
dies or answers falsely is tried against programs of a few lines in external/src/policy/tests.rs."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import REPOSITORY

import terrace

EXAMPLES = REPOSITORY / "examples/python"
# What it prints must not disturb anything.
POLICY = (EXAMPLES / "recent.py").read_text() + "print('read')\n"


@pytest.fixture(scope="module")
def place():
    """A folder that everybody may read, with a Python that has the package."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    python = folder / "python/bin/python"
    if os.geteuid() == 0:
        # As root the process is another user's, who may not be able to read this environment.
        system = shutil.which("python3", path="/usr/bin:/bin")
        version = lambda program: (
            subprocess.run(
                [program, "-c", "import sys; print(sys.version_info[:2])"],
                capture_output=True,
                text=True,
            ).stdout
        )
        if system is None or version(system) != version(sys.executable):
            pytest.skip("no Python of the system that is this one's version")
        subprocess.run([system, "-m", "venv", "--without-pip", folder / "python"], check=True)
        [packages] = (folder / "python/lib").glob("python3*/site-packages")
        for module in (terrace, np):
            source = Path(module.__file__).parent
            shutil.copytree(source, packages / source.name)
        libraries = Path(np.__file__).parents[1] / "numpy.libs"
        if libraries.exists():
            shutil.copytree(libraries, packages / "numpy.libs")
    else:
        python = Path(sys.executable)
    yield folder, python
    shutil.rmtree(folder)


@pytest.fixture
def live(small, place):
    """The small experiment under the policy `recent`, whose file has this text."""
    folder, python = place

    def under(text, **keys):
        (folder / "recent.py").write_text(text)
        (folder / "recent.py").chmod(0o644)
        policy = {"kind": "python", "file": "recent.py", "class": "Recent"}
        policy |= {"interpreter": str(python), "restarts": 0} | keys
        group = small.keys["groups"][0] | {"policy": "recent"}
        return terrace.Experiment(
            "live",
            period_ms=100,
            periods=20,
            groups=[group],
            policies={"recent": policy},
            folder=folder,
        )

    return under


def test_a_policy_decides_in_its_process_as_it_does_in_this_one(small, live):
    results = live(POLICY).run()
    names = {}
    exec(POLICY, names)
    here = small.with_keys(periods=20).run(names["Recent"])
    one, other = (
        pa.table(r.periods).drop_columns(["run", "experiment", "policy", "applied"])
        for r in (results, here)
    )
    assert one.equals(other)
    assert sum(one["promoted_pages"].to_pylist()) > 0
    assert set(results["recent"].periods["applied"]) == {"recent"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('no such page')", "recent.py, line 4: KeyError: 'no such page'"),
        ("return np.flatnonzero(scan.fast)[:1], []", "which is in fast memory already"),
        ("return 3", "expected None, (promote, demote)"),
        ("os._exit(9)", "exit status: 9"),
        ("bytearray(2 << 30)", "MemoryError"),
        ("os.fork()", "Resource temporarily unavailable"),
        ("tempfile.TemporaryFile().write(b'x' * 100_000)", "No usable temporary directory"),
    ],
)
def test_what_a_policy_may_not_do_costs_the_run_nothing_but_a_line(live, body, words):
    text = (
        "import os, tempfile\nimport numpy as np\nclass Recent:\n  def decide(self, scan, budget): "
        + body
    )
    if "fork" in body and os.geteuid() != 0:
        pytest.skip("the bound on processes is the user's, who has others")
    with pytest.raises(terrace.TerraceError) as error:
        live(text).run()
    assert words in str(error.value) and "\n" not in str(error.value)
    assert "its policy did not decide all periods" in str(error.value)


def test_a_policy_has_no_privileges_and_no_way_to_new_ones(live):
    tell = "raise ValueError({l.split(':')[0]: l.split()[1] for l in open('/proc/self/status') if ':' in l and l.split(':')[0] in ('Uid', 'CapEff', 'CapPrm', 'NoNewPrivs')})"
    text = f"class Recent:\n  def decide(self, scan, budget): {tell}\n"
    with pytest.raises(terrace.TerraceError) as error:
        live(text).run()
    reported = str(error.value)
    assert "'NoNewPrivs': '1'" in reported
    if os.geteuid() == 0:
        assert "'Uid': '65534'" in reported
        assert (
            "'CapEff': '0000000000000000'" in reported
            and "'CapPrm': '0000000000000000'" in reported
        )


def test_a_file_without_the_class_is_reported_with_those_that_it_has(live):
    with pytest.raises(
        terrace.TerraceError, match="no class 'Recent' in .*; expected one of Other"
    ):
        live("class Other:\n  def decide(self, scan, budget): pass\n").run()
    with pytest.raises(terrace.TerraceError, match="expected a name of terrace.policies.*decide"):
        live("class Recent: pass\n").run()
    with pytest.raises(terrace.TerraceError, match=r"SyntaxError"):
        live("class Recent\n").run()


def test_the_example_runs_by_the_command(place, command, tmp_path):
    """With the interpreter that has the package in the place of the system's."""
    _, python = place
    table = "[policies.recent]\n"
    text = (EXAMPLES / "recent.toml").read_text()
    assert table in text
    text = text.replace(table, f'{table}interpreter = "{python}"\n')
    (tmp_path / "recent.toml").write_text(text)
    shutil.copy(EXAMPLES / "recent.py", tmp_path)
    run = subprocess.run(
        [command, "run", tmp_path / "recent.toml", "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    results = terrace.Results.read(tmp_path / "out")
    lru = terrace.Experiment.read(EXAMPLES / "recent.toml").run("lru")
    assert results["recent"].hit_ratio == lru["lru"].hit_ratio > 0.5


def test_a_seed_is_passed_on(live):
    start = "class Recent:\n  def start(self, seed): assert seed == 1\n"
    live(start + "  def decide(self, scan, budget): pass\n").run()
    with pytest.raises(terrace.TerraceError, match="recent.py, line 2: AssertionError"):
        live(start.replace("1", "2") + "  def decide(self, scan, budget): pass\n").run()


def test_a_table_that_cannot_be_used_is_refused_beforehand(live):
    with pytest.raises(terrace.Refused, match="did you mean 'lru'"):
        live(POLICY, fallback="lur")
    with pytest.raises(terrace.Refused, match="none.py.*expected a file of Python"):
        live(POLICY, file="none.py")


def test_the_module_is_not_for_people():
    run = subprocess.run(
        [sys.executable, "-m", "terrace.serve", "a.py", "A"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2 and run.stderr.startswith("terrace.serve: no policy: ")
    assert len(run.stderr.splitlines()) == 1
