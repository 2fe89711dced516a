//! Records of sampled memory accesses, as Linux writes them into the ring of a perf event
//! (`PERF_RECORD_SAMPLE` and its like in include/uapi/linux/perf_event.h).
//!
//! A [`RecordReader`] takes them from a stream of bytes that may be cut anywhere: a ring, or a port
//! of a virtual machine. No stream makes it panic or keep more than a record. After an impossible
//! header the reader is out of step: bytes are skipped, and counted, until the next record with an
//! unambiguous header.

/// Fields of a sample that have a fixed size, in the order in which they are written.
const FIELDS: [u64; 17] = [
    IDENTIFIER,
    IP,
    TID,
    TIME,
    ADDR,
    ID,
    STREAM_ID,
    CPU,
    PERIOD,
    WEIGHT,
    WEIGHT_STRUCT,
    DATA_SRC,
    TRANSACTION,
    PHYS_ADDR,
    CGROUP,
    DATA_PAGE_SIZE,
    CODE_PAGE_SIZE,
];

/// `PERF_SAMPLE_IP`: address of the instruction.
pub const IP: u64 = 1 << 0;
/// `PERF_SAMPLE_TID`: process and thread.
pub const TID: u64 = 1 << 1;
/// `PERF_SAMPLE_TIME`.
pub const TIME: u64 = 1 << 2;
/// `PERF_SAMPLE_ADDR`: virtual address of the access.
pub const ADDR: u64 = 1 << 3;
/// `PERF_SAMPLE_PERIOD`: events for each sample.
pub const PERIOD: u64 = 1 << 8;
/// `PERF_SAMPLE_WEIGHT`: cost of the access.
pub const WEIGHT: u64 = 1 << 14;
/// `PERF_SAMPLE_DATA_SRC`: source of the data.
pub const DATA_SRC: u64 = 1 << 15;
/// `PERF_SAMPLE_PHYS_ADDR`: physical address of the access.
pub const PHYS_ADDR: u64 = 1 << 19;
const ID: u64 = 1 << 6;
const CPU: u64 = 1 << 7;
const STREAM_ID: u64 = 1 << 9;
const IDENTIFIER: u64 = 1 << 16;
const TRANSACTION: u64 = 1 << 17;
const CGROUP: u64 = 1 << 21;
const DATA_PAGE_SIZE: u64 = 1 << 22;
const CODE_PAGE_SIZE: u64 = 1 << 23;
const WEIGHT_STRUCT: u64 = 1 << 24;

/// Fields of samples of memory accesses in this project, from every source.
pub const SAMPLE_TYPE: u64 = IP | TID | TIME | ADDR | PERIOD | WEIGHT | DATA_SRC | PHYS_ADDR;

const HEADER_BYTES: usize = 8;
/// More than `sample_id` adds to a record.
const TRAILER_BYTES: usize = 64;

const LOST: u32 = 2;
const THROTTLE: u32 = 5;
const UNTHROTTLE: u32 = 6;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;
/// No kernel has records of a higher type.
const HIGHEST: u32 = 64;

/// `PERF_RECORD_MISC_KERNEL` and `_USER`, of the bits with the mode of the processor.
const MISC_MODE: u16 = 7;
const MISC_KERNEL: u16 = 1;
const MISC_USER: u16 = 2;
const MISC_GUEST_KERNEL: u16 = 4;
const MISC_GUEST_USER: u16 = 5;
/// `PERF_RECORD_MISC_EXACT_IP`, and above it those of other records.
const MISC_SAMPLE: u16 = MISC_MODE | 1 << 14;

/// The fields of a sample: `sample_type` of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleFormat {
    sample_type: u64,
}

impl SampleFormat {
    /// A format of fields of a fixed size; `None` if there are others.
    pub fn new(sample_type: u64) -> Option<Self> {
        let known = FIELDS.iter().fold(0, |all, field| all | field);
        (sample_type & !known == 0).then_some(SampleFormat { sample_type })
    }

    /// That of [`SAMPLE_TYPE`].
    pub const fn of_memory() -> Self {
        SampleFormat { sample_type: SAMPLE_TYPE }
    }

    /// `sample_type`.
    pub fn sample_type(self) -> u64 {
        self.sample_type
    }

    /// Size of a sample's record.
    pub fn record_bytes(self) -> usize {
        HEADER_BYTES + 8 * self.sample_type.count_ones() as usize
    }

    fn fields(self) -> impl Iterator<Item = u64> {
        FIELDS.into_iter().filter(move |field| self.sample_type & field != 0)
    }
}

/// Source of the data of a sampled access: `union perf_mem_data_src`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataSource(pub u64);

/// A kind of memory, seen from the processor that accesses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLevel {
    /// RAM of its own node.
    Local,
    /// RAM of another node, persistent memory, or memory behind CXL.
    Remote,
}

const OP_LOAD: u64 = 0x02;
const OP_STORE: u64 = 0x04;
const LEVEL: u32 = 5;
const LEVEL_HIT: u64 = 0x02;
const LEVEL_LOCAL_RAM: u64 = 0x80;
const LEVEL_REMOTE_RAM: u64 = 0x100;
const LEVEL_REMOTE_RAM_2: u64 = 0x200;
const SNOOP_NONE: u64 = 0x02 << 19;
const LOCK_NA: u64 = 0x01 << 24;
const TLB_NA: u64 = 0x01 << 26;
const LEVEL_NUMBER: u32 = 33;
const NUMBER_CXL: u64 = 0x09;
const NUMBER_RAM: u64 = 0x0d;
const NUMBER_PMEM: u64 = 0x0e;
const REMOTE: u64 = 1 << 37;
const BLOCKED_NA: u64 = 0x01 << 40;

impl DataSource {
    /// An access that missed all caches and was served by memory of this kind.
    pub fn of_memory(level: MemoryLevel, store: bool) -> Self {
        let op = if store { OP_STORE } else { OP_LOAD };
        let (hit, remote) = match level {
            MemoryLevel::Local => (LEVEL_LOCAL_RAM, 0),
            MemoryLevel::Remote => (LEVEL_REMOTE_RAM, REMOTE),
        };
        let unknown = SNOOP_NONE | LOCK_NA | TLB_NA | BLOCKED_NA;
        let level = (LEVEL_HIT | hit) << LEVEL | NUMBER_RAM << LEVEL_NUMBER;
        DataSource(op | level | remote | unknown)
    }

    /// Whether the access was a store, not a load.
    pub fn is_store(self) -> bool {
        self.0 & OP_STORE != 0
    }

    /// The memory that served the access; `None` if a cache did, or if it is unknown.
    pub fn memory(self) -> Option<MemoryLevel> {
        let levels = self.0 >> LEVEL & 0x3fff;
        let number = self.0 >> LEVEL_NUMBER & 0xf;
        let far = matches!(number, NUMBER_CXL | NUMBER_PMEM)
            || levels & (LEVEL_REMOTE_RAM | LEVEL_REMOTE_RAM_2) != 0
            || (number == NUMBER_RAM && self.0 & REMOTE != 0);
        let near = levels & LEVEL_LOCAL_RAM != 0 || number == NUMBER_RAM;
        match (far, near) {
            (true, _) => Some(MemoryLevel::Remote),
            (false, true) => Some(MemoryLevel::Local),
            (false, false) => None,
        }
    }
}

/// A sampled access of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemorySample {
    /// Process, if the source knows processes.
    pub pid: Option<u32>,
    /// Address of the instruction that made the access, if known.
    pub instruction: Option<u64>,
    /// Time, by the clock of the source.
    pub time_ns: u64,
    /// Virtual address, if known.
    pub address: Option<u64>,
    /// Physical address, if known.
    pub physical: Option<u64>,
    /// Accesses that it stands for, as its source counts them; 0 if unknown.
    pub accesses: u64,
    /// Cycles from dispatch to completion; 0 if unknown.
    pub weight_cycles: u64,
    /// Source of the data.
    pub source: DataSource,
    /// Whether the kernel made the access, not a program.
    pub kernel: bool,
}

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A sampled access.
    Sample(MemorySample),
    /// So many samples were lost before it.
    Lost(u64),
    /// There were too many samples: none until [`Record::Unthrottle`].
    Throttle,
    /// Samples are taken again.
    Unthrottle,
    /// Another record.
    Other,
}

fn put_header(out: &mut Vec<u8>, kind: u32, misc: u16, words: usize) {
    out.extend(kind.to_le_bytes());
    out.extend(misc.to_le_bytes());
    out.extend(((HEADER_BYTES + 8 * words) as u16).to_le_bytes());
}

/// An unknown process; the kernel writes so for one that has ended.
const NO_PROCESS: u32 = u32::MAX;

/// Writes a sample with the fields of [`SAMPLE_TYPE`].
pub fn put_sample(out: &mut Vec<u8>, sample: &MemorySample) {
    let misc = if sample.kernel { MISC_KERNEL } else { MISC_USER };
    let format = SampleFormat::of_memory();
    put_header(out, SAMPLE, misc, SAMPLE_TYPE.count_ones() as usize);
    let pid = u64::from(sample.pid.unwrap_or(NO_PROCESS));
    for field in format.fields() {
        let word = match field {
            IP => sample.instruction.unwrap_or(0),
            TID => pid << 32 | pid,
            TIME => sample.time_ns,
            ADDR => sample.address.unwrap_or(0),
            PERIOD => sample.accesses,
            WEIGHT => sample.weight_cycles,
            DATA_SRC => sample.source.0,
            PHYS_ADDR => sample.physical.unwrap_or(0),
            _ => 0,
        };
        out.extend(word.to_le_bytes());
    }
}

/// Writes a record of lost samples.
pub fn put_lost(out: &mut Vec<u8>, count: u64) {
    put_header(out, LOST, 0, 2);
    out.extend(0u64.to_le_bytes());
    out.extend(count.to_le_bytes());
}

/// Writes that samples are throttled, or taken again.
pub fn put_throttle(out: &mut Vec<u8>, time_ns: u64, throttled: bool) {
    put_header(out, if throttled { THROTTLE } else { UNTHROTTLE }, 0, 3);
    for word in [time_ns, 0, 0] {
        out.extend(word.to_le_bytes());
    }
}

/// Counts of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordCounts {
    /// Samples.
    pub samples: u64,
    /// Samples that were lost before they could be read, as their source reports.
    pub lost: u64,
    /// Times that the source was throttled.
    pub throttled: u64,
    /// Other records.
    pub others: u64,
    /// Places without a valid record.
    pub malformed: u64,
    /// Bytes skipped there.
    pub skipped_bytes: u64,
}

impl RecordCounts {
    /// Adds the counts of another reader.
    pub fn add(&mut self, other: &RecordCounts) {
        self.samples += other.samples;
        self.lost = self.lost.saturating_add(other.lost);
        self.throttled += other.throttled;
        self.others += other.others;
        self.malformed += other.malformed;
        self.skipped_bytes += other.skipped_bytes;
    }
}

/// Reads records from a stream.
#[derive(Debug, Clone)]
pub struct RecordReader {
    format: SampleFormat,
    counts: RecordCounts,
    /// Bytes that are no whole record yet.
    rest: Vec<u8>,
    /// Whether the last bytes were a record.
    in_step: bool,
}

impl RecordReader {
    /// For samples of this format.
    pub fn new(format: SampleFormat) -> Self {
        RecordReader { format, counts: RecordCounts::default(), rest: Vec::new(), in_step: true }
    }

    /// What was seen so far.
    pub fn counts(&self) -> RecordCounts {
        self.counts
    }

    /// Takes bytes and passes on every record that they complete.
    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(Record)) {
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        let mut at = 0;
        while let Some(header) = rest.get(at..at + HEADER_BYTES) {
            let Some((kind, size)) = self.plausible(header) else {
                self.counts.malformed += u64::from(self.in_step);
                self.in_step = false;
                self.counts.skipped_bytes += 1;
                at += 1;
                continue;
            };
            let Some(record) = rest.get(at..at + size) else { break };
            self.in_step = true;
            at += size;
            let record = self.decode(kind, record);
            take(record);
        }
        self.rest = rest;
        self.rest.drain(..at);
    }

    /// Type and size of a record with this header, if it can be one.
    fn plausible(&self, header: &[u8]) -> Option<(u32, usize)> {
        let number = |range: std::ops::Range<usize>| {
            header[range].iter().rev().fold(0u32, |all, &byte| all << 8 | u32::from(byte))
        };
        let (kind, misc, size) = (number(0..4), number(4..6) as u16, number(6..8) as usize);
        let behind = |least: usize| size >= least && size <= least + TRAILER_BYTES;
        let fits = match kind {
            SAMPLE => size == self.format.record_bytes() && misc & !MISC_SAMPLE == 0,
            LOST => behind(24),
            THROTTLE | UNTHROTTLE => behind(32),
            LOST_SAMPLES => behind(16),
            // Out of step, a common type is no proof of a record.
            1..=HIGHEST => self.in_step && size >= HEADER_BYTES,
            _ => false,
        };
        (fits && size.is_multiple_of(8)).then_some((kind, size))
    }

    fn decode(&mut self, kind: u32, record: &[u8]) -> Record {
        let word = |n: usize| {
            let at = HEADER_BYTES + 8 * n;
            let bytes = record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        match kind {
            SAMPLE => {
                self.counts.samples += 1;
                let misc = u16::from_le_bytes([record[4], record[5]]);
                Record::Sample(self.sample(misc, word))
            }
            LOST | LOST_SAMPLES => {
                let count = word(usize::from(kind == LOST));
                self.counts.lost = self.counts.lost.saturating_add(count);
                Record::Lost(count)
            }
            THROTTLE => {
                self.counts.throttled += 1;
                Record::Throttle
            }
            UNTHROTTLE => Record::Unthrottle,
            _ => {
                self.counts.others += 1;
                Record::Other
            }
        }
    }

    fn sample(&self, misc: u16, word: impl Fn(usize) -> u64) -> MemorySample {
        let mode = misc & MISC_MODE;
        let kernel = matches!(mode, MISC_KERNEL | MISC_GUEST_KERNEL);
        let mut sample = MemorySample { kernel, ..MemorySample::default() };
        for (at, field) in self.format.fields().enumerate() {
            let word = word(at);
            let known = (word != 0).then_some(word);
            match field {
                IP => sample.instruction = known,
                TID => sample.pid = Some(word as u32).filter(|&pid| pid != NO_PROCESS),
                TIME => sample.time_ns = word,
                ADDR => sample.address = known,
                PERIOD => sample.accesses = word,
                WEIGHT => sample.weight_cycles = word,
                // The first of three numbers is the latency of the whole access.
                WEIGHT_STRUCT => sample.weight_cycles = word & 0xffff_ffff,
                DATA_SRC => sample.source = DataSource(word),
                PHYS_ADDR => sample.physical = known,
                _ => {}
            }
        }
        if matches!(mode, MISC_GUEST_KERNEL | MISC_GUEST_USER) {
            // They are the guest's own, and nothing of the hypervisor's process is at them.
            (sample.address, sample.instruction, sample.physical) = (None, None, None);
        }
        sample
    }
}

#[cfg(test)]
#[path = "perf_record_tests.rs"]
mod tests;
