//! The Redis load against the Redis server of Debian (package redis-server).

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

struct Server {
    folder: TempDir,
    child: Child,
}

impl Server {
    fn start() -> Server {
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--logfile", ""])
            .arg("--unixsocket")
            .arg(folder.path().join("s"))
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("these tests need the Debian package redis-server");
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(folder.path().join("s")).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        Server { folder, child }
    }

    fn client(&self, phase: &str, more: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-workload"));
        command
            .args(["redis-zipf", phase, "--keys", "3000", "--value-bytes", "1000"])
            .args(["--server", &format!("unix:{}", self.folder.path().join("s").display())])
            .args(more.split_whitespace());
        command
    }

    fn run(&self, phase: &str, more: &str) -> (Output, Value) {
        let output = self.client(phase, more).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let result = text.lines().last().and_then(|l| serde_json::from_str(l).ok());
        (output, result.unwrap_or(Value::Null))
    }

    fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .arg("-s")
            .arg(self.folder.path().join("s"))
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn file(&self, name: &str) -> String {
        let path: &Path = &self.folder.path().join(name);
        path.display().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn load_run_and_verify_agree_that_every_value_is_right() {
    let server = Server::start();
    let (output, loaded) = server.run("load", "--keys-first");
    assert!(output.status.success());
    assert_eq!(loaded["operations"], 3000);
    assert!(loaded["used_memory_bytes"].as_u64().unwrap() > 3_000_000);
    assert_eq!(server.cli(&["dbsize"]), "3000");
    for write_with in ["set", "setrange"] {
        let versions = server.file("versions");
        let (output, ran) = server.run(
            "run",
            &format!(
                "--duration-ms 300 --write-share 0.3 --sweep-share 0.1 --sweep-step 7 \
                 --connections 3 --write-with {write_with} --versions {versions}"
            ),
        );
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!((&ran["wrong_values"], &ran["errors"]), (&0.into(), &0.into()));
        let counts = ["reads", "writes", "sweep_reads"].map(|k| ran[k].as_u64().unwrap());
        assert!(counts.iter().all(|&c| c > 0), "{ran}");
        assert_eq!(counts.iter().sum::<u64>(), ran["operations"].as_u64().unwrap());
        assert!(ran["latency_us"]["p50"].as_u64() <= ran["latency_us"]["p99"].as_u64());
        let (output, verified) = server.run("verify", &format!("--versions {versions}"));
        assert!(output.status.success(), "{verified}");
        assert_eq!(verified["checksum_ok"], true);
    }
}

#[test]
fn the_rate_is_kept_and_the_sequence_is_that_of_the_seed() {
    let server = Server::start();
    server.run("load", "");
    let run = "--duration-ms 1000 --operations-per-s 500 --seed 9";
    let (_, first) = server.run("run", run);
    let operations = first["operations"].as_u64().unwrap();
    assert!((480..=500).contains(&operations), "{first}");
    assert!(first["latency_from_due_us"]["p99"].is_u64());
    // The number of connections changes only which socket each operation uses.
    let (_, second) = server.run("run", &format!("{run} --connections 1"));
    if second["operations"] == first["operations"] {
        assert_eq!(second["writes"], first["writes"]);
    }
}

#[test]
fn a_corrupt_a_stale_and_a_missing_value_are_found() {
    let server = Server::start();
    server.run("load", "");
    let versions = server.file("versions");
    server.run("run", &format!("--duration-ms 200 --write-share 1 --versions {versions}"));

    // Foreign data in the place of a value.
    server.cli(&["set", "key:0000000042", "wrong"]);
    let (output, found) = server.run("verify", "");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((&found["wrong_values"], &found["checksum_ok"]), (&1.into(), &false.into()));
    assert_eq!(found["first_wrong_keys"], serde_json::json!([42]));
    // One byte of a value.
    server.cli(&["setrange", "key:0000000043", "999", "\u{1}"]);
    assert_eq!(server.run("verify", "").1["wrong_values"], 2);
    // A key that is gone.
    server.cli(&["del", "key:0000000044"]);
    assert_eq!(server.run("verify", "").1["missing"], 1);
    // The run also finds the missing key.
    let (output, ran) = server.run("run", "--duration-ms 300 --theta 0 --write-share 0");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(ran["checksum_ok"], false);
    assert!(ran["wrong_values"].as_u64().unwrap() > 0 && ran["missing"].as_u64().unwrap() > 0);

    // Values as loaded are whole, but not the latest. The hottest was written.
    server.run("load", "");
    assert_eq!(server.run("verify", "").1["checksum_ok"], true);
    let (output, found) = server.run("verify", &format!("--versions {versions}"));
    assert_eq!(output.status.code(), Some(1));
    assert!(found["stale_values"].as_u64().unwrap() > 0, "{found}");
    assert_eq!(found["wrong_values"], 0);
}

#[test]
fn a_server_that_dies_ends_the_run_with_a_clear_error() {
    let mut server = Server::start();
    server.run("load", "");
    let client = server
        .client("run", "--duration-ms 60000 --operations-per-s 1000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !server.cli(&["info", "clients"]).contains("connected_clients:2") {}
    server.child.kill().unwrap();
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("closed the connection after"), "{printed}");

    let (output, _) = server.run("verify", "");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(printed.contains("is redis-server running"), "{printed}");
}

#[test]
fn a_server_without_memory_is_an_error_and_no_corruption() {
    let server = Server::start();
    server.cli(&["config", "set", "maxmemory", "2mb"]);
    let (output, _) = server.run("load", "");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(printed.contains("OOM") && printed.contains("SET"), "{printed}");

    server.cli(&["config", "set", "maxmemory", "0"]);
    server.run("load", "");
    server.cli(&["config", "set", "maxmemory", "1"]);
    let (output, ran) = server.run("run", "--duration-ms 200 --write-share 0.5 --pipeline 64");
    assert_eq!(output.status.code(), Some(1));
    assert!(ran["errors"].as_u64().unwrap() > 0);
    assert_eq!(ran["wrong_values"], 0, "{ran}");
    assert!(ran["first_error"].as_str().unwrap().contains("OOM"));
}

/// The effect of a migration that loses writes: a whole value of its key, but not the latest.
#[test]
fn a_value_that_is_rolled_back_under_the_run_is_found_by_it() {
    let server = Server::start();
    server.run("load", "");
    let mut client = server
        .client("run", "--duration-ms 60000 --theta 4 --write-share 0.5 --operations-per-s 2000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let value = || server.cli(&["getrange", "key:0000000000", "0", "15"]);
    let wait_for_a_write = || {
        let before = value();
        let start = Instant::now();
        while value() == before {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing is written");
        }
    };
    let mut printed = std::io::BufReader::new(client.stderr.take().unwrap());
    let found = (0..50).any(|_| {
        wait_for_a_write();
        server.cli(&["copy", "key:0000000000", "old", "replace"]);
        wait_for_a_write();
        server.cli(&["copy", "old", "key:0000000000", "replace"]);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut printed, &mut line).unwrap();
        !line.contains(" 0 wrong values")
    });
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(found, "no stale value was found");
}
