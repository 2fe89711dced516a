"""A sweep on a local Ray cluster of two workers, one of them killed half-way, against a serial run.

usage: python python/ray_check.py GRID.toml DIR

Prints how many cells there are, whether all bytes are those of the serial run, and how efficient it
was: processor time of the serial run over that of Ray's processes and this one together, which other
load on the machine does not change much; the share of the time in which the two workers had a cell to
run; and the serial run's time over the two processors' time, with Ray up already.
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path

import psutil
import ray

import terrace


def files(folder):
    found = sorted((folder / "cells").rglob("*")) + sorted(folder.glob("*.parquet"))
    return {f.relative_to(folder): f.read_bytes() for f in found if f.is_file()}


def own_cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_s(process):
    """Processor time of a process and its children, those that have ended included."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def main(grid, folder):
    folder = Path(folder)
    begun, begun_at = own_cpu_s(), time.monotonic()
    serial = terrace.sweep(grid, folder / "serial", jobs=1)
    serial_s = time.monotonic() - begun_at
    serial_cpu_s = own_cpu_s() - begun
    print(f"serial: {serial.done} of {serial.cells} cells, {serial_cpu_s:.1f} s of processor time")

    here = psutil.Process()
    before = cpu_s(here)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    started = cpu_s(here) - before
    finished, busy_s, killed, memory = [], 0.0, [], []
    begun_at = time.monotonic()

    def step(progress):
        nonlocal busy_s
        finished.append(progress.cell)
        busy_s += progress.elapsed_s or 0.0
        if progress.finished % 50 == 0:
            memory.append(here.memory_info().rss >> 20)
        if progress.finished == progress.of // 2:
            workers = [
                p
                for p in here.children(recursive=True)
                if "_run_several" in p.name() or "_run_several" in " ".join(p.cmdline())
            ]
            os.kill(workers[0].pid, signal.SIGKILL)
            killed.append(workers[0].pid)

    done = terrace.sweep(grid, folder / "ray", ray=True, progress=step)
    elapsed_s = time.monotonic() - begun_at
    ray_cpu_s = cpu_s(here) - before - started
    ray.shutdown()
    alike = files(folder / "serial") == files(folder / "ray")
    print(
        f"Ray: {done.done} of {done.cells} cells, {len(set(finished))} reported once each "
        f"({len(finished)} times in all), {len(killed)} worker killed"
    )
    print(f"all files byte-identical to the serial run: {'yes' if alike else 'NO'}")
    print(
        f"processor time: {ray_cpu_s:.1f} s, and {started:.1f} s to start Ray; "
        f"serial over it {serial_cpu_s / ray_cpu_s:.2f}"
    )
    print(
        f"elapsed: {elapsed_s:.1f} s, of which workers had cells {100 * busy_s / (2 * elapsed_s):.0f} %; "
        f"{100 * serial_s / (2 * elapsed_s):.0f} % of two cores' worth of the serial run's {serial_s:.1f} s"
    )
    print(f"memory of this process every 50 cells, MiB: {memory}")
    return 0 if alike and killed and done.failed == done.missing == 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
