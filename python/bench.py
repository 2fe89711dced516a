"""A policy in Python against the same in Rust: processor time of the same experiment.

Run it with 'tools/python bench'. Each experiment runs once under Terrace's own LRU and once under
that of Python below, which decides alike; times are of the whole process, the best of some turns.
"""

import time

import numpy as np

import terrace

TURNS = 3
SIZES = [(256, 200), (1024, 100), (4096, 40)]


class Lru:
    """The most recently accessed pages."""

    name = "python-lru"

    def __init__(self):
        self.age = np.empty(0, np.uint8)

    def decide(self, scan, budget):
        if scan.pages_changed:
            self.age = scan.remap(self.age, fresh=127)
        self.age += self.age < 127
        self.age *= ~scan.accessed
        return terrace.select(scan, budget, self.age)


def cpu_s(experiment, policy):
    """Processor time of one run, all threads; and the pages moved."""
    begun = time.process_time()
    results = experiment.run(policy)
    spent = time.process_time() - begun
    return spent, results.periods.to_pyarrow()["promoted_pages"].to_pylist()


def main():
    print("| workload | pages | periods | Rust | Python | Python's speed over Rust's |")
    print("|---|---|---|---|---|---|")
    for kind in ("zipf", "lru-favor"):
        for mib, periods in SIZES:
            experiment = terrace.Experiment(
                name="speed",
                period_ms=1000,
                periods=periods,
                groups=[
                    terrace.Group(
                        "a",
                        terrace.Workload(kind, footprint_mib=mib),
                        fast_ratio=0.5,
                        page_size="4K",
                    )
                ],
            )
            best = {}
            for policy in ("lru", Lru):
                turns = [cpu_s(experiment, policy) for _ in range(TURNS)]
                best[policy] = min(spent for spent, _ in turns)
            rust, python = best["lru"], best[Lru]
            print(
                f"| {kind} | {mib * 256:,} | {periods} | {rust:.3f} s | {python:.3f} s "
                f"| {rust / python:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
