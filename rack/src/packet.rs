//! Packets and messages between nodes, switch and pools.

use terrace_hardware::request::RequestId;

use crate::Time;
use crate::address::RemotePage;

/// Values of the blocks of a page, where data are checked.
pub type PageValues = Box<[u64; 64]>;

/// The purpose of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Node to pool: a block is read.
    Read,
    /// Node to pool: a block is written. No core waits for it.
    Write,
    /// Node to pool: a whole page, evicted as a victim.
    PageWrite,
    /// Node to pool: one block of a victim.
    PageWriteBlock,
    /// Switch to pool: a page is read, to be sent whole.
    PageRead,
    /// Switch to pool: one block of a page is read.
    PageReadBlock,
    /// Pool (or page buffer) to node: the block that was read.
    Data,
    /// A page, whole: pool to page buffer or node, page buffer to node.
    PageData,
    /// One block of a page.
    PageDataBlock,
    /// Pool to node: a page has been written.
    PageWritten,
    /// Switch to node: these pages are to be migrated.
    Migrate,
    /// Node to switch: translations are changed; no write to these pages follows.
    Ready,
    /// Node to switch: all pages of the batch have arrived.
    Complete,
    /// Node to switch: the score of the last batches.
    Feedback,
    /// Node to switch: remote memory is requested.
    AskMemory,
    /// Switch to node: the memory requested.
    GiveMemory,
}

impl Kind {
    /// Whether the packet contains or requests (a part of) a page that moves, as opposed to a block
    /// that a core may wait for.
    pub fn is_page(self) -> bool {
        use Kind::*;
        matches!(
            self,
            PageWrite | PageWriteBlock | PageRead | PageReadBlock | PageData | PageDataBlock
        )
    }

    /// Bytes of data.
    pub fn data_bytes(self, pages: usize) -> u32 {
        use Kind::*;
        match self {
            Write | PageWriteBlock | Data | PageDataBlock => 64,
            PageWrite | PageData => 4096,
            Migrate => 4 * pages as u32,
            _ => 0,
        }
    }

    /// The name in traces.
    pub fn name(self) -> &'static str {
        use Kind::*;
        match self {
            Read => "read",
            Write => "write",
            PageWrite => "page-write",
            PageWriteBlock => "page-write-block",
            PageRead => "page-read",
            PageReadBlock => "page-read-block",
            Data => "data",
            PageData => "page-data",
            PageDataBlock => "page-data-block",
            PageWritten => "page-written",
            Migrate => "migrate",
            Ready => "ready",
            Complete => "complete",
            Feedback => "feedback",
            AskMemory => "ask-memory",
            GiveMemory => "give-memory",
        }
    }
}

/// The parts of a request's time so far, in picoseconds; the rest is propagation and translation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// (De)packetization and transmission at interfaces.
    pub nic: Time,
    /// Processing and transmission in the switch, page buffers.
    pub switch: Time,
    /// Waiting, anywhere but in a memory controller: for a register of the last level, for room, for
    /// a turn, for a block that is on its way.
    pub queue: Time,
    /// In the pool's memory, its queues included.
    pub dram: Time,
}

/// A packet.
#[derive(Debug, Clone)]
pub struct Packet {
    /// The purpose.
    pub kind: Kind,
    /// The compute node concerned.
    pub node: u16,
    /// Number of the block in the page.
    pub block: u8,
    /// Size on the wire.
    pub bytes: u32,
    /// The page concerned.
    pub page: RemotePage,
    /// The request of the node, returned with its answer.
    pub id: RequestId,
    /// The value of the block, where data are checked; the score of a feedback.
    pub value: u64,
    /// The values of a page, where data are checked.
    pub values: Option<PageValues>,
    /// The pages of a migration.
    pub pages: Option<Box<[RemotePage]>>,
    /// Whether a page buffer had the block when the request arrived.
    pub buffered: bool,
    /// When the packet was put into its present queue.
    pub queued: Time,
    /// The parts of its time.
    pub spent: Spent,
}

impl Packet {
    /// A packet about a page or block.
    pub fn new(kind: Kind, node: usize, page: RemotePage, block: u8, header_bytes: u32) -> Self {
        Packet {
            kind,
            node: node as u16,
            block,
            bytes: header_bytes + kind.data_bytes(0),
            page,
            id: RequestId(0),
            value: 0,
            values: None,
            pages: None,
            buffered: false,
            queued: 0,
            spent: Spent::default(),
        }
    }

    /// The answer to this one.
    pub fn answer(&self, kind: Kind, header_bytes: u32) -> Self {
        Packet {
            kind,
            bytes: header_bytes + kind.data_bytes(0),
            values: None,
            pages: None,
            ..self.clone()
        }
    }
}

/// A message from one component to another, at the end of a window.
#[derive(Debug, Clone)]
pub enum Message {
    /// A packet whose last bit arrives at this time.
    Packet(Time, Packet),
    /// So many bytes of the receiver's buffer are free again, known to the sender at this time.
    Credit(Time, u64),
}
