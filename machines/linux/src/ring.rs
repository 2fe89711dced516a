//! The kernel's trace ring buffer, one page at a time, and the `damon:damon_aggregated` records
//! in it.
//!
//! The binary form (`trace_pipe_raw`) and not the text of `trace_pipe`, because a record is 52
//! bytes instead of about 90, the kernel does not have to print it and the reader not to parse
//! it, and there is a record for every page of the group in every period. Offsets of fields are
//! taken from the event's `format` file and the page's from `header_page`, never assumed. The
//! layout of events within a page is in include/linux/ring_buffer.h (`struct ring_buffer_event`)
//! and `events/header_event`.

use std::path::Path;

use crate::files::FileError;

/// Place of a number in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
}

impl Field {
    fn get(self, bytes: &[u8]) -> Option<u64> {
        let bytes = bytes.get(self.offset..self.offset.checked_add(self.size)?)?;
        Some(match self.size {
            2 => u64::from(u16::from_ne_bytes(bytes.try_into().ok()?)),
            4 => u64::from(u32::from_ne_bytes(bytes.try_into().ok()?)),
            8 => u64::from_ne_bytes(bytes.try_into().ok()?),
            _ => return None,
        })
    }
}

/// Place of the field of this name, from a `field:` line of a format text.
fn field(text: &str, name: &str) -> Option<Field> {
    // "	field:unsigned long target_id;	offset:8;	size:8;	signed:0;"
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("field:") else { continue };
        let mut parts = rest.split(';').map(str::trim);
        let declared = parts.next()?.rsplit(' ').next()?;
        if declared.split('[').next() != Some(name) {
            continue;
        }
        let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse().ok();
        return Some(Field { offset: number("offset:")?, size: number("size:")? });
    }
    None
}

/// The fields of `damon_aggregated` on this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventFormat {
    id: u64,
    common_type: Field,
    common_pid: Field,
    target_id: Field,
    start: Field,
    end: Field,
    nr_accesses: Field,
    record_bytes: usize,
}

impl EventFormat {
    /// Reads the text of the event's `format` file.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let id = text.lines().find_map(|l| l.strip_prefix("ID: ")?.trim().parse().ok());
        let parsed = (|| {
            let nr_accesses = field(text, "nr_accesses")?;
            let age = field(text, "age").unwrap_or(nr_accesses);
            let past = |f: Field| f.offset.checked_add(f.size);
            Some(EventFormat {
                id: id?,
                common_type: field(text, "common_type")?,
                common_pid: field(text, "common_pid")?,
                target_id: field(text, "target_id")?,
                start: field(text, "start")?,
                end: field(text, "end")?,
                nr_accesses,
                record_bytes: past(age)?.max(past(nr_accesses)?),
            })
        })();
        parsed.ok_or_else(|| {
            FileError::malformed(path, text, "the fields of damon_aggregated in Linux 6.12")
        })
    }

    /// Bytes that one record takes in the buffer, its header included.
    pub fn record_bytes(&self) -> usize {
        4 + self.record_bytes.next_multiple_of(4)
    }
}

/// Layout of the beginning of a page of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFormat {
    timestamp: Field,
    commit: Field,
    data: Field,
}

impl PageFormat {
    /// Reads the text of `events/header_page`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let parsed = (|| {
            let format = PageFormat {
                timestamp: field(text, "timestamp")?,
                commit: field(text, "commit")?,
                data: field(text, "data")?,
            };
            // A page of the buffer is at most a few base pages: larger values are invalid.
            (format.page_bytes() <= 1 << 20 && format.data.size > 0).then_some(format)
        })();
        parsed.ok_or_else(|| {
            FileError::malformed(path, text, "the fields timestamp, commit and data")
        })
    }

    /// Size of a page of the buffer.
    pub fn page_bytes(&self) -> usize {
        self.data.offset.saturating_add(self.data.size)
    }
}

/// One region of one period, as DAMON reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Time of writing, on the clock of the trace instance.
    pub time_ns: u64,
    /// The kernel thread that wrote it.
    pub pid: u32,
    /// Position of the target in the thread's context.
    pub target: u64,
    /// First address of the region.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Samples of the period in which it was accessed.
    pub accesses: u64,
}

/// State of a page beside its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageFacts {
    /// Records before this page were overwritten.
    pub missed: bool,
    /// The page is not in the kernel's format; records before the fault are kept.
    pub malformed: bool,
}

/// `RB_MISSED_EVENTS` in the commit word (kernel/trace/ring_buffer.c).
const MISSED: u64 = 1 << 31;
/// Both missed bits; the rest is the number of bytes that hold events.
const MISSED_MASK: u64 = 3 << 30;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// Adds the `damon_aggregated` records of one page to `records`.
pub fn parse_page(
    page: &[u8],
    page_format: &PageFormat,
    event: &EventFormat,
    records: &mut Vec<Record>,
) -> PageFacts {
    let mut facts = PageFacts { missed: false, malformed: true };
    let (Some(mut time_ns), Some(commit)) =
        (page_format.timestamp.get(page), page_format.commit.get(page))
    else {
        return facts;
    };
    facts.missed = commit & MISSED != 0;
    let committed = (commit & 0xffff_ffff & !MISSED_MASK) as usize;
    let start = page_format.data.offset;
    let Some(mut rest) = start.checked_add(committed).and_then(|end| page.get(start..end)) else {
        return facts;
    };
    while !rest.is_empty() {
        let Some(header) = word(rest, 0) else { return facts };
        let (kind, delta) = (header & 31, u64::from(header >> 5));
        let (body, length) = match kind {
            PADDING if delta == 0 => break,
            PADDING => match word(rest, 4) {
                Some(bytes) => (None, (bytes as usize).saturating_add(4)),
                None => return facts,
            },
            TIME_EXTEND | TIME_STAMP => match word(rest, 4) {
                Some(high) if kind == TIME_EXTEND => {
                    time_ns = time_ns.wrapping_add(u64::from(high) << 27).wrapping_add(delta);
                    rest = &rest[8..];
                    continue;
                }
                Some(high) => {
                    // An absolute time of 59 bits: the upper five bits are unchanged.
                    let low = (u64::from(high) << 27) | delta;
                    time_ns = (time_ns & !((1 << 59) - 1)) | low;
                    rest = &rest[8..];
                    continue;
                }
                None => return facts,
            },
            0 => match word(rest, 4) {
                // The stated length includes its own word.
                Some(bytes) => (rest.get(8..), (bytes as usize).saturating_add(4)),
                None => return facts,
            },
            words => (rest.get(4..), 4 + words as usize * 4),
        };
        time_ns = time_ns.wrapping_add(delta);
        if length < 8 || length > rest.len() {
            return facts;
        }
        let header_bytes = if kind == 0 { 8 } else { 4 };
        if let Some(body) = body.and_then(|b| b.get(..length - header_bytes))
            && event.common_type.get(body) == Some(event.id)
        {
            let record = (|| {
                Some(Record {
                    time_ns,
                    pid: event.common_pid.get(body)? as u32,
                    target: event.target_id.get(body)?,
                    start: event.start.get(body)?,
                    end: event.end.get(body)?,
                    accesses: event.nr_accesses.get(body)?,
                })
            })();
            match record {
                Some(record) => records.push(record),
                None => return facts,
            }
        }
        rest = &rest[length..];
    }
    facts.malformed = false;
    facts
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The files of a Debian 6.12 kernel.
    pub const HEADER_PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
         \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
         \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
         \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";
    pub const FORMAT: &str = "name: damon_aggregated\nID: 555\nformat:\n\
         \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
         \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
         \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
         \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
         \tfield:unsigned long target_id;\toffset:8;\tsize:8;\tsigned:0;\n\
         \tfield:unsigned int nr_regions;\toffset:16;\tsize:4;\tsigned:0;\n\
         \tfield:unsigned long start;\toffset:24;\tsize:8;\tsigned:0;\n\
         \tfield:unsigned long end;\toffset:32;\tsize:8;\tsigned:0;\n\
         \tfield:unsigned int nr_accesses;\toffset:40;\tsize:4;\tsigned:0;\n\
         \tfield:unsigned int age;\toffset:44;\tsize:4;\tsigned:0;\n\n\
         print fmt: \"target_id=%lu\", REC->target_id\n";

    fn formats() -> (PageFormat, EventFormat) {
        let path = Path::new("format");
        let page = PageFormat::parse(path, HEADER_PAGE).unwrap();
        (page, EventFormat::parse(path, FORMAT).unwrap())
    }

    pub fn body(record: &Record) -> Vec<u8> {
        let mut b = vec![0; 48];
        b[0..2].copy_from_slice(&555u16.to_ne_bytes());
        b[4..8].copy_from_slice(&record.pid.to_ne_bytes());
        b[8..16].copy_from_slice(&record.target.to_ne_bytes());
        b[24..32].copy_from_slice(&record.start.to_ne_bytes());
        b[32..40].copy_from_slice(&record.end.to_ne_bytes());
        b[40..44].copy_from_slice(&(record.accesses as u32).to_ne_bytes());
        b
    }

    pub fn header(kind: u32, delta: u32) -> [u8; 4] {
        (kind | delta << 5).to_ne_bytes()
    }

    pub fn page(time_ns: u64, data: &[u8], flags: u64) -> Vec<u8> {
        let mut page = Vec::new();
        page.extend(time_ns.to_ne_bytes());
        page.extend((data.len() as u64 | flags).to_ne_bytes());
        page.extend(data);
        page.resize(4096, 0);
        page
    }

    fn record(time_ns: u64, start: u64, accesses: u64) -> Record {
        Record { time_ns, pid: 77, target: 1, start, end: start + 0x1000, accesses }
    }

    #[test]
    fn the_size_of_a_record_is_what_a_6_12_kernel_takes() {
        let (page, event) = formats();
        assert_eq!(event.record_bytes(), 52);
        assert_eq!(page.page_bytes(), 4096);
    }

    #[test]
    fn records_come_back_with_their_times_past_padding_and_time_words() {
        let (page_format, event) = formats();
        let mut data = Vec::new();
        // A short event, then padding of 12 bytes, a long delta, an event in the long form,
        // an event of another kind, an absolute time, one more event.
        data.extend(header(12, 5));
        data.extend(body(&record(0, 0x1000, 1)));
        data.extend(header(PADDING, 1));
        data.extend(8u32.to_ne_bytes());
        data.extend([0; 4]);
        data.extend(header(TIME_EXTEND, 3));
        data.extend(2u32.to_ne_bytes());
        data.extend(header(0, 0));
        data.extend(52u32.to_ne_bytes());
        data.extend(body(&record(0, 0x2000, 0)));
        data.extend(header(2, 0));
        data.extend([9; 8]);
        data.extend(header(TIME_STAMP, 7));
        data.extend(1u32.to_ne_bytes());
        data.extend(header(12, 0));
        data.extend(body(&record(0, 0x3000, 1)));
        let mut got = Vec::new();
        let facts = parse_page(&page(1000, &data, 0), &page_format, &event, &mut got);
        assert_eq!(facts, PageFacts::default());
        let absolute = (1 << 27) | 7;
        let expected = [
            record(1005, 0x1000, 1),
            record(1006 + (2 << 27) + 3, 0x2000, 0),
            record(absolute, 0x3000, 1),
        ];
        assert_eq!(got, expected);
    }

    #[test]
    fn overwritten_records_are_reported() {
        let (page_format, event) = formats();
        let facts = parse_page(&page(0, &[], MISSED), &page_format, &event, &mut Vec::new());
        assert!(facts.missed && !facts.malformed);
    }

    #[test]
    fn a_truncated_page_keeps_what_it_has_and_says_so() {
        let (page_format, event) = formats();
        let mut data = Vec::new();
        data.extend(header(12, 0));
        data.extend(body(&record(0, 0x1000, 1)));
        data.extend(header(12, 0));
        data.extend([0; 8]);
        let mut got = Vec::new();
        let facts = parse_page(&page(0, &data, 0), &page_format, &event, &mut got);
        assert!(facts.malformed);
        assert_eq!(got.len(), 1);
    }

    proptest! {
        #[test]
        fn no_page_breaks_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let (page_format, event) = formats();
            let mut records = Vec::new();
            parse_page(&bytes, &page_format, &event, &mut records);
            // With a plausible header, so that the events are reached.
            parse_page(&page(0, &bytes, 0), &page_format, &event, &mut records);
        }

        #[test]
        fn no_format_breaks_the_parser(text in "(field:|a b;|offset:|size:|[0-9]{1,21}|;|\t|\n|ID: ){0,60}") {
            let _ = EventFormat::parse(Path::new("f"), &text);
            let _ = PageFormat::parse(Path::new("f"), &text);
        }
    }
}
