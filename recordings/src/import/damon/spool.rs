//! Snapshots on disk, an anonymous file for each target, to be read again in order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

use super::{ImportError, MOST_TARGETS, Region, Snapshot};

/// A snapshot as it is read back.
pub(super) struct Spooled {
    pub(super) end_ns: u64,
    pub(super) regions: Vec<Region>,
}

struct Store {
    key: u64,
    file: BufWriter<File>,
    snapshots: u64,
    first_ns: u64,
    first_start_ns: Option<u64>,
    last_ns: u64,
}

/// The snapshots of all targets, in the order of their first snapshots.
pub(super) struct Spool {
    numbers: BTreeMap<u64, usize>,
    stores: Vec<Store>,
}

impl Spool {
    pub(super) fn new() -> Self {
        Spool { numbers: BTreeMap::new(), stores: Vec::new() }
    }

    /// Adds a snapshot; those of a target come in the order of time.
    pub(super) fn put(&mut self, target: u64, snapshot: &Snapshot) -> Result<(), String> {
        let number = match self.numbers.get(&target) {
            Some(number) => *number,
            None if self.stores.len() == MOST_TARGETS => {
                return Err(format!("more than {MOST_TARGETS} targets"));
            }
            None => {
                let file = tempfile::tempfile().map_err(|e| disk(&e))?;
                self.numbers.insert(target, self.stores.len());
                self.stores.push(Store {
                    key: target,
                    file: BufWriter::new(file),
                    snapshots: 0,
                    first_ns: snapshot.end_ns,
                    first_start_ns: snapshot.start_ns.filter(|start| *start < snapshot.end_ns),
                    last_ns: 0,
                });
                self.stores.len() - 1
            }
        };
        let store = &mut self.stores[number];
        if snapshot.end_ns < store.last_ns {
            return Err(format!(
                "a snapshot that ends at {} ns after one that ends at {} ns; expected them in the order of time",
                snapshot.end_ns, store.last_ns
            ));
        }
        store.last_ns = snapshot.end_ns;
        store.snapshots += 1;
        let mut put = || -> io::Result<()> {
            store.file.write_all(&snapshot.end_ns.to_le_bytes())?;
            store.file.write_all(&(snapshot.regions.len() as u64).to_le_bytes())?;
            for r in &snapshot.regions {
                for number in [r.start, r.end, r.accesses] {
                    store.file.write_all(&number.to_le_bytes())?;
                }
            }
            Ok(())
        };
        put().map_err(|e| disk(&e))
    }

    /// The targets' keys.
    pub(super) fn targets(&self) -> Vec<u64> {
        self.stores.iter().map(|s| s.key).collect()
    }

    /// The end of the first snapshot of all.
    pub(super) fn first_end_ns(&self) -> u64 {
        self.stores.iter().map(|s| s.first_ns).min().unwrap_or(0)
    }

    /// The mean time between snapshots of the first target that has several, or else the length of
    /// the first snapshot that has one.
    pub(super) fn interval_ns(&self) -> Option<u64> {
        let mean = |s: &Store| {
            let between = s.snapshots.checked_sub(1).filter(|n| *n > 0)?;
            Some((s.last_ns - s.first_ns) / between).filter(|ns| *ns > 0)
        };
        let length = |s: &Store| Some(s.first_ns - s.first_start_ns?);
        self.stores.iter().find_map(mean).or_else(|| self.stores.iter().find_map(length))
    }

    /// All of them from the start.
    pub(super) fn rewind(&mut self) -> Result<Vec<SpoolReader>, ImportError> {
        std::mem::take(&mut self.stores).into_iter().map(|s| reader(s).map_err(failed)).collect()
    }
}

fn reader(store: Store) -> io::Result<SpoolReader> {
    let mut file = store.file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(SpoolReader { file: BufReader::new(file), left: store.snapshots })
}

/// Reads the snapshots of one target.
pub(super) struct SpoolReader {
    file: BufReader<File>,
    left: u64,
}

impl SpoolReader {
    pub(super) fn next(&mut self) -> Result<Option<Spooled>, ImportError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let mut number = || -> io::Result<u64> {
            let mut bytes = [0; 8];
            self.file.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let mut take = || {
            let (end_ns, count) = (number()?, number()?);
            let mut regions = Vec::new();
            for _ in 0..count {
                regions.push(Region { start: number()?, end: number()?, accesses: number()? });
            }
            Ok(Spooled { end_ns, regions })
        };
        take().map(Some).map_err(failed)
    }
}

fn disk(error: &io::Error) -> String {
    format!("cannot keep snapshots in {}: {error}", std::env::temp_dir().display())
}

fn failed(error: io::Error) -> ImportError {
    ImportError::Option(disk(&error))
}
