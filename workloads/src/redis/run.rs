//! The load itself: rounds of pipelined operations, at a set rate or as fast as they are answered,
//! every returned value checked.
//!
//! One thread serves all connections, so that the client costs one processor at most and the
//! sequence of operations does not depend on their number. Operations on one key go over one
//! connection; their order is therefore the server's order, and the right answer to every read is
//! known.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::ClientError;
use super::connection::Connection;
use super::load::Store;
use super::popularity::{Mix, Operation, OperationKind, Sequence};
use super::resp::{Reply, argument, argument_with, command};
use super::value::{Versions, append, name, version};

/// How values are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum WriteWith {
    /// `SET`: the server allocates the new value before it frees the old one, so that written
    /// values change places in memory.
    Set,
    /// `SETRANGE` over the whole value: the server writes in place.
    Setrange,
}

/// Parameters of the run besides the store.
#[derive(Debug, Clone)]
pub struct Load {
    /// The operations.
    pub mix: Mix,
    /// How values are replaced.
    pub write_with: WriteWith,
    /// Operations per second, or as many as are answered.
    pub operations_per_s: Option<f64>,
    /// Length of the run.
    pub duration: Duration,
    /// Number of connections.
    pub connections: usize,
    /// Path for the versions of all keys, for [`super::verify::verify`].
    pub versions: Option<PathBuf>,
    /// What says from when to when it is measured; nothing where all of it is.
    pub marks: Option<Marks>,
}

/// Says when what is measured begins, and then when the run ends.
#[derive(Debug, Clone)]
pub struct Marks {
    raised: Arc<AtomicBool>,
    /// Called as soon as the time that is measured is over.
    over: fn(),
}

impl Marks {
    /// SIGUSR1. `over` is called as soon as the time that is measured is over, before anything else is
    /// done: whoever measures beside it waits for that.
    pub fn on_signal(over: fn()) -> std::io::Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&raised))?;
        Ok(Marks { raised, over })
    }

    /// Whether there was a mark since the last call.
    fn next(&self) -> bool {
        self.raised.swap(false, Ordering::Relaxed)
    }
}

/// Counts so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Time since the start.
    pub elapsed_ms: u64,
    /// Operations answered.
    pub operations: u64,
    /// Values that were wrong, and keys that were gone.
    pub wrong_values: u64,
    /// Error replies.
    pub errors: u64,
}

/// Runs the load. `progress` is called about once a second. Returns the result and whether all
/// was right.
pub fn run(
    store: &Store,
    load: &Load,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Value, bool), ClientError> {
    let bad = |what: String| Err(ClientError::BadParameter(what));
    if !(1..=1024).contains(&load.connections) {
        return bad(format!("{} connections: expected 1 to 1024", load.connections));
    }
    if load.operations_per_s.is_some_and(|rate| !(rate > 0.0 && rate <= 1e9)) {
        return bad("operations per second: expected more than 0 and at most 1e9".into());
    }
    let mut sequence = Sequence::new(load.mix.clone())?;
    let connections: Result<Vec<_>, _> = (0..load.connections).map(|_| store.open()).collect();
    let mut client = Client {
        store,
        load,
        connections: connections?,
        pending: vec![Vec::new(); load.connections],
        versions: Versions::unknown(store.keys),
        latency: histogram(),
        latency_from_due: histogram(),
        counts: Counts::default(),
    };

    let start = Instant::now();
    let mut measured = load.marks.is_none().then_some(Measured::default());
    let mut reported = start;
    // Operations at a set rate, and since when: what an emulator in a hurry could not answer before the
    // first mark is not due behind it.
    let (mut issued, mut since) = (0u64, Duration::ZERO);
    // In a round every connection gets one pipeline's worth on average. At a set rate a round
    // is due when its first operation is, and there are at least fifty of them a second.
    let full_round = (store.pipeline * load.connections) as u64;
    let round = match load.operations_per_s {
        Some(rate) => full_round.min((rate / 50.0) as u64).max(1),
        None => full_round,
    };
    let all = loop {
        let mut due = match load.operations_per_s {
            Some(rate) => since + Duration::from_secs_f64(issued as f64 / rate),
            None => start.elapsed(),
        };
        std::thread::sleep(due.min(load.duration).saturating_sub(start.elapsed()));
        if start.elapsed() >= load.duration {
            break start.elapsed();
        }
        if let Some(marks) = load.marks.as_ref().filter(|marks| marks.next()) {
            if measured.is_some() {
                let all = start.elapsed();
                (marks.over)();
                break all;
            }
            (client.latency, client.latency_from_due) = (histogram(), histogram());
            (issued, since) = (0, start.elapsed());
            due = since;
            measured = Some(Measured { from: since, before: client.counts.operations() });
        }
        for _ in 0..round {
            client.queue(sequence.next(due.as_millis() as u64), due);
        }
        issued += round;
        client.exchange(start)?;
        if reported.elapsed() >= Duration::from_secs(1) {
            reported = Instant::now();
            progress(client.counts.progress(start.elapsed()));
        }
    };
    if let Some(path) = &load.versions {
        client.versions.save(path)?;
    }
    Ok(client.result(measured, all))
}

/// What of a run is measured: from when on, after how many operations.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    from: Duration,
    before: u64,
}

/// From a microsecond to an hour, in three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are in order")
}

fn quantiles(latency: &Histogram<u64>) -> Value {
    json!({ "p50": latency.value_at_quantile(0.5), "p99": latency.value_at_quantile(0.99) })
}

/// Counts and latencies of answers.
#[derive(Default)]
struct Counts {
    reads: u64,
    writes: u64,
    sweep_reads: u64,
    errors: u64,
    wrong_values: u64,
    missing: u64,
    first_error: Option<String>,
}

impl Counts {
    fn operations(&self) -> u64 {
        self.reads + self.writes + self.sweep_reads
    }

    fn progress(&self, elapsed: Duration) -> Progress {
        Progress {
            elapsed_ms: elapsed.as_millis() as u64,
            operations: self.operations(),
            wrong_values: self.wrong_values + self.missing,
            errors: self.errors,
        }
    }
}

/// An operation that was sent.
#[derive(Debug, Clone, Copy)]
struct Pending {
    operation: Operation,
    due: Duration,
    /// The version that a read must return, if it is known. The commands before it on the same
    /// connection, and no others, decide that, so it is known when the command is queued.
    expected: Option<u64>,
}

struct Client<'a> {
    store: &'a Store,
    load: &'a Load,
    connections: Vec<Connection>,
    pending: Vec<Vec<Pending>>,
    versions: Versions,
    latency: Histogram<u64>,
    latency_from_due: Histogram<u64>,
    counts: Counts,
}

impl Client<'_> {
    /// The result, and whether all was right.
    fn result(&self, measured: Option<Measured>, all: Duration) -> (Value, bool) {
        let c = &self.counts;
        let right = c.wrong_values == 0 && c.missing == 0 && c.errors == 0;
        let unmeasured = Measured { from: all, before: c.operations() };
        let Measured { from, before } = measured.unwrap_or(unmeasured);
        let (duration, operations) = (all - from, c.operations() - before);
        let mut result = json!({
            "event": "result",
            "operations": operations,
            "operations_per_s": operations as f64 / duration.as_secs_f64().max(1e-3),
            "duration_ms": duration.as_nanos() as f64 / 1e6,
            "reads": c.reads,
            "writes": c.writes,
            "sweep_reads": c.sweep_reads,
            "errors": c.errors,
            "wrong_values": c.wrong_values,
            "missing": c.missing,
            "checksum_ok": c.wrong_values == 0 && c.missing == 0,
            "latency_us": quantiles(&self.latency),
        });
        if self.load.marks.is_some() {
            result["unmeasured_operations"] = json!(before);
        }
        if self.load.operations_per_s.is_some() {
            result["latency_from_due_us"] = quantiles(&self.latency_from_due);
        }
        if let Some(error) = &c.first_error {
            result["first_error"] = json!(error);
        }
        (result, right)
    }

    fn queue(&mut self, operation: Operation, due: Duration) {
        let lane = (operation.key % self.connections.len() as u64) as usize;
        let out = &mut self.connections[lane].out;
        let name = name(operation.key);
        let size = self.store.value_bytes;
        let expected = self.versions.expected(operation.key);
        match operation.kind {
            OperationKind::Read | OperationKind::Sweep => {
                command(out, 2);
                argument(out, b"GET");
                argument(out, &name);
            }
            OperationKind::Write => {
                let written = self.versions.next(operation.key);
                match self.load.write_with {
                    WriteWith::Set => {
                        command(out, 3);
                        argument(out, b"SET");
                        argument(out, &name);
                    }
                    WriteWith::Setrange => {
                        command(out, 4);
                        argument(out, b"SETRANGE");
                        argument(out, &name);
                        argument(out, b"0");
                    }
                }
                argument_with(out, size, |out| append(out, operation.key, written, size));
            }
        }
        self.pending[lane].push(Pending { operation, due, expected });
    }

    /// Sends everything queued and reads every answer.
    fn exchange(&mut self, start: Instant) -> Result<(), ClientError> {
        let sent = start.elapsed();
        for connection in &mut self.connections {
            if !connection.out.is_empty() {
                connection.send()?;
            }
        }
        let size = self.store.value_bytes;
        let c = &mut self.counts;
        for (connection, pending) in self.connections.iter_mut().zip(&mut self.pending) {
            // Keys whose writes failed in this round: whether they have the old value or the new
            // one is not known, and no read of them counts as wrong.
            let mut doubtful = Vec::new();
            for Pending { operation, due, expected } in pending.drain(..) {
                let key = operation.key;
                let writes = operation.kind == OperationKind::Write;
                match (connection.reply()?, writes) {
                    (Reply::Bulk(bytes), false) => match version(bytes, key, size) {
                        None => c.wrong_values += 1,
                        Some(_) if doubtful.contains(&key) => {}
                        Some(version) => {
                            c.wrong_values += u64::from(expected.is_some_and(|e| e != version));
                            self.versions.learn(key, version);
                        }
                    },
                    (Reply::Nil, false) => c.missing += 1,
                    (Reply::Status(_) | Reply::Integer(_), true) => {}
                    (other, _) => {
                        c.errors += 1;
                        c.first_error.get_or_insert_with(|| match other {
                            Reply::Error(text) => String::from_utf8_lossy(text).into_owned(),
                            other => format!("{other:?}"),
                        });
                        if writes {
                            self.versions.forget(key);
                            doubtful.push(key);
                        }
                    }
                }
                match operation.kind {
                    OperationKind::Read => c.reads += 1,
                    OperationKind::Write => c.writes += 1,
                    OperationKind::Sweep => c.sweep_reads += 1,
                }
                let now = start.elapsed();
                let us = |d: Duration| d.as_micros() as u64;
                self.latency.saturating_record(us(now.saturating_sub(sent)));
                self.latency_from_due.saturating_record(us(now.saturating_sub(due)));
            }
        }
        Ok(())
    }
}
