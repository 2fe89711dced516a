//! The addresses of a kernel's symbols, from the table that it keeps for itself (CONFIG_KALLSYMS).
//!
//! A packaged image has no other. The layout is that of scripts/kallsyms.c in Linux 6.4 and later:
//! names, in codes of one byte each; every 256th name's place; the codes' texts and their places;
//! then addresses. It has no magic number: each part is found by what must hold for it, and the
//! address of `_text` must come out right. Otherwise there are no symbols.

use std::path::Path;

use goblin::elf::Elf;
use goblin::elf::program_header::PT_LOAD;
use terrace_timed::causes::{Symbol, is_needed};

/// Names between two that have their place noted.
const BLOCK: usize = 256;
/// The codes of digits stand for themselves, and are one after the other.
const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
/// Far more bytes than texts of codes take.
const TEXTS_MAX_BYTES: usize = 8192;

/// The symbols that the memory clock needs, of an image that starts at the addresses that it is
/// linked for. None of an image that does not, or whose table is not understood.
pub(crate) fn of_image(image: &Path) -> Vec<Symbol> {
    let bytes = std::fs::read(image).unwrap_or_default();
    let Some(all) = symbols(&bytes) else {
        tracing::debug!("{}: no symbols: the kernel's time has no causes", image.display());
        return Vec::new();
    };
    all.into_iter().filter(|symbol| is_needed(&symbol.name)).collect()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Texts of codes: start in the file, text of each code, and the end of their places.
struct Codes<'a> {
    start: usize,
    texts: Vec<&'a [u8]>,
    end: usize,
}

impl<'a> Codes<'a> {
    fn find(bytes: &'a [u8]) -> Option<Self> {
        let mut from = 0;
        while let Some(found) = find(bytes.get(from..)?, DIGITS) {
            let digits = from + found;
            if let Some(codes) = Self::around(bytes, digits) {
                return Some(codes);
            }
            from = digits + 1;
        }
        None
    }

    /// If the text of code '0' is here.
    fn around(bytes: &'a [u8], digits: usize) -> Option<Self> {
        // Back over the texts of smaller codes.
        let mut start = digits;
        for _ in 0..b'0' {
            let before = bytes.get(start.saturating_sub(TEXTS_MAX_BYTES)..start.checked_sub(1)?)?;
            start -= 1 + before.iter().rev().position(|byte| *byte == 0)?;
        }
        let (mut texts, mut places, mut at) = (Vec::new(), Vec::new(), start);
        for _ in 0..=u8::MAX {
            let text = bytes.get(at..at + TEXTS_MAX_BYTES)?;
            let text = &text[..text.iter().position(|byte| *byte == 0)?];
            places.push(u16::try_from(at - start).ok()?);
            texts.push(text);
            at += text.len() + 1;
        }
        // 7.0 aligns to four bytes, older ones to eight.
        let table =
            [4, 8].map(|alignment| at.next_multiple_of(alignment)).into_iter().find(|table| {
                places
                    .iter()
                    .enumerate()
                    .all(|(n, place)| u16_at(bytes, table + 2 * n) == Some(*place))
            })?;
        Some(Codes { start, texts, end: table + 2 * places.len() })
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The codes of the name at this place, and the next name's place.
fn name(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let first = usize::from(*bytes.get(at)?);
    let (length, start) = match first & 0x80 {
        0 => (first, at + 1),
        _ => (first & 0x7F | usize::from(*bytes.get(at + 1)?) << 7, at + 2),
    };
    Some((bytes.get(start..start + length)?, start + length))
}

/// The start and number of names whose places end before the codes.
fn names(bytes: &[u8], codes: &Codes<'_>) -> Option<(usize, usize)> {
    let mut end = codes.start & !3;
    while u32_at(bytes, end.checked_sub(4)?)? == 0 {
        end -= 4;
    }
    let mut places = end;
    let mut blocks = 0;
    loop {
        places = places.checked_sub(4)?;
        blocks += 1;
        if u32_at(bytes, places)? == 0 {
            break;
        }
    }
    if blocks < 2 {
        return None;
    }
    let second = u32_at(bytes, places + 4)? as usize;
    let last = u32_at(bytes, end - 4)? as usize;
    let latest = places.checked_sub(last)? & !3;
    let earliest = latest.saturating_sub(BLOCK * BLOCK);
    (earliest..=latest).rev().step_by(4).find_map(|start| {
        // The number is a word, aligned as the codes are.
        let number = [4, 8].into_iter().find_map(|back| {
            let number = u32_at(bytes, start.checked_sub(back)?)? as usize;
            (number.div_ceil(BLOCK) == blocks).then_some(number)
        })?;
        let mut at = start;
        for _ in 0..BLOCK {
            at = name(bytes, at)?.1;
        }
        (at - start == second).then_some((start, number))
    })
}

/// All symbols of an ELF image of a kernel.
fn symbols(bytes: &[u8]) -> Option<Vec<Symbol>> {
    let elf = Elf::parse(bytes).ok()?;
    let mut loaded = elf.program_headers.iter().filter(|header| header.p_type == PT_LOAD);
    let text = loaded.clone().find(|header| header.is_executable() && header.p_vaddr >> 63 != 0)?;
    let codes = Codes::find(bytes)?;
    let (mut at, number) = names(bytes, &codes)?;
    let mut all = Vec::with_capacity(number);
    for _ in 0..number {
        let (letters, next) = name(bytes, at)?;
        let text: Vec<u8> =
            letters.iter().flat_map(|code| codes.texts[usize::from(*code)]).copied().collect();
        all.push(String::from_utf8(text).ok()?);
        at = next;
    }
    // The first letter is the kind.
    let offset = |n: usize| u32_at(bytes, codes.end + 4 * n);
    let base = u64_at(bytes, (codes.end + 4 * number).next_multiple_of(8));
    let table = loaded.find_map(|header| {
        let within = (codes.end as u64).checked_sub(header.p_offset)?;
        (within < header.p_filesz).then(|| header.p_vaddr + within)
    })?;
    // Relative to a base, counted down from it for all but constants; relative to it; relative to
    // the place of the offset itself.
    let down = |n| Some(base?.wrapping_sub(1).wrapping_sub(offset(n)? as i32 as u64));
    let up = |n| Some(base?.wrapping_add(offset(n)?.into()));
    let of_place = |n: usize| Some((table + 4 * n as u64).wrapping_add(offset(n)? as i32 as u64));
    let address: [&dyn Fn(usize) -> Option<u64>; 3] = [&down, &up, &of_place];
    let start = all.iter().position(|name| name.get(1..) == Some("_text"))?;
    let address = address.into_iter().find(|address| address(start) == Some(text.p_vaddr))?;
    let symbol = |(n, name): (usize, String)| {
        Some(Symbol { name: name.get(1..)?.to_owned(), address: address(n)? })
    };
    all.into_iter().enumerate().map(symbol).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_kernel_has_no_symbols() {
        assert!(symbols(b"").is_none());
        let own = std::env::current_exe().unwrap();
        assert_eq!(of_image(&own), []);
        assert_eq!(of_image(Path::new("/no/such/image")), []);
    }
}
