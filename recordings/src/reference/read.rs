//! Reading a reference recording: block by block, or all streams merged in the order of time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::ops::ControlFlow;
use std::path::Path;

use super::block::Decoder;
use super::write::BlockHead;
use super::{
    CONTENT, CONTENT_VERSION, ENDING, Ending, Header, LIST, MAPS, MapSnapshot, OLDEST_VERSION,
    PROCESS, Placed, Process, REFERENCES, Record, Reference, parse_maps,
};
use crate::codec::{Cursor, Malformed};
use crate::container::{Chunk, ContainerReader, IndexEntry, Truncation, open};
use crate::error::RecordingError;

/// Place and start of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockEntry {
    /// Offset in the file, in bytes.
    pub at: IndexEntry,
    /// Number of its stream.
    pub stream: u32,
    /// The time at which it begins.
    pub time: u64,
    /// References in it.
    pub references: u64,
}

/// Loads and stores of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessReferences {
    /// Number of the process.
    pub process: u32,
    /// How many there are.
    pub references: u64,
    /// The streams that made them, by their numbers.
    pub streams: Vec<u32>,
}

/// Reads a reference recording.
#[derive(Debug)]
pub struct ReferenceReader<R> {
    container: ContainerReader<R>,
    header: Header,
    blocks: Vec<BlockEntry>,
    maps: Vec<MapSnapshot>,
    processes: Vec<Process>,
    ending: Option<Ending>,
    truncation: Option<Truncation>,
}

impl ReferenceReader<BufReader<File>> {
    /// Opens a recording.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let (file, name) = open(path, 1 << 16)?;
        Self::new(file, &name)
    }
}

impl<R: Read + Seek> ReferenceReader<R> {
    /// Reads a recording from any stream; `name` is for error messages. A recording that was
    /// cut off is read through once to find its blocks.
    pub fn new(from: R, name: &str) -> Result<Self, RecordingError> {
        let (container, header) =
            ContainerReader::of_versions(from, name, CONTENT, OLDEST_VERSION..=CONTENT_VERSION)?;
        let mut reader = ReferenceReader {
            container,
            header,
            blocks: Vec::new(),
            maps: Vec::new(),
            processes: Vec::new(),
            ending: None,
            truncation: None,
        };
        match reader.container.index()? {
            Some(index) => reader.read_list(index)?,
            None => reader.scan()?,
        }
        Ok(reader)
    }

    /// The header of the recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where it was cut off, if it was.
    pub fn truncation(&self) -> Option<&Truncation> {
        self.truncation.as_ref()
    }

    /// How it ended, where the writer recorded that.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// Its blocks in file order.
    pub fn blocks(&self) -> &[BlockEntry] {
        &self.blocks
    }

    /// The maps of its processes, in file order: at least one at the start, one at the end.
    pub fn maps(&self) -> &[MapSnapshot] {
        &self.maps
    }

    /// The processes of the recording.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// References in all blocks.
    pub fn references(&self) -> u64 {
        self.blocks.iter().fold(0, |sum, b| sum.saturating_add(b.references))
    }

    /// The processes that made references, by their numbers. The counts are those of the blocks: of
    /// each stream one block is read, and no record is decoded.
    pub fn by_process(&mut self) -> Result<Vec<ProcessReferences>, RecordingError> {
        let mut streams: BTreeMap<u32, (BlockEntry, u64)> = BTreeMap::new();
        for block in self.blocks.iter().filter(|block| block.references > 0) {
            let (_, references) = streams.entry(block.stream).or_insert((*block, 0));
            *references = references.saturating_add(block.references);
        }
        let mut processes: BTreeMap<u32, ProcessReferences> = BTreeMap::new();
        for (stream, (block, references)) in streams {
            let process = self.block(&block)?.head.process;
            let all = processes.entry(process).or_insert_with(|| ProcessReferences {
                process,
                references: 0,
                streams: Vec::new(),
            });
            all.references = all.references.saturating_add(references);
            all.streams.push(stream);
        }
        Ok(processes.into_values().collect())
    }

    /// The process with most references, the first of those with as many. The others of a recording
    /// are such as the shell that started it.
    pub fn largest_process(&mut self) -> Result<Option<ProcessReferences>, RecordingError> {
        let largest = |p: &ProcessReferences| (p.references, Reverse(p.process));
        Ok(self.by_process()?.into_iter().max_by_key(largest))
    }

    /// All records from this time on, streams merged by time (equal times by stream). The same
    /// recording gives the same order. Memory: one block per stream that is under way.
    pub fn records_from(&mut self, time: u64) -> References<'_, R> {
        let mut streams: BTreeMap<u32, VecDeque<BlockEntry>> = BTreeMap::new();
        for block in &self.blocks {
            streams.entry(block.stream).or_default().push_back(*block);
        }
        let mut heads = BinaryHeap::new();
        for (stream, blocks) in &mut streams {
            // The last block that begins before `time` may reach beyond it.
            while blocks.get(1).is_some_and(|next| next.time < time) {
                blocks.pop_front();
            }
            if let Some(block) = blocks.front() {
                heads.push(Reverse((block.time, *stream)));
            }
        }
        References {
            reader: self,
            from: time,
            streams,
            heads,
            open: BTreeMap::new(),
            current: None,
            failed: false,
        }
    }

    /// All records.
    pub fn records(&mut self) -> References<'_, R> {
        self.records_from(0)
    }

    fn damaged(&self, offset: u64, malformed: Malformed) -> RecordingError {
        RecordingError::Damaged {
            file: self.container.name().to_owned(),
            offset,
            message: malformed.0,
        }
    }

    /// Reads the blocks from the list at the end, and the few other chunks.
    fn read_list(&mut self, index: Vec<IndexEntry>) -> Result<(), RecordingError> {
        let mut listed = Vec::new();
        for entry in index.iter().filter(|e| e.kind != REFERENCES) {
            self.container.seek(entry)?;
            let Some(chunk) = self.container.next_chunk()? else { continue };
            if chunk.kind == LIST {
                let most = index.iter().filter(|e| e.kind == REFERENCES).count();
                listed =
                    parse_list(&chunk.payload, most).map_err(|m| self.damaged(chunk.offset, m))?;
            } else {
                self.other(chunk)?;
            }
        }
        for (number, stream, time, references) in listed {
            let at = usize::try_from(number).ok().and_then(|n| index.get(n)).copied();
            let Some(at) = at.filter(|e| e.kind == REFERENCES) else {
                let message = format!("the list names chunk {number}, which is no block");
                return Err(self.damaged(0, Malformed(message)));
            };
            self.blocks.push(BlockEntry { at, stream, time, references });
        }
        Ok(())
    }

    /// Finds the blocks by reading all chunks.
    fn scan(&mut self) -> Result<(), RecordingError> {
        let mut number = 0;
        while let Some(chunk) = self.container.next_chunk()? {
            if chunk.kind == REFERENCES {
                let at = IndexEntry { offset: chunk.offset, kind: chunk.kind, key: number };
                let (head, _) =
                    block_head(&chunk.payload).map_err(|m| self.damaged(chunk.offset, m))?;
                let BlockHead { stream, time, references, .. } = head;
                self.blocks.push(BlockEntry { at, stream, time, references });
            } else if chunk.kind != LIST {
                self.other(chunk)?;
            }
            number += 1;
        }
        self.truncation = self.container.truncation().cloned();
        Ok(())
    }

    fn other(&mut self, chunk: Chunk) -> Result<(), RecordingError> {
        let offset = chunk.offset;
        if chunk.kind == MAPS {
            let snapshot = maps(&chunk.payload).map_err(|m| self.damaged(offset, m))?;
            self.maps.push(snapshot);
        } else if chunk.kind == PROCESS {
            let process = serde_json::from_slice(&chunk.payload)
                .map_err(|e| self.damaged(offset, Malformed(format!("a process: {e}"))))?;
            self.processes.push(process);
        } else if chunk.kind == ENDING {
            let ending = serde_json::from_slice(&chunk.payload)
                .map_err(|e| self.damaged(offset, Malformed(format!("its ending: {e}"))))?;
            self.ending = Some(ending);
        }
        Ok(())
    }

    fn block(&mut self, entry: &BlockEntry) -> Result<OpenBlock, RecordingError> {
        self.container.seek(&entry.at)?;
        let offset = entry.at.offset;
        let chunk = self.container.next_chunk()?.filter(|c| c.kind == REFERENCES);
        let payload = chunk
            .ok_or_else(|| self.damaged(offset, Malformed("no block where one was".to_owned())))?
            .payload;
        let (head, at) = block_head(&payload).map_err(|m| self.damaged(offset, m))?;
        let decoder = Decoder::new(payload, at, head.time, head.instructions);
        let mut open = OpenBlock { head, offset, decoder, next: None };
        open.advance().map_err(|m| self.damaged(offset, m))?;
        Ok(open)
    }
}

type Listed = (u64, u32, u64, u64);

/// The list of blocks, at most as many as there are.
fn parse_list(payload: &[u8], most: usize) -> Result<Vec<Listed>, Malformed> {
    let mut from = Cursor::new(payload);
    let mut listed = Vec::new();
    while from.remaining() > 0 {
        if listed.len() == most {
            return Err(Malformed(format!("the list has more entries than {most} blocks")));
        }
        let number = from.number()?;
        let stream = from.number_below(1 << 32, "stream")? as u32;
        listed.push((number, stream, from.number()?, from.number()?));
    }
    Ok(listed)
}

fn block_head(payload: &[u8]) -> Result<(BlockHead, usize), Malformed> {
    let mut from = Cursor::new(payload);
    let head = BlockHead {
        stream: from.number_below(1 << 32, "stream")? as u32,
        process: from.number_below(1 << 32, "process")? as u32,
        time: from.number()?,
        instructions: from.number()?,
        references: from.number()?,
    };
    Ok((head, payload.len() - from.remaining()))
}

fn maps(payload: &[u8]) -> Result<MapSnapshot, Malformed> {
    let mut from = Cursor::new(payload);
    let process = from.number_below(1 << 32, "process")? as u32;
    let time = from.number()?;
    let text = String::from_utf8_lossy(&payload[payload.len() - from.remaining()..]);
    Ok(MapSnapshot { process, time, regions: parse_maps(&text) })
}

#[derive(Debug)]
struct OpenBlock {
    head: BlockHead,
    offset: u64,
    decoder: Decoder,
    next: Option<(u64, u64, Record)>,
}

impl OpenBlock {
    #[inline]
    fn advance(&mut self) -> Result<(), Malformed> {
        self.next = self.decoder.next()?;
        Ok(())
    }
}

/// Receives records, see [`References::visit`].
pub trait Visitor {
    /// A reference of this stream and process, with the number of instructions executed before.
    fn reference(
        &mut self,
        stream: u32,
        process: u32,
        instructions: u64,
        reference: Reference,
    ) -> ControlFlow<()>;

    /// A record that is no reference.
    fn other(&mut self, placed: Placed) -> ControlFlow<()>;
}

fn given(visitor: &mut impl Visitor, placed: Placed) -> ControlFlow<()> {
    match placed.record {
        Record::Reference(reference) => {
            visitor.reference(placed.stream, placed.process, placed.instructions, reference)
        }
        _ => visitor.other(placed),
    }
}

/// The records of all streams in the order of time. After an error there is no next.
#[derive(Debug)]
pub struct References<'a, R> {
    reader: &'a mut ReferenceReader<R>,
    from: u64,
    streams: BTreeMap<u32, VecDeque<BlockEntry>>,
    /// For each stream with records left, the time of its next one, or of its next block.
    heads: BinaryHeap<Reverse<(u64, u32)>>,
    /// Blocks under way, except that of the current stream.
    open: BTreeMap<u32, OpenBlock>,
    /// The current stream: its records need no comparison with the others until one of theirs is
    /// earlier.
    current: Option<(u32, OpenBlock)>,
    failed: bool,
}

impl<R: Read + Seek> References<'_, R> {
    #[inline]
    fn take(&mut self) -> Result<Option<Placed>, RecordingError> {
        loop {
            let Some((stream, open)) = &mut self.current else {
                if !self.choose()? {
                    return Ok(None);
                }
                continue;
            };
            let Some((time, instructions, record)) = open.next else {
                let stream = *stream;
                self.current = None;
                if let Some(next) = self.streams.get(&stream).and_then(VecDeque::front) {
                    self.heads.push(Reverse((next.time, stream)));
                }
                continue;
            };
            if self.heads.peek().is_some_and(|Reverse(head)| *head < (time, *stream)) {
                if let Some((stream, open)) = self.current.take() {
                    self.heads.push(Reverse((time, stream)));
                    self.open.insert(stream, open);
                }
                continue;
            }
            let (stream, process) = (*stream, open.head.process);
            if let Err(malformed) = open.advance() {
                let offset = open.offset;
                return Err(self.reader.damaged(offset, malformed));
            }
            if time >= self.from {
                return Ok(Some(Placed { stream, process, time, instructions, record }));
            }
        }
    }

    /// Passes all remaining records to a visitor, up to the one at which it breaks: the same as the
    /// iterator, in the same order, but faster, because a stream's references need no comparison
    /// with the others while they are earlier. Of a damaged block the visitor may get one record
    /// more.
    #[inline]
    pub fn visit(&mut self, visitor: &mut impl Visitor) -> Result<(), RecordingError> {
        while !self.failed {
            let upto = self.heads.peek().map_or((u64::MAX, u32::MAX), |Reverse(head)| *head);
            if let Some((stream, open)) = &mut self.current
                && let Some((time, instructions, record)) = open.next
                && (time, *stream) <= upto
            {
                let (stream, process) = (*stream, open.head.process);
                let mut flow = ControlFlow::Continue(());
                if time >= self.from {
                    flow = given(visitor, Placed { stream, process, time, instructions, record });
                }
                while flow.is_continue()
                    && let Some((time, instructions, reference)) =
                        open.decoder.short_reference(upto.0)
                {
                    if time >= self.from {
                        flow = visitor.reference(stream, process, instructions, reference);
                    }
                }
                if let Err(malformed) = open.advance() {
                    self.failed = true;
                    let offset = open.offset;
                    return Err(self.reader.damaged(offset, malformed));
                }
                if flow.is_break() {
                    return Ok(());
                }
                continue;
            }
            // The turn of another stream, or of the next block.
            match self.take() {
                Ok(None) => return Ok(()),
                Ok(Some(placed)) => {
                    if given(visitor, placed).is_break() {
                        return Ok(());
                    }
                }
                Err(error) => {
                    self.failed = true;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Switches to the stream whose next record is the earliest; false when there is none.
    #[cold]
    fn choose(&mut self) -> Result<bool, RecordingError> {
        while let Some(Reverse((_, stream))) = self.heads.pop() {
            let open = match self.open.remove(&stream) {
                Some(open) => open,
                None => match self.streams.get_mut(&stream).and_then(VecDeque::pop_front) {
                    Some(entry) => self.reader.block(&entry)?,
                    None => continue,
                },
            };
            self.current = Some((stream, open));
            return Ok(true);
        }
        Ok(false)
    }
}

impl<R: Read + Seek> Iterator for References<'_, R> {
    type Item = Result<Placed, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let taken = self.take();
        self.failed = taken.is_err();
        taken.transpose()
    }
}
