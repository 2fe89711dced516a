//! Cuts a stream of bytes into lines, and finds the trailer that ends it.

use std::collections::VecDeque;

/// Cuts bytes into lines as they arrive.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    partial: Vec<u8>,
}

/// A line longer than this is cut, so that a guest that never writes a newline costs no memory.
const LINE_MAX_BYTES: usize = 64 * 1024;

impl LineSplitter {
    /// Takes bytes and passes on every line that they complete, without its end.
    pub fn push(&mut self, bytes: &[u8], mut line: impl FnMut(String)) {
        for &byte in bytes {
            if byte == b'\n' {
                line(self.take());
            } else {
                self.partial.push(byte);
                if self.partial.len() == LINE_MAX_BYTES {
                    line(self.take());
                }
            }
        }
    }

    /// Passes on the last line, if it had no end.
    pub fn finish(&mut self, mut line: impl FnMut(String)) {
        if !self.partial.is_empty() {
            line(self.take());
        }
    }

    fn take(&mut self) -> String {
        let line = std::mem::take(&mut self.partial);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        String::from_utf8_lossy(line).into_owned()
    }
}

/// Passes bytes through up to a trailer, which may arrive in pieces.
#[derive(Debug)]
pub(crate) struct TrailerFilter {
    trailer: Vec<u8>,
    /// Bytes that may begin the trailer.
    held: Vec<u8>,
    done: bool,
}

impl TrailerFilter {
    pub fn new(trailer: &str) -> Self {
        Self { trailer: trailer.as_bytes().to_vec(), held: Vec::new(), done: false }
    }

    /// Whether the trailer was seen.
    pub fn done(&self) -> bool {
        self.done
    }

    /// Takes bytes and returns those that cannot belong to the trailer.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.done {
            return Vec::new();
        }
        self.held.extend_from_slice(bytes);
        let trailer = &self.trailer;
        if let Some(at) = self.held.windows(trailer.len()).position(|window| window == trailer) {
            self.held.truncate(at);
            self.done = true;
            return std::mem::take(&mut self.held);
        }
        // Hold back the longest suffix that is a prefix of the trailer.
        let keep = (1..trailer.len().min(self.held.len() + 1))
            .rev()
            .find(|&n| self.held.ends_with(&trailer[..n]))
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns what was held back when the stream ended without a trailer.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// The last lines of a stream.
#[derive(Debug)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
    max: usize,
}

impl Tail {
    pub fn new(max: usize) -> Self {
        Self { lines: VecDeque::new(), max }
    }

    pub fn push(&mut self, line: String) {
        if self.lines.len() == self.max {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    pub fn to_vec(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_come_whole_whatever_the_pieces() {
        let mut splitter = LineSplitter::default();
        let mut lines = Vec::new();
        for piece in ["on", "e\r\ntwo\n", "\nlast"] {
            splitter.push(piece.as_bytes(), |line| lines.push(line));
        }
        splitter.finish(|line| lines.push(line));
        assert_eq!(lines, ["one", "two", "", "last"]);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut splitter = LineSplitter::default();
        let mut longest = 0;
        splitter.push(&vec![b'x'; 200_000], |line| longest = longest.max(line.len()));
        assert_eq!(longest, LINE_MAX_BYTES);
    }

    proptest! {
        #[test]
        fn the_trailer_is_found_however_it_is_cut(
            body in prop::collection::vec(prop::sample::select(vec![b'a', b'b', b'\n']), 0..60),
            cuts in prop::collection::vec(1usize..7, 1..40),
        ) {
            // A trailer that begins like the body, so that false starts happen.
            let trailer = "ab\nabZ";
            let mut stream = body.clone();
            stream.extend_from_slice(trailer.as_bytes());
            let mut filter = TrailerFilter::new(trailer);
            let mut out = Vec::new();
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                out.extend(filter.push(now));
                rest = later;
            }
            prop_assert!(filter.done());
            prop_assert_eq!(out, body);
        }

        #[test]
        fn without_a_trailer_nothing_is_lost(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut filter = TrailerFilter::new("\0terrace-end");
            let mut out = Vec::new();
            for piece in body.chunks(7) {
                out.extend(filter.push(piece));
            }
            out.extend(filter.finish());
            prop_assert!(!filter.done());
            prop_assert_eq!(out, body);
        }
    }
}
