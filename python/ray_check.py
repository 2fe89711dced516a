"""A sweep or a fleet on a local Ray cluster of two workers, one of them killed half-way, against a
serial run.

usage: python python/ray_check.py sweep GRID.toml DIR
       python python/ray_check.py fleet FLEET.toml

Prints how many cells or hosts there are, whether all bytes are those of the serial run, and how efficient
it was: processor time of the serial run over that of Ray's processes and this one together, which other
load on the machine does not change much; and the serial run's time over the two processors' time, with
Ray up already. For a sweep also the share of the time in which the two workers had a cell to run.
"""

import dataclasses
import os
import resource
import signal
import sys
import time
from pathlib import Path

import psutil
import ray

import terrace


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


@dataclasses.dataclass
class Timed:
    """What a run took."""

    result: object
    elapsed_s: float
    cpu_s: float


def serially(work):
    begun, begun_at = own_cpu_s(), time.monotonic()
    result = work()
    return Timed(result, time.monotonic() - begun_at, own_cpu_s() - begun)


class Cluster:
    """Two workers, of which the one that has a task is killed half-way."""

    def __init__(self, name, every):
        """Workers are known by the name of their task; memory is read every so many units."""
        self.name, self.every = name, every
        self.killed, self.memory_mib = [], []
        self.here = psutil.Process()
        before = cpu_s(self.here)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        self.started_cpu_s = cpu_s(self.here) - before

    def step(self, finished, of):
        if finished % self.every == 0:
            self.memory_mib.append(self.here.memory_info().rss >> 20)
        if finished == of // 2:
            workers = [
                p
                for p in self.here.children(recursive=True)
                if self.name in p.name() or self.name in " ".join(p.cmdline())
            ]
            os.kill(workers[0].pid, signal.SIGKILL)
            self.killed.append(workers[0].pid)

    def run(self, work):
        before, begun_at = cpu_s(self.here), time.monotonic()
        result = work()
        done = Timed(result, time.monotonic() - begun_at, cpu_s(self.here) - before)
        ray.shutdown()
        return done

    def report(self, serial, done, alike):
        print(f"all bytes those of the serial run: {'yes' if alike else 'NO'}")
        print(f"{len(self.killed)} worker killed")
        print(
            f"processor time: {done.cpu_s:.1f} s, and {self.started_cpu_s:.1f} s to start Ray; "
            f"serial {serial.cpu_s:.1f} s, over it {serial.cpu_s / done.cpu_s:.2f}"
        )
        share = serial.elapsed_s / (2 * done.elapsed_s)
        print(
            f"elapsed: {done.elapsed_s:.1f} s, {100 * share:.0f} % of two cores' worth of the "
            f"serial run's {serial.elapsed_s:.1f} s"
        )
        print(f"memory of this process every {self.every}, MiB: {self.memory_mib}")


def files(folder):
    found = sorted((folder / "cells").rglob("*")) + sorted(folder.glob("*.parquet"))
    return {f.relative_to(folder): f.read_bytes() for f in found if f.is_file()}


def sweep(grid, folder):
    folder = Path(folder)
    serial = serially(lambda: terrace.sweep(grid, folder / "serial", jobs=1))
    cluster = Cluster("_run_several", 50)
    finished, busy_s = [], 0.0

    def step(progress):
        nonlocal busy_s
        finished.append(progress.cell)
        busy_s += progress.elapsed_s or 0.0
        cluster.step(progress.finished, progress.of)

    ran = cluster.run(lambda: terrace.sweep(grid, folder / "ray", ray=True, progress=step))
    done = ran.result
    print(
        f"{done.done} of {done.cells} cells, {len(set(finished))} reported, {len(finished)} times "
        f"in all; workers had cells {100 * busy_s / (2 * ran.elapsed_s):.0f} % of the time"
    )
    alike = files(folder / "serial") == files(folder / "ray")
    cluster.report(serial, ran, alike)
    return alike and cluster.killed and done.failed == done.missing == 0


def fleet(file):
    serial = serially(lambda: terrace.fleet(file, jobs=1))
    cluster = Cluster("_read_several", 200)
    steps = []

    def step(finished, of):
        steps.append(finished)
        cluster.step(finished, of)

    ran = cluster.run(lambda: terrace.fleet(file, ray=True, progress=step))
    alike = serial.result.json() == ran.result.json()
    once = steps == list(range(1, len(steps) + 1))
    print(f"{len(steps)} hosts, each once: {'yes' if once else 'NO'}")
    cluster.report(serial, ran, alike)
    return alike and once and cluster.killed


def main(what, *arguments):
    return 0 if {"sweep": sweep, "fleet": fleet}[what](*arguments) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
