"""A policy in Python: the most recently accessed pages belong into fast memory.

The same class decides in the simulator (`terrace.Experiment.run(Recent)`), in experiments
(`recent.toml` beside this file), and for live programs under terraced: docs/python.md.
"""

import numpy as np

import terrace


class Recent:
    """Keeps for each page the periods since its last access."""

    def __init__(self):
        self.age = np.empty(0, np.uint8)

    def decide(self, scan, budget):
        if scan.pages_changed:
            self.age = scan.remap(self.age, fresh=127)
        self.age += self.age < 127
        self.age *= ~scan.accessed
        return terrace.select(scan, budget, self.age)
