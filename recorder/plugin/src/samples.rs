//! Target of samples of accesses: a socket of QEMU's, which the guest has as a port.
//!
//! Each write to it is an interrupt in the guest, a buffer and a read, of many thousand instructions
//! together. So records are written many at a time, as a processor fills its own buffer before it
//! interrupts, and no later than a few milliseconds after the first of them. The guest answers with the
//! number of accesses for each sample, as four bytes, where it wants another.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Bytes of records that are written at once: a buffer of the guest's port.
const MANY: usize = 4096;
/// The first of them waits for so long at most, in the guest's time.
const LATEST_NS: u64 = 4_000_000;

/// The writing end.
pub struct SamplePort {
    /// `None` after an error.
    socket: Option<UnixStream>,
    /// When what waits is written, if anything waits.
    due_ns: Option<u64>,
    /// What the guest has asked for, and the bytes of it that have come.
    asked: [u8; 4],
    bytes: usize,
}

impl SamplePort {
    /// Connects to the socket of QEMU's character device at this path.
    pub fn connect(path: &Path) -> Result<Self, String> {
        let connect = || {
            let socket = UnixStream::connect(path)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket = connect().map_err(|error: std::io::Error| {
            format!("{}: {error}; start the machine with 'terrace lab'", path.display())
        })?;
        Ok(SamplePort { socket: Some(socket), due_ns: None, asked: [0; 4], bytes: 0 })
    }

    /// There are new records at this time. Whether they wait.
    pub fn add(&mut self, records: &mut Vec<u8>, now_ns: u64) -> bool {
        if records.len() >= MANY || self.is_due(now_ns) {
            self.write(records);
        } else if self.due_ns.is_none() {
            self.due_ns = Some(now_ns + LATEST_NS);
        }
        self.due_ns.is_some()
    }

    /// Accesses for each sample from now on, if the guest has asked for another number: the last one.
    pub fn asked(&mut self) -> Option<u32> {
        let mut asked = None;
        loop {
            let read = self.socket.as_mut()?.read(&mut self.asked[self.bytes..]);
            match read {
                Ok(count @ 1..) => self.bytes += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // An error of the socket shows when it is written to.
                Ok(_) | Err(_) => return asked,
            }
            if self.bytes == self.asked.len() {
                self.bytes = 0;
                asked = Some(u32::from_le_bytes(self.asked));
            }
        }
    }

    /// Whether records have waited for long enough.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.due_ns.is_some_and(|due_ns| now_ns >= due_ns)
    }

    /// Writes as many records as there is room for. The rest stays in the ring, which loses samples
    /// when it is full: while nobody in the guest reads.
    pub fn write(&mut self, records: &mut Vec<u8>) {
        self.due_ns = None;
        let Some(socket) = &mut self.socket else { return };
        match socket.write(records) {
            Ok(written) => drop(records.drain(..written)),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => {
                eprintln!("terrace recorder: samples end: {error}");
                self.socket = None;
            }
        }
    }
}
