//! Writing windows.

use std::io::Write;

use super::encode::{put_steps, put_window};
use super::{CONTENT, CONTENT_VERSION, Header, TAIL, WINDOW, Window, WindowStep};
use crate::container::ContainerWriter;
use crate::error::RecordingError;

/// Writes windows in the order of their positions.
pub struct WindowsWriter<W: Write> {
    container: ContainerWriter<W>,
    threads: u16,
    payload: Vec<u8>,
}

impl<W: Write> WindowsWriter<W> {
    /// Begins a file; `name` is for error messages.
    pub fn new(out: W, name: &str, header: &Header) -> Result<Self, RecordingError> {
        let container = ContainerWriter::new(out, name, CONTENT, CONTENT_VERSION, header)?;
        Ok(WindowsWriter { container, threads: header.threads, payload: Vec::new() })
    }

    /// Adds a window.
    pub fn window(&mut self, window: &Window) -> Result<(), RecordingError> {
        self.payload.clear();
        put_window(&mut self.payload, window, self.threads);
        self.container.chunk(WINDOW, window.position, &self.payload)
    }

    /// Ends the file with the steps after the last window.
    pub fn finish(mut self, tail: &[WindowStep]) -> Result<W, RecordingError> {
        self.payload.clear();
        put_steps(&mut self.payload, tail);
        self.container.chunk(TAIL, u64::MAX, &self.payload)?;
        self.container.finish()
    }
}
