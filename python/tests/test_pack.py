"""`terrace.pack`: a Python that is put into a folder works there, and policies decide by it in a virtual
machine, which has none of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import REPOSITORY

import terrace

RECENT = REPOSITORY / "examples/python/recent.py"


def pack(*arguments, python=sys.executable):
    return subprocess.run(
        [python, "-I", "-B", "-m", "terrace.pack", *arguments], capture_output=True, text=True
    )


def test_a_packed_python_has_what_its_policies_import_and_nothing_from_elsewhere(tmp_path):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    # What is absent, and a file with an error in it, are reported when the policy is started.
    one.write_text("import no_such_module\nfrom pluggy import HookspecMarker\nraise ValueError\n")
    other.write_text("class Half\n")
    mask = os.umask(0o077)
    made = pack("--into", tmp_path / "python", one, other)
    os.umask(mask)
    assert made.returncode == 0, made.stderr
    files = [file for file in (tmp_path / "python").rglob("*") if file.is_file()]
    assert not [file for file in files if file.suffix == ".py"]
    # Policies run as another user there.
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in files)
    moved = (tmp_path / "python").rename(tmp_path / "elsewhere")
    script = "import pluggy, sys, terrace.serve; print(*sys.path, *(\
        m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)), sep='\\n')"
    run = subprocess.run(
        [moved / "bin/python3", "-I", "-B", "-c", script], capture_output=True, text=True, env={}
    )
    assert run.returncode == 0, run.stderr
    outside = [line for line in run.stdout.splitlines() if not line.startswith(str(moved))]
    assert not outside


def test_without_a_folder_nothing_is_made(tmp_path):
    before = set(tmp_path.iterdir())
    assert pack(RECENT).returncode == 0
    assert set(tmp_path.iterdir()) == before


@pytest.fixture
def virtual(command, tmp_path):
    """Runs an experiment in a virtual machine, with a group under each of these policies: a file and
    what their tables have beside it."""
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("no QEMU (tools/setup)")

    def run(policies):
        # With a clock that counts instructions, a busy host makes no answer late.
        text = 'name = "e"\nperiod_ms = 1000\nperiods = 16\n[machine]\nclock = "instructions"\n'
        for name, keys in policies.items():
            text += f'[policies.{name}]\nkind = "python"\nfile = "{name}.py"\nclass = "Recent"\n'
            text += "".join(f"{key} = {value}\n" for key, value in keys.items())
            text += f'[[groups]]\nname = "under-{name}"\npolicy = "{name}"\nfast_ratio = 0.5\n'
            text += 'workload = { kind = "hotcold", footprint_mib = 64, hot_ratio = 0.25 }\n'
        (tmp_path / "e.toml").write_text(text)
        arguments = ["run", tmp_path / "e.toml", "--machine", "vm", "--out", tmp_path / "out"]
        return subprocess.run([command, *arguments], capture_output=True, text=True)

    return run


def test_policies_decide_in_a_virtual_machine(virtual, tmp_path):
    python = f'"{sys.executable}"'
    shutil.copy(RECENT, tmp_path / "recent.py")
    (tmp_path / "broken.py").write_text(
        "import os\nclass Recent:\n  def decide(self, scan, budget):\n"
        "    raise KeyError(os.getuid())\n"
    )
    run = virtual(
        {
            "recent": {"interpreter": python},
            "broken": {"interpreter": python, "restarts": 0, "fallback": '"lfu"'},
        }
    )
    assert run.returncode == 0, run.stderr
    results = terrace.Results.read(tmp_path / "out")
    rows = {row["group"]: row for row in pa.table(results.runs).to_pylist()}
    periods = pa.table(results.periods).to_pylist()
    applied = lambda group: [row["applied"] for row in periods if row["group"] == group]

    # Its fallback decides until the process is there, and never after.
    own = applied("under-recent")
    decided = own.count("recent")
    assert 10 <= decided < len(own)
    assert own == ["lru"] * (len(own) - decided) + ["recent"] * decided
    row = rows["under-recent"]
    assert f"its policy decided {decided} periods, lru" in row["notes"]
    assert "starting" in row["notes"] and "error" not in row["notes"]
    assert sys.executable in row["parameters"]
    assert row["checksum_ok"] and row["demoted_pages"] >= 16
    assert [r["hit_ratio"] for r in periods if r["group"] == "under-recent"][-1] == 1.0

    # What is wrong with a policy is reported as on a host; it runs without privileges.
    row = rows["under-broken"]
    assert set(applied("under-broken")) == {"lfu"}
    assert "decided 0 periods" in row["notes"] and "died 1" in row["notes"]
    assert "broken.py, line 4: KeyError: 65534" in row["notes"]


def test_a_python_without_the_package_is_refused_before_a_machine_starts(virtual, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    shutil.copy(RECENT, tmp_path / "recent.py")
    bare = Path(tmp_path, "bare/bin/python")
    run = virtual({"recent": {"interpreter": f'"{bare}"'}})
    assert run.returncode == 2
    [line] = run.stderr.splitlines()
    assert f"interpreter = '{bare}'" in line and "No module named 'terrace'" in line
    assert "expected a Python that has this version of the package terrace" in line
    assert not (tmp_path / "out").exists()
