"""Shared fixtures of the tests."""

import os
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

import terrace

REPOSITORY = Path(__file__).resolve().parents[2]

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
"""Credentials that the server of `endpoint` takes."""


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


@pytest.fixture
def endpoint():
    """Address of an object store of its own that no one here wrote."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def store(endpoint):
    """A client of it."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )
