"""`terrace fleet` over histories in an object store: an independent server that speaks S3's protocol."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import KEYS

BUCKET = "fleet"


@pytest.fixture
def fleet(tmp_path, command) -> Path:
    """The folder of a fleet whose needs are known."""
    maker = Path(command).parent / "examples/known_fleet"
    folder = tmp_path / "fleet"
    subprocess.run([maker, folder, "12", "12", "1"], check=True)
    return folder


def upload(fleet, store):
    store.create_bucket(Bucket=BUCKET)
    for file in sorted(fleet.rglob("*.trec")):
        key = f"2026/{file.relative_to(fleet)}"
        store.put_object(Bucket=BUCKET, Key=key, Body=file.read_bytes())


def of_bucket(fleet, bucket=BUCKET):
    """The same fleet file, of the bucket's hosts."""
    text = (fleet / "fleet.toml").read_text()
    file = fleet / "bucket.toml"
    file.write_text(text.replace('hosts = "', f'hosts = "s3://{bucket}/2026/'))
    return file


def ask(command, file, copies, **environment):
    copies.mkdir(exist_ok=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    return subprocess.run(
        [command, "fleet", file, "--format", "json"],
        env={**clean, **KEYS, "TMPDIR": str(copies), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_bucket_gives_the_answer_of_its_files_and_leaves_no_copy(
    fleet, endpoint, store, command, tmp_path
):
    upload(fleet, store)
    copies = tmp_path / "copies"
    here = ask(command, fleet / "fleet.toml", copies)
    there = ask(command, of_bucket(fleet), copies, AWS_ENDPOINT_URL=endpoint)
    assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
    assert json.loads(here.stdout)["fleet"]["hosts_found"] == 12
    assert there.stdout == here.stdout
    assert list(copies.iterdir()) == []


def test_what_is_damaged_in_a_bucket_is_named_and_the_rest_is_used(
    fleet, endpoint, store, command, tmp_path
):
    upload(fleet, store)
    whole = sorted(fleet.glob("small-00000/*.trec"))[0]
    cut = f"2026/small-00000/{whole.name}"
    store.put_object(Bucket=BUCKET, Key=cut, Body=whole.read_bytes()[:-40])
    store.put_object(Bucket=BUCKET, Key="2026/small-00003/bad.trec", Body=b"no history")
    store.put_object(Bucket=BUCKET, Key="2026/small-00006/notes.txt", Body=b"no matter")
    found = ask(command, of_bucket(fleet), tmp_path / "copies", AWS_ENDPOINT_URL=endpoint)
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)["fleet"]
    assert (answer["hosts_found"], answer["hosts_left_out"]) == (12, 2)
    paths = [row["path"] for row in answer["left_out"]]
    assert paths == [f"s3://{BUCKET}/{cut}", f"s3://{BUCKET}/2026/small-00003/bad.trec"]
    reasons = [row["reason"] for row in answer["left_out"]]
    assert "cut off" in reasons[0] and not any(str(tmp_path) in r for r in reasons), reasons


def test_a_bucket_that_cannot_be_had_is_refused_in_one_line(
    fleet, endpoint, store, command, tmp_path
):
    upload(fleet, store)
    file = of_bucket(fleet)

    def refused(file, expected, **environment):
        got = ask(command, file, tmp_path / "copies", **environment)
        assert got.returncode == 2, got.stderr
        assert got.stdout == "" and got.stderr.count("\n") == 1, got.stderr
        for part in expected:
            assert part in got.stderr, got.stderr

    # Another fleet's file: its bucket is not there.
    refused(of_bucket(fleet, "gone"), ["NoSuchBucket", endpoint], AWS_ENDPOINT_URL=endpoint)
    file = of_bucket(fleet)
    refused(file, ["'nowhere'", "expected one as https"], AWS_ENDPOINT_URL="nowhere")
    # Nothing answers there: port 1 is no server's.
    nobody = "http://127.0.0.1:1"
    refused(file, ["Connection refused", nobody, "AWS_ variables"], AWS_ENDPOINT_URL=nobody)
    for listed in store.list_objects_v2(Bucket=BUCKET)["Contents"]:
        store.delete_object(Bucket=BUCKET, Key=listed["Key"])
    refused(file, ["no folder is named", "s3://fleet/"], AWS_ENDPOINT_URL=endpoint)
