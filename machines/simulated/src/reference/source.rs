//! Sources of a program's references: the stream that trace-driven simulation consumes, and a pipe
//! that lets its producer run ahead on a thread of its own.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use terrace_hardware::address::{Kind, VirtualAddress};
use terrace_hardware::cpu::Dependence;
use terrace_hardware::node::Reference;
use terrace_recordings::source::SourceError;

/// One load or store of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Virtual address of the first byte.
    pub address: u64,
    /// Instructions of the thread since its last access, this one included.
    pub instructions: u32,
    /// Thread of the program, from 0.
    pub thread: u16,
    /// Size in bytes, 1 at least.
    pub size: u8,
    /// Kind of access.
    pub kind: AccessKind,
}

impl Access {
    /// What a node makes of it.
    #[inline(always)]
    pub(super) fn reference(&self) -> Reference {
        let (kind, dependence) = match self.kind {
            AccessKind::Load => (Kind::Read, Dependence::None),
            AccessKind::DependentLoad => (Kind::Read, Dependence::PreviousLoad),
            AccessKind::Store => (Kind::Write, Dependence::None),
        };
        Reference {
            address: VirtualAddress(self.address),
            size: u32::from(self.size),
            kind,
            instructions: self.instructions,
            dependence,
        }
    }
}

/// The kind of an access. One byte, so that an access takes 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// A load.
    Load,
    /// A load whose address was loaded by the load before it.
    DependentLoad,
    /// A store.
    Store,
}

impl AccessKind {
    /// A store or a load, which may be dependent.
    #[inline]
    pub fn new(store: bool, dependent: bool) -> Self {
        match (store, dependent) {
            (true, _) => AccessKind::Store,
            (false, true) => AccessKind::DependentLoad,
            (false, false) => AccessKind::Load,
        }
    }
}

/// One step of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Accesses in program order.
    Accesses(Vec<Access>),
    /// Memory is mapped; before the first access to it. An existing mapping there is replaced.
    Map {
        /// First address, a multiple of 4 KB.
        start: u64,
        /// Length in bytes, a multiple of 4 KB.
        size_bytes: u64,
        /// Whether huge pages may back it.
        huge_eligible: bool,
    },
    /// Memory is unmapped.
    Unmap {
        /// First address, a multiple of 4 KB.
        start: u64,
        /// Length in bytes, a multiple of 4 KB.
        size_bytes: u64,
    },
    /// All threads have reached this point: they go on together.
    Barrier,
    /// The program's start-up is over: what follows is its purpose.
    MainBegins,
    /// The program has ended.
    Ended,
}

/// Yields the references of a program, in program order. Deterministic: the same source built alike
/// yields the same steps.
pub trait ReferenceSource: Send {
    /// Threads of the program.
    fn threads(&self) -> usize;

    /// Bytes of memory that the program will touch, as far as that is known beforehand.
    fn footprint_bytes(&self) -> Option<u64>;

    /// The next step. After [`Step::Ended`] it is not called again.
    fn next_step(&mut self) -> Result<Step, SourceError>;
}

/// Accesses in one step of a pipe.
pub const BLOCK: usize = 4096;
/// Steps that a producer may be ahead: 2 MB at most, so that they stay in the host's caches.
pub(super) const AHEAD: usize = 32;

/// The producer's end of a pipe.
pub struct Pipe {
    sender: SyncSender<Step>,
    block: Vec<Access>,
}

/// The receiver is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

impl Pipe {
    /// Adds one access.
    #[inline]
    pub fn access(&mut self, access: Access) -> Result<(), Closed> {
        if self.block.len() >= BLOCK {
            self.flush()?;
        }
        self.block.push(access);
        Ok(())
    }

    /// Adds another step, after the accesses so far.
    pub fn step(&mut self, step: Step) -> Result<(), Closed> {
        self.flush()?;
        self.sender.send(step).map_err(|_| Closed)
    }

    /// Passes on the accesses so far.
    pub fn flush(&mut self) -> Result<(), Closed> {
        if self.block.is_empty() {
            return Ok(());
        }
        let block = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK));
        self.sender.send(Step::Accesses(block)).map_err(|_| Closed)
    }
}

/// A source whose producer runs on a thread of its own and waits when it is some blocks ahead.
/// Memory is bounded, and dropping it ends the producer.
pub struct Piped {
    threads: usize,
    footprint_bytes: Option<u64>,
    receiver: Option<Receiver<Step>>,
    producer: Option<JoinHandle<Result<(), SourceError>>>,
}

impl Piped {
    /// Starts `produce`, which returns when the program has ended or the pipe is closed.
    pub fn start(
        threads: usize,
        footprint_bytes: Option<u64>,
        produce: impl FnOnce(&mut Pipe) -> Result<(), SourceError> + Send + 'static,
    ) -> Piped {
        let (sender, receiver) = sync_channel(AHEAD);
        let producer = std::thread::spawn(move || {
            let mut pipe = Pipe { sender, block: Vec::with_capacity(BLOCK) };
            produce(&mut pipe)?;
            // Whether the receiver is still there does not matter at the end.
            let _ = pipe.flush();
            Ok(())
        });
        Piped { threads, footprint_bytes, receiver: Some(receiver), producer: Some(producer) }
    }
}

impl ReferenceSource for Piped {
    fn threads(&self) -> usize {
        self.threads
    }

    fn footprint_bytes(&self) -> Option<u64> {
        self.footprint_bytes
    }

    fn next_step(&mut self) -> Result<Step, SourceError> {
        if let Some(step) = self.receiver.as_ref().and_then(|r| r.recv().ok()) {
            return Ok(step);
        }
        self.receiver = None;
        match self.producer.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(Step::Ended),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        self.receiver = None;
        if let Some(producer) = self.producer.take() {
            // The producer's end is not checked.
            let _ = producer.join();
        }
    }
}

/// The source of a program that has ended.
pub(super) struct Silent;

impl ReferenceSource for Silent {
    fn threads(&self) -> usize {
        1
    }

    fn footprint_bytes(&self) -> Option<u64> {
        None
    }

    fn next_step(&mut self) -> Result<Step, SourceError> {
        Ok(Step::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(address: u64) -> Access {
        Access { address, instructions: 1, thread: 0, size: 8, kind: AccessKind::Load }
    }

    #[test]
    fn steps_come_in_order_and_end() {
        let mut source = Piped::start(1, None, |pipe| {
            for n in 0..2 * BLOCK as u64 + 1 {
                pipe.access(access(n)).unwrap();
            }
            pipe.step(Step::Barrier).unwrap();
            pipe.access(access(7)).unwrap();
            Ok(())
        });
        let mut seen = Vec::new();
        loop {
            match source.next_step().unwrap() {
                Step::Accesses(block) => seen.push(block.len()),
                Step::Barrier => seen.push(0),
                Step::Ended => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, [BLOCK, BLOCK, 1, 0, 1]);
    }

    #[test]
    fn an_error_of_the_producer_comes_after_what_it_produced() {
        let mut source = Piped::start(1, None, |pipe| {
            pipe.step(Step::Barrier).unwrap();
            Err(SourceError("broken".into()))
        });
        assert_eq!(source.next_step().unwrap(), Step::Barrier);
        assert_eq!(source.next_step().unwrap_err().0, "broken");
    }

    #[test]
    fn dropping_it_ends_an_endless_producer() {
        let source = Piped::start(1, None, |pipe| {
            while pipe.access(access(0)).is_ok() {}
            Ok(())
        });
        drop(source);
    }
}
