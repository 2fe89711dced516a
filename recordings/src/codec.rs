//! Numbers, strings, bits and ranges as bytes, and back with every length checked: reading
//! never allocates more than the bytes at hand can fill.

use terrace_core::bits::PageBits;
use terrace_core::page::{SpaceId, VirtualRange};

/// The fault in some bytes: got and expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed(pub String);

/// A number in 7-bit groups, least significant first.
pub(crate) fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A difference, so that small ones of either sign are short.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_number(out, (value << 1 ^ value >> 63) as u64);
}

/// A string with its length.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Eight bytes per 64 bits, each XORed with the word of `base` where there is one: unchanged bits
/// are then zero, which compresses to nothing.
pub(crate) fn put_bits(out: &mut Vec<u8>, bits: &PageBits, base: Option<&PageBits>) {
    match base {
        Some(base) => bits
            .words()
            .iter()
            .zip(base.words())
            .for_each(|(a, b)| out.extend_from_slice(&(a ^ b).to_le_bytes())),
        None => bits.words().iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes())),
    }
}

/// Ranges, each by its distance from the end of the one before.
pub(crate) struct RangeWriter {
    end: u64,
}

impl RangeWriter {
    pub(crate) fn new() -> Self {
        RangeWriter { end: 0 }
    }

    pub(crate) fn put(&mut self, out: &mut Vec<u8>, range: &VirtualRange) {
        put_number(out, range.space.0.into());
        put_signed(out, range.start.wrapping_sub(self.end) as i64);
        put_number(out, range.size_bytes);
        self.end = range.start.wrapping_add(range.size_bytes);
    }
}

/// The counterpart of [`RangeWriter`].
pub(crate) struct RangeReader {
    end: u64,
}

impl RangeReader {
    pub(crate) fn new() -> Self {
        RangeReader { end: 0 }
    }

    pub(crate) fn take(&mut self, from: &mut Cursor<'_>) -> Result<VirtualRange, Malformed> {
        let space = SpaceId(from.number_below(1 << 32, "address space")? as u32);
        let start = self.end.wrapping_add(from.signed()? as u64);
        let size_bytes = from.number()?;
        let end = start.checked_add(size_bytes).filter(|_| size_bytes > 0).ok_or_else(|| {
            Malformed(format!("range of {size_bytes} bytes at {start:#x} is empty or too long"))
        })?;
        self.end = end;
        Ok(VirtualRange { space, start, size_bytes })
    }
}

/// Bytes being read.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor { rest: bytes }
    }

    /// Bytes not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    fn bytes(&mut self, length: usize, what: &str) -> Result<&'a [u8], Malformed> {
        let Some((taken, rest)) = self.rest.split_at_checked(length) else {
            return Err(Malformed(format!(
                "{what} takes {length} bytes, but {} are left",
                self.rest.len()
            )));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N, what)?);
        Ok(array)
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>("a byte")?[0])
    }

    pub(crate) fn float(&mut self) -> Result<f64, Malformed> {
        Ok(f64::from_le_bytes(self.array("a ratio")?))
    }

    #[inline]
    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        // Most numbers of a recording of references take one byte.
        match self.rest.split_first() {
            Some((&byte, rest)) if byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(byte))
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for (shift, &byte) in (0..64).step_by(7).zip(self.rest) {
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Malformed("a number longer than 64 bits".to_owned()));
            }
            value |= bits << shift;
            if byte < 0x80 {
                self.rest = &self.rest[shift / 7 + 1..];
                return Ok(value);
            }
        }
        match self.rest.len() {
            0..10 => Err(Malformed("a number has no end: no bytes are left".to_owned())),
            _ => Err(Malformed("a number longer than 64 bits".to_owned())),
        }
    }

    pub(crate) fn number_below(&mut self, bound: u64, what: &str) -> Result<u64, Malformed> {
        let got = self.number()?;
        if got < bound {
            return Ok(got);
        }
        Err(Malformed(format!("{what} is {got}, expected less than {bound}")))
    }

    #[inline]
    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A count of things that take at least one byte each.
    pub(crate) fn count(&mut self, what: &str) -> Result<usize, Malformed> {
        let got = self.number()?;
        if got <= self.rest.len() as u64 {
            return Ok(got as usize);
        }
        Err(Malformed(format!("{got} {what}, but only {} bytes are left", self.rest.len())))
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let length = self.count("bytes of text")?;
        let bytes = self.bytes(length, "text")?;
        String::from_utf8(bytes.to_vec()).map_err(|_| Malformed("text is not UTF-8".to_owned()))
    }

    /// The counterpart of [`put_bits`]; `base`, where given, has `len` bits.
    pub(crate) fn bits(
        &mut self,
        len: usize,
        base: Option<&PageBits>,
    ) -> Result<PageBits, Malformed> {
        let size = len.div_ceil(64).saturating_mul(8);
        let bytes = self.bytes(size, "one bit per page")?;
        let (words, _) = bytes.as_chunks::<8>();
        let words = words.iter().map(|w| u64::from_le_bytes(*w));
        let words: Vec<u64> = match base {
            Some(base) => words.zip(base.words()).map(|(a, b)| a ^ b).collect(),
            None => words.collect(),
        };
        Ok(PageBits::from_words(words, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_put_is_taken(
            numbers in prop::collection::vec(any::<u64>(), 0..20),
            signed: i64,
            text in ".{0,20}",
            ranges in prop::collection::vec((any::<u32>(), any::<u64>(), 1u64..), 0..20),
        ) {
            let ranges: Vec<_> = ranges
                .into_iter()
                .filter(|(_, start, size)| start.checked_add(*size).is_some())
                .map(|(space, start, size_bytes)| VirtualRange { space: SpaceId(space), start, size_bytes })
                .collect();
            let mut out = Vec::new();
            numbers.iter().for_each(|&n| put_number(&mut out, n));
            put_signed(&mut out, signed);
            put_text(&mut out, &text);
            let mut writer = RangeWriter::new();
            ranges.iter().for_each(|r| writer.put(&mut out, r));

            let mut cursor = Cursor::new(&out);
            for n in numbers {
                prop_assert_eq!(cursor.number(), Ok(n));
            }
            prop_assert_eq!(cursor.signed(), Ok(signed));
            prop_assert_eq!(cursor.text(), Ok(text));
            let mut reader = RangeReader::new();
            for r in ranges {
                prop_assert_eq!(reader.take(&mut cursor), Ok(r));
            }
            prop_assert_eq!(cursor.remaining(), 0);
        }

        #[test]
        fn bits_survive_with_and_without_a_base(
            pairs in prop::collection::vec(any::<(bool, bool)>(), 0..300),
        ) {
            let bits: PageBits = pairs.iter().map(|p| p.0).collect();
            let base: PageBits = pairs.iter().map(|p| p.1).collect();
            for base in [None, Some(&base)] {
                let mut out = Vec::new();
                put_bits(&mut out, &bits, base);
                prop_assert_eq!(Cursor::new(&out).bits(bits.len(), base), Ok(bits.clone()));
            }
        }
    }

    #[test]
    fn lengths_beyond_the_bytes_at_hand_are_refused() {
        let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Cursor::new(&huge).number(), Ok(u64::MAX));
        assert!(Cursor::new(&huge).text().is_err());
        assert!(Cursor::new(&huge).bits(usize::MAX, None).is_err());
        assert!(Cursor::new(&[0xff; 11]).number().is_err());
        assert!(Cursor::new(&[0x80]).number().is_err());
    }
}
