//! A reference recording as a node's instructions: one process of it, thread by thread. Other
//! processes have the same addresses for other memory.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};

use terrace_hardware::error::ConfigError;
use terrace_recordings::error::RecordingError;
use terrace_recordings::reference::{Header, Level, Placed, Reference, ReferenceReader, Visitor};

use super::{Item, Source, WorkloadConfig, bad};

/// References that are handed over together.
const BLOCK: usize = 4096;

/// Reads a recording on a thread of its own, which waits when it is some blocks ahead.
pub(super) fn open(config: &WorkloadConfig, file: &Path) -> Result<Source, ConfigError> {
    let mut reader = ReferenceReader::open(file).map_err(|e| bad(config, e))?;
    check(reader.header()).map_err(|what| bad(config, format!("{}: {what}", file.display())))?;
    let Some(largest) = reader.largest_process().map_err(|e| bad(config, e))? else {
        return Err(bad(
            config,
            format!("{}: no references; expected a program that used memory", file.display()),
        ));
    };
    // Threads are numbered as their streams are.
    let (process, streams) = (largest.process, largest.streams.into_iter().zip(0..).collect());
    let (sender, receiver) = sync_channel(64);
    let thread = std::thread::spawn(move || {
        let mut player =
            Player { process, streams, sender, last: BTreeMap::new(), block: Vec::new() };
        reader.records().visit(&mut player).map_err(|e: RecordingError| e.to_string())?;
        // Where nobody takes it, nobody waits for it.
        let _ = player.sender.send(player.block);
        Ok(())
    });
    Ok(Source::Recording(receiver, Some(thread)))
}

/// Refuses a recording of a part of the references: the node's caches would see too few.
fn check(header: &Header) -> Result<(), String> {
    let filter = &header.filter;
    let again = "expected every reference: record again with 'terrace record --level none --out FILE -- \
         COMMAND'";
    if filter.level != Level::None || filter.sample_one_in > 1 {
        let (level, one_in) = (filter.level.name(), filter.sample_one_in);
        return Err(format!("taken after cache '{level}', one in {one_in}; {again}"));
    }
    if !header.counts_instructions() {
        return Err(format!("samples, without numbers of instructions; {again}"));
    }
    Ok(())
}

/// Sends the references of a process on, with the number of its thread each.
struct Player {
    process: u32,
    streams: BTreeMap<u32, u32>,
    sender: SyncSender<Vec<(u32, Item)>>,
    /// Instructions of each stream at its last reference.
    last: BTreeMap<u32, u64>,
    block: Vec<(u32, Item)>,
}

impl Visitor for Player {
    fn reference(
        &mut self,
        stream: u32,
        process: u32,
        instructions: u64,
        reference: Reference,
    ) -> ControlFlow<()> {
        if process != self.process {
            return ControlFlow::Continue(());
        }
        let Some(&thread) = self.streams.get(&stream) else { return ControlFlow::Continue(()) };
        let last = self.last.insert(stream, instructions).unwrap_or(instructions);
        let gap = instructions.saturating_sub(last).saturating_sub(1);
        let item = Item {
            address: reference.address,
            gap: gap.min(u64::from(u32::MAX)) as u32,
            size: reference.size_bytes() as u8,
            store: reference.store,
            dependent: false,
        };
        self.block.push((thread, item));
        if self.block.len() < BLOCK {
            return ControlFlow::Continue(());
        }
        let full = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK));
        match self.sender.send(full) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn other(&mut self, _placed: Placed) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use terrace_recordings::reference::{
        CacheShape, Filter, IN_NANOSECONDS, Process, ReferenceBuilder,
    };

    use super::*;
    use crate::stream::{Next, Stream};

    fn recorded(path: &Path, level: Level, sample_one_in: u64, executed_by: &str) {
        let shape = CacheShape { size_bytes: 32 << 10, ways: 8 };
        let filter =
            Filter { level, line_bytes: 64, l1: shape, l2: shape, llc: shape, sample_one_in };
        let header = Header {
            command: vec!["sh".to_owned()],
            filter,
            base_page_bytes: 4096,
            huge_page_bytes: 2 << 20,
            write_backs: false,
            created_by: "test".to_owned(),
            executed_by: executed_by.to_owned(),
        };
        let file = std::fs::File::create(path).unwrap();
        let mut builder = ReferenceBuilder::new(file, "r", &header).unwrap();
        // A shell, and the program with two threads that it begins, at the same addresses.
        for process in [0, 1] {
            builder.process(&Process { process, system_id: process, command: vec![] }).unwrap();
        }
        let mut refer = |stream, process, time, address| {
            let reference = Reference { address, size_log2: 3, store: false };
            builder.reference(stream, process, time, reference).unwrap();
        };
        (0..3).for_each(|n| refer(0, 0, 10 * n, 0));
        for n in 0..100 {
            refer(1, 1, 100 + 10 * n, 4096 + 64 * n);
            refer(3, 1, 100 + 5 * n, 1 << 20);
        }
        builder.finish(false).unwrap();
    }

    fn config(path: &Path) -> WorkloadConfig {
        WorkloadConfig {
            name: "r".into(),
            program: None,
            recording: Some(path.to_owned()),
            synthetic: None,
            footprint: None,
            dependent_loads: 0.0,
            compute: 1.0,
            region: None,
            options: Default::default(),
        }
    }

    #[test]
    fn the_process_with_most_references_is_played_thread_by_thread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.tref");
        recorded(&path, Level::None, 1, "test");
        let mut stream = Stream::new(&config(&path), 2, 1).unwrap();
        let mut played = [Vec::new(), Vec::new()];
        for (core, items) in played.iter_mut().enumerate() {
            while let Next::Item(item) = stream.next(core) {
                items.push((item.address, item.gap));
            }
        }
        assert_eq!(stream.problem(), None);
        let [first, second] = played;
        assert!(first.len() == 100 && first[0] == (4096, 0) && first[1] == (4160, 9), "{first:?}");
        assert!(second.len() == 100 && second[1..].iter().all(|i| *i == (1 << 20, 4)));
    }

    #[test]
    fn a_recording_of_a_part_of_the_references_is_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.tref");
        for (level, one_in, executed_by, what) in [
            (Level::Llc, 1, "test", "taken after cache 'llc', one in 1; expected every reference"),
            (Level::None, 8, "test", "taken after cache 'none', one in 8; expected every"),
            (Level::None, 1, IN_NANOSECONDS, "without numbers of instructions; expected every"),
        ] {
            recorded(&path, level, one_in, executed_by);
            let refused = config(&path).check(2).unwrap_err().to_string();
            assert!(refused.contains("r.tref") && refused.contains(what), "{refused}");
            assert!(!refused.contains('\n'), "{refused}");
        }
    }
}
