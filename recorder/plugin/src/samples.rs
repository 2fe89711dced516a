//! Target of samples of accesses: a socket of QEMU's, which the guest has as a port.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The writing end.
pub struct SamplePort {
    /// `None` after an error.
    socket: Option<UnixStream>,
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
        Ok(SamplePort { socket: Some(socket) })
    }

    /// Writes as many records as there is room for. The rest stays in the ring, which loses samples
    /// when it is full: while nobody in the guest reads.
    pub fn write(&mut self, records: &mut Vec<u8>) {
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
