//! Reading windows, one at a time.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::encode::{take_steps, take_window};
use super::{CONTENT, CONTENT_VERSION, Header, TAIL, WINDOW, Window, WindowStep};
use crate::codec::{Cursor, Malformed};
use crate::container::{ContainerReader, open};
use crate::error::RecordingError;

/// Reads windows in order. Holds one.
#[derive(Debug)]
pub struct WindowsReader<R> {
    container: ContainerReader<R>,
    header: Header,
    tail: Option<Vec<WindowStep>>,
    read: u64,
}

impl WindowsReader<BufReader<File>> {
    /// Opens a file of windows.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let (file, name) = open(path, 1 << 16)?;
        Self::new(file, &name)
    }
}

impl<R: Read> WindowsReader<R> {
    /// Reads windows from any stream; `name` is for error messages.
    pub fn new(from: R, name: &str) -> Result<Self, RecordingError> {
        let versions = CONTENT_VERSION..=CONTENT_VERSION;
        let (container, header) = ContainerReader::of_versions(from, name, CONTENT, versions)?;
        Ok(WindowsReader { container, header, tail: None, read: 0 })
    }

    /// The header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next window; `None` after the last. A file that lacks windows or its end is an error: an
    /// estimate from a part of a program would be one of another program.
    pub fn next_window(&mut self) -> Result<Option<Window>, RecordingError> {
        while let Some(chunk) = self.container.next_chunk()? {
            let mut from = Cursor::new(&chunk.payload);
            let name = self.container.name();
            let damaged = |malformed: Malformed| RecordingError::Damaged {
                file: name.to_owned(),
                offset: chunk.offset,
                message: malformed.0,
            };
            let whole = |from: &Cursor<'_>| match from.remaining() {
                0 => Ok(()),
                left => Err(Malformed(format!("{left} bytes too many in a window"))),
            };
            match chunk.kind {
                WINDOW => {
                    let window = take_window(&mut from, &self.header).map_err(damaged)?;
                    whole(&from).map_err(damaged)?;
                    self.read += 1;
                    return Ok(Some(window));
                }
                TAIL => {
                    let tail = take_steps(&mut from, self.header.threads).map_err(damaged)?;
                    whole(&from).map_err(damaged)?;
                    self.tail = Some(tail);
                }
                _ => {}
            }
        }
        match self.read == self.header.windows && self.tail.is_some() {
            true => Ok(None),
            false => Err(RecordingError::CutOff {
                file: self.container.name().to_owned(),
                got: self.read,
                expected: self.header.windows,
            }),
        }
    }

    /// The steps after the last window, once [`WindowsReader::next_window`] has returned `None`.
    pub fn tail(&self) -> &[WindowStep] {
        self.tail.as_deref().unwrap_or_default()
    }
}
