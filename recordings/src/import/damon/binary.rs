//! The old `damon.data` of damo before 2.3 (its `_damon_result.py`), little-endian:
//!
//! ```text
//! file     = ["damon_recfmt_ver" version:i32] time*        without the mark: version 0
//! time     = seconds:i64 nanoseconds:i64 targets:u32 target*
//! target   = id regions:u32 (start:u64 end:u64 accesses:u32)*
//! id       = i32 in version 1, else u64
//! ```
//!
//! Times are those at which snapshots end.

use super::{
    ImportError, Input, MOST_REGIONS, MOST_TARGETS, Place, ReadUp, Region, Sink, Snapshot,
};

/// The first bytes of a file of versions 1 and 2.
pub(super) const MAGIC: &[u8] = b"damon_recfmt_ver";

pub(super) fn read(input: &mut Input, sink: &mut Sink<'_>) -> Result<ReadUp, ImportError> {
    let mut version = 0;
    if input.peek(MAGIC.len())? == MAGIC {
        let mut head = [0; 20];
        if input.fill(&mut head)? < head.len() {
            return Ok(ReadUp { interval_ns: None, cut: Some(Place::Byte(MAGIC.len() as u64)) });
        }
        version = i32::from_le_bytes([head[16], head[17], head[18], head[19]]);
        if !(0..=2).contains(&version) {
            let message = format!("format version {version}, expected 0, 1 or 2");
            return Err(input.malformed(Place::Byte(16), message));
        }
    }
    let mut snapshot = Snapshot::default();
    loop {
        let at = input.at();
        let cut = Ok(ReadUp { interval_ns: None, cut: Some(Place::Byte(at)) });
        let mut head = [0; 20];
        match input.fill(&mut head)? {
            20 => {}
            0 if !input.is_cut() => return Ok(ReadUp { interval_ns: None, cut: None }),
            _ => return cut,
        }
        let bad = |what: String| input.malformed(Place::Byte(at), what);
        let [seconds, nanoseconds] = [long(&head, 0), long(&head, 8)];
        let end_ns = seconds
            .checked_mul(1_000_000_000)
            .and_then(|ns| ns.checked_add(nanoseconds))
            .filter(|_| nanoseconds < 1_000_000_000 && seconds < 1 << 40);
        let Some(end_ns) = end_ns else {
            return Err(bad(format!(
                "a time of {seconds} seconds and {nanoseconds} nanoseconds; expected a DAMON record"
            )));
        };
        let targets = number(&head, 16) as usize;
        if targets > MOST_TARGETS {
            return Err(bad(format!("{targets} targets, expected at most {MOST_TARGETS}")));
        }
        for _ in 0..targets {
            let at = input.at();
            let mut head = [0; 12];
            let head = if version == 1 { &mut head[4..] } else { &mut head[..] };
            if input.fill(head)? < head.len() {
                return cut;
            }
            let (target, regions) = match version {
                1 => (u64::from(number(head, 0)), number(head, 4)),
                _ => (long(head, 0), number(head, 8)),
            };
            if regions as usize > MOST_REGIONS {
                let message = format!("{regions} regions, expected at most {MOST_REGIONS}");
                return Err(input.malformed(Place::Byte(at), message));
            }
            snapshot.end_ns = end_ns;
            snapshot.regions.clear();
            for _ in 0..regions {
                let mut region = [0; 20];
                if input.fill(&mut region)? < region.len() {
                    return cut;
                }
                snapshot.regions.push(Region {
                    start: long(&region, 0),
                    end: long(&region, 8),
                    accesses: number(&region, 16).into(),
                });
            }
            let put = sink.snapshot(target, &snapshot);
            put.map_err(|what| input.malformed(Place::Byte(at), what))?;
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(number(bytes, at)) | u64::from(number(bytes, at + 4)) << 32
}
