//! The file that is imported: decompressed by its first bytes, read line by line or byte by
//! byte, with the place for messages and a bound on every line.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
use std::path::Path;
use std::rc::Rc;

use super::error::{ImportError, Place, shown};

/// No tool writes longer lines; a longer one is not kept in memory.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Memory that an .xz file may need; xz -9 asks for 65 MB.
const XZ_MEMORY_BYTES: u64 = 256 << 20;
/// log2 of the window that a .zst file may need; zstd --long asks for 2^27.
const ZSTD_WINDOW_LOG: u32 = 27;

/// A line was read, or there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// A whole line.
    Whole,
    /// The file ends.
    End,
}

/// A file of another tool.
pub struct Input {
    name: String,
    from: BufReader<UntilCut>,
    bytes: u64,
    lines: u64,
    cut_line: bool,
    cut: Rc<Cell<bool>>,
}

impl Input {
    /// Opens a file, or standard input for `-`.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        if path.as_os_str() == "-" {
            return Self::new(Box::new(io::stdin()), "standard input");
        }
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| ImportError::Read {
            file: name.clone(),
            at: 0,
            source,
        })?;
        Self::new(Box::new(file), &name)
    }

    /// Reads from any stream; `name` is for messages.
    pub fn new(mut from: Box<dyn Read>, name: &str) -> Result<Self, ImportError> {
        let error = |source| ImportError::Read { file: name.to_owned(), at: 0, source };
        let mut begin = Vec::new();
        from.by_ref().take(6).read_to_end(&mut begin).map_err(error)?;
        let from = decompressed(&begin, Box::new(Cursor::new(begin.clone()).chain(from)))
            .map_err(error)?;
        let cut = Rc::new(Cell::new(false));
        Ok(Input {
            name: name.to_owned(),
            from: buffered(from, &cut),
            bytes: 0,
            lines: 0,
            cut_line: false,
            cut,
        })
    }

    /// The first bytes of the next read, `most` of them where there are so many.
    pub fn peek(&mut self, most: usize) -> Result<Vec<u8>, ImportError> {
        let mut begin = vec![0; most];
        let before = self.bytes;
        let got = self.fill(&mut begin)?;
        self.bytes = before;
        begin.truncate(got);
        let rest = std::mem::replace(&mut self.from, buffered(Box::new(io::empty()), &self.cut));
        self.from = buffered(Box::new(Cursor::new(begin.clone()).chain(rest)), &self.cut);
        Ok(begin)
    }

    /// Decompresses the rest by zlib (RFC 1950). Other formats begin with the same two bytes, so
    /// the caller decides.
    pub(super) fn inflate(&mut self) {
        let rest = std::mem::replace(&mut self.from, buffered(Box::new(io::empty()), &self.cut));
        self.from = buffered(Box::new(flate2::bufread::ZlibDecoder::new(rest)), &self.cut);
    }

    /// The name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it ended within a line or within its compression.
    pub(super) fn is_cut(&self) -> bool {
        self.cut_line || self.cut.get()
    }

    /// Lines read.
    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// Bytes read.
    pub(super) fn at(&self) -> u64 {
        self.bytes
    }

    fn error(&self, source: io::Error) -> ImportError {
        ImportError::Read { file: self.name.clone(), at: self.bytes, source }
    }

    /// A mistake at this place.
    pub(super) fn malformed(&self, place: Place, message: impl Into<String>) -> ImportError {
        ImportError::Malformed { file: self.name.clone(), place, message: message.into() }
    }

    /// A mistake in the line read last.
    pub(super) fn bad_line(&self, line: &[u8], expected: &str) -> ImportError {
        let message = format!("got {}, expected {expected}", shown(line));
        self.malformed(Place::Line(self.lines), message)
    }

    /// Reads the next line without its end. A last line that has no end is cut off and left out.
    pub(super) fn line(&mut self, line: &mut Vec<u8>) -> Result<Line, ImportError> {
        line.clear();
        loop {
            let buffer = match self.from.fill_buf() {
                Ok(buffer) => buffer,
                Err(e) => return Err(self.error(e)),
            };
            if buffer.is_empty() {
                self.cut_line |= !line.is_empty();
                return Ok(Line::End);
            }
            let end = buffer.iter().position(|b| *b == b'\n');
            let taken = &buffer[..end.unwrap_or(buffer.len())];
            let fits = line.len() + taken.len() <= MAX_LINE_BYTES;
            if fits {
                line.extend_from_slice(taken);
            }
            let length = taken.len() + usize::from(end.is_some());
            self.from.consume(length);
            self.bytes += length as u64;
            if !fits {
                let place = Place::Line(self.lines + 1);
                let message = format!(
                    "a line of more than {MAX_LINE_BYTES} bytes, beginning {}; expected text",
                    shown(line)
                );
                return Err(self.malformed(place, message));
            }
            if end.is_some() {
                self.lines += 1;
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(Line::Whole);
            }
        }
    }

    /// Fills the buffer as far as the file goes; returns how far.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, ImportError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.from.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(n) => {
                    filled += n;
                    self.bytes += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.error(e)),
            }
        }
        Ok(filled)
    }
}

/// For parsers that read bytes themselves.
impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(buffer)?;
        self.bytes += n as u64;
        Ok(n)
    }
}

fn buffered(from: Box<dyn Read>, cut: &Rc<Cell<bool>>) -> BufReader<UntilCut> {
    BufReader::with_capacity(1 << 18, UntilCut { from, cut: Rc::clone(cut) })
}

/// Ends where a compressed stream was cut off, and records it.
struct UntilCut {
    from: Box<dyn Read>,
    cut: Rc<Cell<bool>>,
}

impl Read for UntilCut {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.from.read(buffer) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                self.cut.set(true);
                self.from = Box::new(io::empty());
                Ok(0)
            }
            read => read,
        }
    }
}

/// By the first bytes: gzip (RFC 1952), xz (its file format 1.1), zstd (RFC 8878).
fn decompressed(begin: &[u8], from: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    Ok(match begin {
        [0x1f, 0x8b, 8, flags, ..] if flags & 0xe0 == 0 => {
            Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::new(from)))
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            let stream = liblzma::stream::Stream::new_stream_decoder(
                XZ_MEMORY_BYTES,
                liblzma::stream::CONCATENATED,
            )?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(BufReader::new(from), stream))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::stream::read::Decoder::new(from)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            Box::new(decoder)
        }
        _ => from,
    })
}
