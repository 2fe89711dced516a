"""Windows of programs, and estimates from them: those of the commands."""

import json
import subprocess

import pytest

import terrace

LLC = {"size": "256K", "ways": 16, "line_bytes": 64, "latency_cycles": 70, "slices": 1}
EXPERIMENT = terrace.Experiment(
    name="windows",
    period_ms=1,
    periods=1,
    machine=terrace.Machine.preset(
        "server-ddr5-cxl", fast="64M", slow="64M", hardware={"node": {"caches": {"llc": LLC}}}
    ),
    groups=[
        terrace.Group(
            "a", terrace.Workload("program", name="gups", footprint_mib=4), fast_ratio=0.5
        )
    ],
)
SMALL = {"windows": 16, "length": 2_000, "lead": 500, "lines": 1 << 20}


def test_estimates_are_those_of_the_commands(tmp_path, command):
    windows = EXPERIMENT.windows(tmp_path / "a.twin", **SMALL)
    assert (len(windows), windows.window_references) == (16, 2_000)
    assert windows.references > 16 * 2_500 and "gups" in repr(windows)
    estimates = windows.estimate([0.25, 0.5], jobs=2)
    answer = subprocess.run(
        [command, "estimate", tmp_path / "a.twin", "--fast", "25%,50%", "--format", "json"],
        check=True,
        capture_output=True,
    )
    answer = json.loads(answer.stdout)
    for here, there in zip(estimates, answer["estimates"], strict=True):
        keys = ("fast_share", "slowdown", "slowdown_low", "slowdown_high", "time_ms", "fast_reads")
        assert here[:6] == pytest.approx([there[key] for key in keys])
        assert (here.all_fast_ms, here.windows) == (answer["all_fast_ms"], answer["windows"])
    less, more = estimates
    assert less.slowdown > more.slowdown > 1 and 0 < less.error < 0.5
    # A quarter of them is enough for a wide interval; the experiment's own share is the half.
    read = terrace.Windows.read(tmp_path / "a.twin")
    assert [one.windows for one in read.estimate(error=0.9)] == [4]
    assert read.estimate()[0].slowdown == more.slowdown


def test_another_machine_gives_another_answer(tmp_path):
    EXPERIMENT.windows(tmp_path / "a.twin", **SMALL)
    far = EXPERIMENT.with_keys(**{"machine.hardware.preset": "radiant-xeon-6252n-optane"})
    here = terrace.Windows.read(tmp_path / "a.twin").estimate(0.25)
    there = terrace.Windows.read(tmp_path / "a.twin", far).estimate(0.25)
    assert here[0].slowdown != there[0].slowdown


def test_what_cannot_be_is_refused_in_a_line(tmp_path):
    with pytest.raises(terrace.Refused, match="windows = 3: expected 8 to 100000"):
        EXPERIMENT.windows(tmp_path / "a.twin", windows=3)
    with pytest.raises(terrace.UnknownArgument, match="expected a whole number"):
        EXPERIMENT.windows(tmp_path / "a.twin", windows=16.5)
    with pytest.raises(terrace.UnknownArgument, match="no argument 'size'.*length"):
        EXPERIMENT.windows(tmp_path / "a.twin", size=5)
    assert not list(tmp_path.iterdir())
    with pytest.raises(terrace.Refused, match="none.twin"):
        terrace.Windows.read(tmp_path / "none.twin")
    windows = EXPERIMENT.windows(tmp_path / "a.twin", **SMALL)
    with pytest.raises(terrace.Refused, match=r"fast has 1.5: expected shares, 0 to 1"):
        windows.estimate(1.5)
    with pytest.raises(terrace.UnknownArgument, match="fast = 'half'"):
        windows.estimate("half")
    with pytest.raises(terrace.Refused, match="error = 2: expected 0 to 1"):
        windows.estimate(0.5, error=2.0)
