//! The part of the Redis protocol for GET, SET, SETRANGE and INFO: commands as arrays of bulk
//! strings; replies that are not arrays (Redis documentation, "Redis serialization protocol").

use std::io::Write;

/// The longest bulk string Redis sends (`proto-max-bulk-len`).
const MAX_BULK_BYTES: usize = 512 << 20;
/// The longest line accepted as a line of a reply.
const MAX_LINE_BYTES: usize = 64 << 10;

/// One reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `+OK`.
    Status(&'a [u8]),
    /// `-ERR ...`.
    Error(&'a [u8]),
    /// `:1`.
    Integer(i64),
    /// `$3 foo`.
    Bulk(&'a [u8]),
    /// `$-1`: no such key.
    Nil,
}

/// The state of the bytes at the front of a reader's buffer.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A reply, and how many bytes it took.
    Complete(Reply<'a>, usize),
    /// At least so many bytes are needed in all.
    Needs(usize),
}

/// Reads one reply from the front of `bytes`. The error contains what was there instead.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, String> {
    let Some(&kind) = bytes.first() else { return Ok(Parsed::Needs(1)) };
    if !b"+-:$".contains(&kind) {
        let start: String = bytes.iter().take(20).map(|b| b.escape_ascii().to_string()).collect();
        return Err(format!("'{start}'"));
    }
    let head = &bytes[..bytes.len().min(MAX_LINE_BYTES)];
    let Some(end) = head.windows(2).position(|w| w == b"\r\n") else {
        if bytes.len() >= MAX_LINE_BYTES {
            return Err(format!("a line of more than {MAX_LINE_BYTES} bytes"));
        }
        return Ok(Parsed::Needs(bytes.len() + 1));
    };
    let line = &bytes[1..end];
    let after = end + 2;
    let number = || {
        std::str::from_utf8(line)
            .ok()
            .and_then(|t| t.parse::<i64>().ok())
            .ok_or_else(|| format!("the number '{}'", line.escape_ascii()))
    };
    let reply = match kind {
        b'+' => Reply::Status(line),
        b'-' => Reply::Error(line),
        b':' => Reply::Integer(number()?),
        _ => match number()? {
            -1 => Reply::Nil,
            length => {
                let length = usize::try_from(length)
                    .ok()
                    .filter(|&l| l <= MAX_BULK_BYTES)
                    .ok_or_else(|| format!("a string of {length} bytes"))?;
                let total = after + length + 2;
                if bytes.len() < total {
                    return Ok(Parsed::Needs(total));
                }
                if &bytes[total - 2..total] != b"\r\n" {
                    return Err("a string longer than it printed".into());
                }
                return Ok(Parsed::Complete(Reply::Bulk(&bytes[after..total - 2]), total));
            }
        },
    };
    Ok(Parsed::Complete(reply, after))
}

/// Appends the head of a command of `arguments` arguments; each follows by [`argument`].
pub fn command(out: &mut Vec<u8>, arguments: usize) {
    length(out, b'*', arguments);
}

/// Appends one argument.
pub fn argument(out: &mut Vec<u8>, bytes: &[u8]) {
    argument_with(out, bytes.len(), |out| out.extend_from_slice(bytes));
}

/// Appends one argument of `size_bytes` that `fill` appends.
pub fn argument_with(out: &mut Vec<u8>, size_bytes: usize, fill: impl FnOnce(&mut Vec<u8>)) {
    length(out, b'$', size_bytes);
    let start = out.len();
    fill(out);
    debug_assert_eq!(out.len() - start, size_bytes);
    out.extend_from_slice(b"\r\n");
}

fn length(out: &mut Vec<u8>, kind: u8, value: usize) {
    out.push(kind);
    write!(out, "{value}\r\n").expect("a vector takes every byte");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_kind_of_reply_is_read_to_its_end() {
        let cases: [(&[u8], Reply, usize); 6] = [
            (b"+OK\r\n+", Reply::Status(b"OK"), 5),
            (b"-ERR no\r\n", Reply::Error(b"ERR no"), 9),
            (b":-12\r\n", Reply::Integer(-12), 6),
            (b"$3\r\na\rb\r\n$", Reply::Bulk(b"a\rb"), 9),
            (b"$0\r\n\r\n", Reply::Bulk(b""), 6),
            (b"$-1\r\n", Reply::Nil, 5),
        ];
        for (bytes, reply, used) in cases {
            assert_eq!(parse(bytes), Ok(Parsed::Complete(reply, used)));
            for cut in 0..used {
                let Ok(Parsed::Needs(more)) = parse(&bytes[..cut]) else { panic!("{cut}") };
                assert!(more > cut && more <= used);
            }
        }
    }

    #[test]
    fn what_is_not_a_reply_is_reported() {
        let bad = [
            &b"HTTP/1.1 400\r\n"[..],
            b"$x\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b"$1\r\nabc",
            b":\r\n",
        ];
        for bytes in bad {
            assert!(parse(bytes).is_err(), "{}", bytes.escape_ascii());
        }
        assert!(parse(&[b'+'; MAX_LINE_BYTES]).is_err());
    }

    #[test]
    fn a_command_is_written_as_the_protocol_says() {
        let mut out = Vec::new();
        command(&mut out, 2);
        argument(&mut out, b"GET");
        argument(&mut out, b"k");
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_reply_an_error_or_too_short(bytes in prop::collection::vec(
            prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'$'), Just(b'+'), b'0'..=b'9', any::<u8>()], 0..40)) {
            match parse(&bytes) {
                Ok(Parsed::Complete(_, used)) => prop_assert!(used <= bytes.len()),
                Ok(Parsed::Needs(more)) => prop_assert!(more > bytes.len()),
                Err(message) => prop_assert!(!message.is_empty()),
            }
        }
    }
}
