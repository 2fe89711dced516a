//! What passes between Terrace and the process of a policy: messages in frames over two pipes.
//!
//! ```text
//! message = kind:byte length:u32 content          (little endian)
//!
//! to the policy                     from it
//!  1 hello    JSON of [`Hello`]      16 ready    nothing
//!  2 period   scan and budget        17 moves    period:u64 up:words down:words
//!                                    18 refused  period:u64 text
//!                                    19 failed   text
//! ```
//!
//! Scans are coded as in a recording ([`terrace_recordings::period::stream`]); moves are a bit for each
//! page, so that an answer has one length only. Each period has one answer at most. What comes from
//! the policy is not trusted: lengths are bounded before anything is read, texts are cut.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use terrace_core::bits::PageBits;

use crate::moves::Moves;

/// Longest content of a message: bits of 2^29 pages, both ways.
const MOST_BYTES: u32 = 1 << 27;
/// Longest text of a policy that is kept.
const MOST_TEXT: usize = 400;

const HELLO: u8 = 1;
const PERIOD: u8 = 2;
const READY: u8 = 16;
const MOVES: u8 = 17;
const REFUSED: u8 = 18;
const FAILED: u8 = 19;

/// The first message to a policy's process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the policy.
    pub policy: String,
    /// The file that it was read from, for messages.
    pub file: String,
    /// The class.
    pub class: String,
    /// The text of the file: the process need not be able to read it.
    pub source: String,
    /// Of everything random.
    pub seed: u64,
    /// Address space that it may have, in bytes.
    pub memory_bytes: u64,
}

/// A message to a policy's process.
#[derive(Debug, Clone, PartialEq)]
pub enum ToPolicy {
    /// Who it is.
    Hello(Box<Hello>),
    /// A period, coded.
    Period(Vec<u8>),
}

/// A message of a policy's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromPolicy {
    /// It waits for periods.
    Ready,
    /// The moves of a period, coded.
    Moves(Vec<u8>),
    /// Its answer to a period made no sense.
    Refused {
        /// The period.
        period: u64,
        /// Why.
        text: String,
    },
    /// It cannot go on.
    Failed(String),
}

/// A text of a policy: one line, cut.
pub fn line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST_TEXT).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn send(to: &mut dyn Write, kind: u8, content: &[u8]) -> io::Result<()> {
    let length = u32::try_from(content.len()).ok().filter(|length| *length <= MOST_BYTES);
    let length = length.ok_or_else(|| io::Error::other("a message that is too long"))?;
    to.write_all(&[kind])?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(content)?;
    to.flush()
}

/// Kind and content of a message; `None` where there are no more.
fn receive(from: &mut dyn Read) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut kind = [0];
    if from.read(&mut kind)? == 0 {
        return Ok(None);
    }
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MOST_BYTES {
        return Err(malformed(format!(
            "a message of {length} bytes, expected {MOST_BYTES} at most"
        )));
    }
    // Memory is taken as bytes come, not as the length claims.
    let mut content = Vec::new();
    from.take(length.into()).read_to_end(&mut content)?;
    match content.len() == length as usize {
        true => Ok(Some((kind[0], content))),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn malformed(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn with_period(period: u64, content: &[u8]) -> Vec<u8> {
    [&period.to_le_bytes(), content].concat()
}

/// The period at the beginning of a content, and what follows.
fn period_of(content: &[u8]) -> Option<(u64, &[u8])> {
    let (period, rest) = content.split_first_chunk()?;
    Some((u64::from_le_bytes(*period), rest))
}

impl ToPolicy {
    /// Sends it.
    pub fn send(&self, to: &mut dyn Write) -> io::Result<()> {
        match self {
            ToPolicy::Hello(hello) => send(to, HELLO, &serde_json::to_vec(hello)?),
            ToPolicy::Period(bytes) => send(to, PERIOD, bytes),
        }
    }

    /// Waits for one; `None` where there will be no more.
    pub fn receive(from: &mut dyn Read) -> io::Result<Option<Self>> {
        let Some((kind, content)) = receive(from)? else { return Ok(None) };
        match kind {
            HELLO => Ok(Some(ToPolicy::Hello(Box::new(serde_json::from_slice(&content)?)))),
            PERIOD => Ok(Some(ToPolicy::Period(content))),
            _ => Err(malformed(format!("a message of kind {kind}, expected {HELLO} or {PERIOD}"))),
        }
    }
}

impl FromPolicy {
    /// The moves of a period.
    pub fn moves(period: u64, moves: &Moves) -> Self {
        let words = moves.up.words().iter().chain(moves.down.words());
        let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        FromPolicy::Moves(with_period(period, &bytes))
    }

    /// Sends it.
    pub fn send(&self, to: &mut dyn Write) -> io::Result<()> {
        match self {
            FromPolicy::Ready => send(to, READY, &[]),
            FromPolicy::Moves(bytes) => send(to, MOVES, bytes),
            FromPolicy::Refused { period, text } => {
                send(to, REFUSED, &with_period(*period, text.as_bytes()))
            }
            FromPolicy::Failed(text) => send(to, FAILED, text.as_bytes()),
        }
    }

    /// Waits for one; `None` where there will be no more.
    pub fn receive(from: &mut dyn Read) -> io::Result<Option<Self>> {
        let Some((kind, content)) = receive(from)? else { return Ok(None) };
        Ok(Some(match kind {
            READY => FromPolicy::Ready,
            MOVES => FromPolicy::Moves(content),
            REFUSED => {
                let (period, text) = period_of(&content)
                    .ok_or_else(|| malformed("a refusal without its period".to_owned()))?;
                FromPolicy::Refused { period, text: line(text) }
            }
            FAILED => FromPolicy::Failed(line(&content)),
            _ => {
                let text = format!("a message of kind {kind}, expected {READY} to {FAILED}");
                return Err(malformed(text));
            }
        }))
    }

    /// The period that it answers.
    pub fn period(&self) -> Option<u64> {
        match self {
            FromPolicy::Moves(bytes) => period_of(bytes).map(|(period, _)| period),
            FromPolicy::Refused { period, .. } => Some(*period),
            _ => None,
        }
    }
}

/// The moves of so many pages that a content has.
pub fn moves_of(content: &[u8], pages: usize) -> Result<Moves, String> {
    let words = pages.div_ceil(64);
    let expected = 8 + 16 * words;
    if content.len() != expected {
        return Err(format!(
            "an answer of {} bytes, expected {expected} for {pages} pages",
            content.len()
        ));
    }
    let (chunks, _) = content[8..].as_chunks::<8>();
    let all: Vec<u64> = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
    let past_the_last = match pages % 64 {
        0 => 0,
        used => u64::MAX << used,
    };
    let side = |words: &[u64]| -> Result<PageBits, String> {
        match words.last() {
            Some(last) if last & past_the_last != 0 => {
                Err(format!("moves of pages past the last of {pages}"))
            }
            _ => Ok(PageBits::from_words(words.to_vec(), pages)),
        }
    };
    Ok(Moves { up: side(&all[..words])?, down: side(&all[words..])? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(message: &FromPolicy) -> FromPolicy {
        let mut bytes = Vec::new();
        message.send(&mut bytes).unwrap();
        FromPolicy::receive(&mut &bytes[..]).unwrap().unwrap()
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let mut moves = Moves::none(130);
        moves.up.set(129, true);
        moves.down.set(0, true);
        for message in [
            FromPolicy::Ready,
            FromPolicy::moves(7, &moves),
            FromPolicy::Refused { period: 3, text: "too many".into() },
            FromPolicy::Failed("KeyError: 3".into()),
        ] {
            assert_eq!(there_and_back(&message), message);
        }
        let FromPolicy::Moves(content) = FromPolicy::moves(7, &moves) else { unreachable!() };
        assert_eq!(moves_of(&content, 130), Ok(moves));
        assert_eq!(FromPolicy::Moves(content).period(), Some(7));
        let hello = ToPolicy::Hello(Box::new(Hello {
            policy: "recent".into(),
            file: "recent.py".into(),
            class: "Recent".into(),
            source: "class Recent: ...\n".into(),
            seed: 1,
            memory_bytes: 1 << 30,
        }));
        let mut bytes = Vec::new();
        hello.send(&mut bytes).unwrap();
        ToPolicy::Period(vec![1, 2, 3]).send(&mut bytes).unwrap();
        let mut from = &bytes[..];
        assert_eq!(ToPolicy::receive(&mut from).unwrap(), Some(hello));
        assert_eq!(ToPolicy::receive(&mut from).unwrap(), Some(ToPolicy::Period(vec![1, 2, 3])));
        assert_eq!(ToPolicy::receive(&mut from).unwrap(), None);
    }

    #[test]
    fn what_makes_no_sense_is_an_error_and_takes_no_memory() {
        for (bytes, words) in [
            (&[9, 0, 0, 0, 0][..], "a message of kind 9"),
            (&[MOVES, 255, 255, 255, 255], "a message of 4294967295 bytes"),
            (&[MOVES, 255, 255, 255, 0], ""),
            (&[REFUSED, 1, 0, 0, 0, 7], "a refusal without its period"),
            (&[READY, 0], ""),
        ] {
            let error = FromPolicy::receive(&mut &bytes[..]).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        let FromPolicy::Moves(content) = FromPolicy::moves(1, &Moves::none(64)) else {
            unreachable!()
        };
        assert_eq!(
            moves_of(&content, 65),
            Err("an answer of 24 bytes, expected 40 for 65 pages".into())
        );
        let mut content = content;
        content[8] = 2;
        assert_eq!(moves_of(&content, 1), Err("moves of pages past the last of 1".into()));
    }

    #[test]
    fn texts_of_a_policy_are_one_line_and_short() {
        assert_eq!(line(b"a\n\x1b[31mb\t c"), "a [31mb c");
        assert_eq!(line(&[b'x'; 10_000]).len(), MOST_TEXT);
    }
}
