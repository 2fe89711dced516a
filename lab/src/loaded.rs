//! The part of a program or library that is loaded when it runs: what a guest is given of it.
//!
//! Symbols and debug information behind it are left out: of a build with line tables they are five
//! sixths of the file, and a guest keeps its files in memory and copies them as it boots. What else may
//! be behind it, such as data that a program reads from its own file, is carried as it is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use goblin::container::{Container, Ctx};
use goblin::elf::section_header::{SHN_UNDEF, SHT_NOBITS, SHT_NULL};
use goblin::elf::{Elf, ProgramHeader, SectionHeader};

/// Less than this is not worth it.
const LEAST_BYTES: u64 = 1 << 20;
const HEADER_BYTES: usize = 64;
/// Sections that nothing reads as the program runs.
const UNREAD: [&str; 6] =
    [".comment", ".gdb_index", ".gnu_debuglink", ".shstrtab", ".strtab", ".symtab"];

/// The beginning of a file that is loaded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// How much it is.
    pub(crate) bytes: u64,
    /// Its first bytes, in which no sections are named.
    pub(crate) header: [u8; HEADER_BYTES],
}

/// The loaded part of an ELF file of 64 bits; `None` if the whole file is to be carried.
pub(crate) fn of(file: &File) -> io::Result<Option<Loaded>> {
    let length = file.metadata()?.len();
    if length < LEAST_BYTES {
        return Ok(None);
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    let Some(bytes) = end(file, &header, length)? else { return Ok(None) };
    if bytes + LEAST_BYTES > length || bytes < HEADER_BYTES as u64 {
        return Ok(None);
    }
    // e_shoff; e_shnum and e_shstrndx.
    header[0x28..0x30].fill(0);
    header[0x3c..].fill(0);
    Ok(Some(Loaded { bytes, header }))
}

/// Where the loaded part ends, if nothing but symbols and debug information is behind it.
fn end(file: &File, header: &[u8], length: u64) -> io::Result<Option<u64>> {
    let Ok(parsed) = Elf::parse_header(header) else { return Ok(None) };
    let is_known = parsed.e_ident[4..6] == [2, 1] && parsed.e_phnum > 0 && parsed.e_shnum > 0;
    if !is_known || u32::from(parsed.e_shstrndx) == SHN_UNDEF {
        return Ok(None);
    }
    let ctx = Ctx::new(Container::Big, goblin::container::Endian::Little);
    let (segments_at, sections_at) = (parsed.e_phoff, parsed.e_shoff);
    let segments = u64::from(parsed.e_phnum) * u64::from(parsed.e_phentsize);
    let table_bytes = u64::from(parsed.e_shnum) * u64::from(parsed.e_shentsize);
    let Some(segments) = part(file, segments_at, segments, length)? else { return Ok(None) };
    // An offset of 0 is none to the parser, so it gets some bytes before the table as well.
    let before = (HEADER_BYTES as u64).min(sections_at);
    let Some(table) = part(file, sections_at - before, before + table_bytes, length)? else {
        return Ok(None);
    };
    let segments = ProgramHeader::parse(&segments, 0, parsed.e_phnum.into(), ctx);
    let sections = SectionHeader::parse(&table, before as usize, parsed.e_shnum.into(), ctx);
    let (Ok(segments), Ok(sections)) = (segments, sections) else { return Ok(None) };
    let ends = segments.iter().map(|one| one.p_offset.saturating_add(one.p_filesz));
    let loaded = ends.max().unwrap_or(0);
    let Some(names) = sections.get(usize::from(parsed.e_shstrndx)) else { return Ok(None) };
    let Some(names) = part(file, names.sh_offset, names.sh_size, length)? else { return Ok(None) };

    let mut last = sections_at + table_bytes;
    let is_behind = |section: &&SectionHeader| {
        ![SHT_NULL, SHT_NOBITS].contains(&section.sh_type)
            && section.sh_offset.saturating_add(section.sh_size) > loaded
    };
    for section in sections.iter().filter(is_behind) {
        let name = names.get(section.sh_name..).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = std::str::from_utf8(name).unwrap_or_default();
        if section.sh_offset < loaded || !(name.starts_with(".debug") || UNREAD.contains(&name)) {
            return Ok(None);
        }
        last = last.max(section.sh_offset.saturating_add(section.sh_size));
    }
    // A program may have appended data to itself.
    Ok((sections_at >= loaded && last == length).then_some(loaded))
}

/// These bytes of a file, if it has them.
fn part(file: &File, at: u64, bytes: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
    if at.checked_add(bytes).is_none_or(|end| end > length) {
        return Ok(None);
    }
    let mut out = vec![0; bytes as usize];
    file.read_exact_at(&mut out, at)?;
    Ok(Some(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::Command;

    fn me() -> File {
        File::open(std::env::current_exe().unwrap()).unwrap()
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_program_runs_without_what_is_left_out() {
        let loaded = of(&me()).unwrap().expect("a test program has symbols");
        let mut bytes = Vec::new();
        me().take(loaded.bytes).read_to_end(&mut bytes).unwrap();
        bytes[..HEADER_BYTES].copy_from_slice(&loaded.header);
        assert!((bytes.len() as u64) < me().metadata().unwrap().len());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o700);
        options.open(&path).unwrap().write_all(&bytes).unwrap();
        let output = Command::new(&path).arg("--list").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("runs_without_what_is_left_out"),
            "{text}"
        );
    }

    #[test]
    fn what_a_program_appends_to_itself_is_carried() {
        let mut bytes = Vec::new();
        me().read_to_end(&mut bytes).unwrap();
        assert!(of(&file(&bytes)).unwrap().is_some());
        bytes.extend_from_slice(b"PK");
        assert_eq!(of(&file(&bytes)).unwrap(), None);
    }

    #[test]
    fn what_is_no_program_or_is_damaged_is_carried() {
        assert_eq!(of(&file(&vec![b'#'; 2 << 20])).unwrap(), None);
        let mut bytes = Vec::new();
        me().read_to_end(&mut bytes).unwrap();
        assert_eq!(of(&file(&bytes[..bytes.len() / 2])).unwrap(), None);
        // A table of sections behind the end, one without sections, and section names from nowhere.
        for (at, with) in [(0x28, [0xff; 8]), (0x3a, [0; 8]), (0x38, [0xff; 8])] {
            let mut bytes = bytes.clone();
            let end = HEADER_BYTES.min(at + 8);
            bytes[at..end].copy_from_slice(&with[..end - at]);
            assert_eq!(of(&file(&bytes)).unwrap(), None, "{at}");
        }
    }
}
