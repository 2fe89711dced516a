//! Reads every key and checks every byte.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ClientError;
use super::load::Store;
use super::resp::{Reply, argument, command};
use super::value::{Versions, name, version};

/// Verifies the store: every value whole and of its key and, given the versions file of a run,
/// the latest. `progress` gets the number of keys read so far, about once a second. Returns the
/// result and whether all was right.
pub fn verify(
    store: &Store,
    versions: Option<&Path>,
    progress: &mut dyn FnMut(u64),
) -> Result<(Value, bool), ClientError> {
    let mut connection = store.open()?;
    let versions = match versions {
        Some(path) => Versions::load(path, store.keys)?,
        None => Versions::unknown(store.keys),
    };
    let start = Instant::now();
    let mut reported = start;
    let (mut missing, mut wrong_values, mut stale_values, mut errors) = (0u64, 0u64, 0u64, 0u64);
    let mut wrong_keys: Vec<u64> = Vec::new();
    for first in (0..store.keys).step_by(store.pipeline) {
        let batch = first..(first + store.pipeline as u64).min(store.keys);
        for key in batch.clone() {
            command(&mut connection.out, 2);
            argument(&mut connection.out, b"GET");
            argument(&mut connection.out, &name(key));
        }
        connection.send()?;
        for key in batch {
            let fault = match connection.reply()? {
                Reply::Bulk(bytes) => match version(bytes, key, store.value_bytes) {
                    Some(version) if versions.expected(key).is_none_or(|v| v == version) => {
                        continue;
                    }
                    Some(_) => &mut stale_values,
                    None => &mut wrong_values,
                },
                Reply::Nil => &mut missing,
                _ => &mut errors,
            };
            *fault += 1;
            if wrong_keys.len() < 10 {
                wrong_keys.push(key);
            }
        }
        if reported.elapsed() >= Duration::from_secs(1) {
            reported = Instant::now();
            progress(first);
        }
    }
    let duration = start.elapsed();
    let checksum_ok = wrong_keys.is_empty();
    let result = json!({
        "event": "result",
        "operations": store.keys,
        "operations_per_s": store.keys as f64 / duration.as_secs_f64().max(1e-3),
        "duration_ms": duration.as_millis() as u64,
        "missing": missing,
        "wrong_values": wrong_values,
        "stale_values": stale_values,
        "errors": errors,
        "first_wrong_keys": wrong_keys,
        "checksum_ok": checksum_ok,
    });
    Ok((result, checksum_ok))
}
