"""Fleets: over histories in an object store, from an independent server that speaks S3's protocol; from
Python; on Ray."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import KEYS

import terrace
from terrace import _fleets

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


TABLES = ("classes", "services", "hosts", "pairs", "left_out")


def test_python_gives_the_answer_of_the_command_and_writes_the_same_tables(
    fleet, command, tmp_path
):
    (fleet / "small-00003/bad.trec").write_text("no history")
    file, copies = fleet / "fleet.toml", tmp_path / "copies"
    steps = []
    answer = terrace.fleet(file, jobs=2, progress=lambda *step: steps.append(step))
    assert answer.json() + "\n" == ask(command, file, copies).stdout
    assert steps == [(n, 12) for n in range(1, 13)]
    assert answer.classes["fast_share"].shape == (6,)
    assert answer.left_out[0]["reason"].startswith("is not a Terrace recording"), answer.left_out[0]
    assert answer.hosts.num_rows == 24 and answer.services.num_rows > 12
    assert answer.words[0] in repr(answer) and answer.remarks and answer.rollout
    subprocess.run([command, "fleet", file, "--out", tmp_path / "command"], check=True)
    answer.write(tmp_path / "python")
    for table in TABLES:
        name = f"fleet_{table}.parquet"
        there, here = tmp_path / "command" / name, tmp_path / "python" / name
        assert here.read_bytes() == there.read_bytes(), name
    written = (tmp_path / "python/fleet.json").read_text()
    assert written == answer.json()
    assert "Host classes" in (tmp_path / "python/report.html").read_text()


def test_an_exception_while_hosts_are_read_ends_it(fleet):
    def enough(finished, of):
        if finished == 3:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        terrace.fleet(fleet / "fleet.toml", jobs=2, progress=enough)


def test_hosts_read_by_workers_give_the_same_answer_in_whatever_order(fleet):
    made = terrace._terrace.Fleet.read(os.fspath(fleet / "fleet.toml"))
    hosts = made.hosts()
    fixed = (made.text, os.fspath(made.folder), terrace.__build__)
    read = {}
    for some in (hosts[8:], hosts[:5], hosts[5:8]):
        for host, (outcome, what, _) in zip(some, _fleets._read_several(some, *fixed)):
            assert outcome == "done" and len(what) < 2048, (outcome, what)
            read[host] = what
    here = terrace.fleet(fleet / "fleet.toml")
    assert made.join([read[host] for host in hosts], 1).json() == here.json()
    # Of what came back wrong nothing is used.
    with pytest.raises(terrace.Refused, match="expected a host as the same version"):
        made.join([b"no host"], 1)
    [(outcome, what, _)] = _fleets._read_several(hosts[:1], *fixed[:2], "0.0.1 (other)")
    assert outcome == "refused" and "install the same on all machines" in what
    away = (0, "gone", os.fspath(fleet / "gone"))
    assert _fleets._read_several([away], *fixed)[0][:2] == ("away", None)


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "terrace.fleet", *map(os.fspath, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_module_is_a_command_that_answers_and_refuses_in_a_line(fleet, command, tmp_path):
    file, out = fleet / "fleet.toml", tmp_path / "out"
    json_there = ask(command, file, tmp_path / "copies").stdout
    assert run(file, "--format", "json").stdout == json_there
    text = run(file, "--rollout", "--out", out)
    assert text.returncode == 0 and "Stage 1" in text.stdout and f"answer: {out}" in text.stdout
    assert "terrace.fleet" in (out / "report.html").read_text(), "the command that made it"

    def refused(expected, *arguments):
        got = run(*arguments)
        assert got.returncode == 2 and expected in got.stderr, got.stderr
        assert got.stdout == "" and got.stderr.count("\n") == 1, got.stderr

    refused("has results already (fleet.json)", file, "--out", out)
    assert run(file, "--out", out, "--force").returncode == 0
    refused("gone.toml", fleet / "gone.toml")
    # Where nothing can be written, no host is read; what fails later is shown all the same.
    refused("can be written to", file, "--out", file / "answer")
    full = tmp_path / "full"
    (full / "fleet_left_out.parquet").mkdir(parents=True)
    got = run(file, "--format", "json", "--out", full)
    assert got.returncode == 1 and "fleet_left_out.parquet" in got.stderr, got.stderr
    assert got.stdout == json_there
    (out / "fleet.json").rename(out / "plan.json")
    refused("has results already (plan.json)", file, "--out", out)
    for jobs in ("0", "-1", "two"):
        got = run(file, f"--jobs={jobs}")
        wrong = f"argument --jobs: got '{jobs}', expected a whole number from 1"
        assert got.returncode == 2 and wrong in got.stderr, got.stderr
    (fleet / "fleet.toml").write_text("quantil = 0.9\n")
    refused("did you mean 'quantile'?", file)


def workers_that_die_of(host):
    """Ray's workers kill themselves where they are to read this host."""

    def deadly():
        import os
        import signal

        from terrace import _fleets

        there = _fleets._is_away

        def is_away(place):
            if place.endswith(host):
                os.kill(os.getpid(), signal.SIGKILL)
            return there(place)

        _fleets._is_away = is_away

    return {"worker_process_setup_hook": deadly}


def test_on_ray_a_killed_worker_loses_no_host(fleet):
    """Two workers, one of them killed half-way: every host once, the bytes of a run without Ray."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    killed = []

    def kill(finished, of):
        if finished == of // 2:

            @ray.remote
            def who():
                return os.getpid()

            killed.append(ray.get(who.remote()))
            os.kill(killed[0], signal.SIGKILL)

    try:
        answer = terrace.fleet(fleet / "fleet.toml", ray=True, progress=kill)
    finally:
        ray.shutdown()
    assert killed and answer.json() == terrace.fleet(fleet / "fleet.toml").json()


def test_on_ray_a_host_whose_worker_dies_each_time_is_left_out_with_its_reason(fleet):
    ray = pytest.importorskip("ray")
    host = "small-00003"
    workers = workers_that_die_of(host)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=workers)
    try:
        answer = terrace.fleet(fleet / "fleet.toml", ray=True, retries=0)
    finally:
        ray.shutdown()
    document = json.loads(answer.json())["fleet"]
    assert (document["hosts_found"], document["hosts_left_out"]) == (12, 1)
    [row] = document["left_out"]
    assert row["path"].endswith(host) and row["reason"].startswith("WorkerCrashedError"), row
