//! Fills a server: every key once, in order, so that neighbours in number are neighbours in memory.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ClientError;
use super::connection::{Address, Connection};
use super::resp::{Reply, argument, argument_with, command};
use super::value::{MAX_KEYS, MIN_VALUE_BYTES, append, name};
use crate::field::field;

/// The store's parameters for all three phases.
#[derive(Debug, Clone)]
pub struct Store {
    /// The server's address.
    pub server: Address,
    /// Number of keys.
    pub keys: u64,
    /// Length of every value.
    pub value_bytes: usize,
    /// Commands in flight on a connection.
    pub pipeline: usize,
    /// Longest wait for a reply.
    pub timeout: Duration,
}

impl Store {
    /// Checks the numbers and connects.
    pub fn open(&self) -> Result<Connection, ClientError> {
        let bad = |what: String| Err(ClientError::BadParameter(what));
        if !(1..=MAX_KEYS).contains(&self.keys) {
            return bad(format!("{} keys: expected 1 to {MAX_KEYS}", self.keys));
        }
        if !(MIN_VALUE_BYTES..=64 << 20).contains(&self.value_bytes) {
            return bad(format!(
                "values of {} bytes: expected {MIN_VALUE_BYTES} to {}",
                self.value_bytes,
                64 << 20
            ));
        }
        if !(1..=1 << 16).contains(&self.pipeline) {
            return bad(format!("pipeline {}: expected 1 to {}", self.pipeline, 1 << 16));
        }
        Connection::open(&self.server, self.timeout)
    }
}

/// Loads the store. `progress` gets the number of commands answered so far, about once a second.
///
/// With `keys_first` all keys are set to nothing before the first gets its value. The server's
/// entries are then together, in a few pages that every operation touches, instead of between the
/// values: a lookup also reads the entries of unrelated keys that have the same hash, and would
/// touch a page among the values for each.
pub fn load(
    store: &Store,
    keys_first: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Value, ClientError> {
    let mut connection = store.open()?;
    let start = Instant::now();
    let mut loading = Loading { reported: start, answered: 0, progress };
    if keys_first {
        loading.pass(&mut connection, store, 0, |_, _| {})?;
    }
    loading.pass(&mut connection, store, store.value_bytes, |out, key| {
        append(out, key, 0, store.value_bytes);
    })?;
    let duration = start.elapsed();
    let memory = Memory::of(&mut connection)?;
    Ok(json!({
        "event": "result",
        "operations": store.keys,
        "operations_per_s": store.keys as f64 / duration.as_secs_f64().max(1e-3),
        "duration_ms": duration.as_millis() as u64,
        "value_bytes": store.value_bytes,
        "used_memory_bytes": memory.used_bytes,
        "resident_bytes": memory.resident_bytes,
        "huge_bytes": memory.huge_bytes,
    }))
}

struct Loading<'a> {
    reported: Instant,
    answered: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Loading<'_> {
    /// Sets every key to the `size_bytes` bytes that `fill` appends for it.
    fn pass(
        &mut self,
        connection: &mut Connection,
        store: &Store,
        size_bytes: usize,
        fill: impl Fn(&mut Vec<u8>, u64),
    ) -> Result<(), ClientError> {
        // Two batches in flight: the client makes one while the server reads the other.
        let batch = (store.pipeline / 2).max(1) as u64;
        let (mut sent, mut set) = (0, 0);
        while set < store.keys {
            let next = (sent + batch).min(store.keys);
            for key in sent..next {
                command(&mut connection.out, 3);
                argument(&mut connection.out, b"SET");
                argument(&mut connection.out, &name(key));
                argument_with(&mut connection.out, size_bytes, |out| fill(out, key));
            }
            connection.send()?;
            // The last batch is waited for when there is no other to send.
            let due = if next == sent { next } else { sent };
            sent = next;
            for _ in set..due {
                set_answer(connection)?;
            }
            self.answered += due - set;
            set = due;
            if self.reported.elapsed() >= Duration::from_secs(1) {
                self.reported = Instant::now();
                (self.progress)(self.answered);
            }
        }
        Ok(())
    }
}

fn set_answer(connection: &mut Connection) -> Result<(), ClientError> {
    let server = connection.server().to_string();
    match connection.reply()? {
        Reply::Status(_) => Ok(()),
        Reply::Error(text) => Err(ClientError::Refused {
            server,
            command: "SET",
            answer: String::from_utf8_lossy(text).into(),
        }),
        other => Err(ClientError::Protocol { server, what: format!("{other:?} to SET") }),
    }
}

/// The server's report on its memory.
struct Memory {
    used_bytes: Option<u64>,
    resident_bytes: Option<u64>,
    /// Resident bytes in huge pages, when the server runs on this machine.
    huge_bytes: Option<u64>,
}

impl Memory {
    fn of(connection: &mut Connection) -> Result<Memory, ClientError> {
        let info = connection.ask("INFO", &["memory"])?;
        let server = connection.ask("INFO", &["server"])?;
        let local = matches!(connection.server(), Address::Unix(_));
        let huge_bytes = field(&server, "process_id")
            .filter(|_| local)
            .and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok())
            .and_then(|text| field(&text, "AnonHugePages"))
            .map(|kb| kb << 10);
        Ok(Memory {
            used_bytes: field(&info, "used_memory"),
            resident_bytes: field(&info, "used_memory_rss"),
            huge_bytes,
        })
    }
}
