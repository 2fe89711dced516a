"""Shared fixtures of the tests."""

import os
from pathlib import Path

import pytest

import terrace

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def small() -> terrace.Experiment:
    """Half of a footprint that is used unevenly; some tens of milliseconds a run."""
    return terrace.Experiment(
        name="small",
        period_ms=100,
        periods=40,
        groups=[
            terrace.Group(
                "a",
                terrace.Workload("zipf", footprint_mib=32),
                fast_ratio=0.4,
                page_size="4K",
                policy="lru",
            )
        ],
    )


@pytest.fixture
def command() -> str:
    """The program `terrace`, where it has been built."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    for profile in ("debug", "release"):
        if (target / profile / "terrace").is_file():
            return str(target / profile / "terrace")
    pytest.skip("the program 'terrace' has not been built")
