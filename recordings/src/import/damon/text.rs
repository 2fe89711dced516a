//! `perf script` of the tracepoint `damon:damon_aggregated`, a line per region:
//!
//! ```text
//! kdamond.0  4452 [000] 82877.315633: damon:damon_aggregated: target_id=1 nr_regions=17 140-150: 0 3
//! ```
//!
//! Times are those at which snapshots end; the last number, the region's age, is not always there.
//! Lines of other tracepoints are skipped. Perf may lose lines: a snapshot is left out, and counted, where
//! the next one begins before it has all of its regions.

use std::collections::BTreeMap;

use super::super::input::Line;
use super::{
    ImportError, Input, MOST_REGIONS, MOST_TARGETS, Place, ReadUp, Region, Sink, Snapshot,
};

pub(super) const EVENT: &str = "damon_aggregated:";

pub(super) fn read(input: &mut Input, sink: &mut Sink<'_>) -> Result<ReadUp, ImportError> {
    // By target, with the number of regions that it has: the regions of a snapshot come in sequence, but
    // those of several targets may be mixed.
    let mut open: BTreeMap<u64, (u64, Snapshot)> = BTreeMap::new();
    let mut held = 0;
    let mut last = None;
    let mut line = Vec::new();
    while input.line(&mut line)? == Line::Whole {
        let text = String::from_utf8_lossy(&line);
        let trimmed = text.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let Some((before, after)) = text.split_once(EVENT) else {
            let other =
                text.split_whitespace().any(|w| w.starts_with("damon:") && w.ends_with(':'));
            if other {
                continue;
            }
            return Err(input.bad_line(&line, "a line of the tracepoint damon:damon_aggregated"));
        };
        let Some((end_ns, target, count, region)) = parse(before, after) else {
            return Err(input.bad_line(&line, "target_id=N nr_regions=N START-END: ACCESSES AGE"));
        };
        if count > MOST_REGIONS as u64
            || (!open.contains_key(&target) && open.len() >= MOST_TARGETS)
        {
            let message = format!("more than {MOST_REGIONS} regions or {MOST_TARGETS} targets");
            return Err(input.malformed(Place::Line(input.lines()), message));
        }
        last = Some(target);
        let (expected, snapshot) = open.entry(target).or_default();
        // Regions come in the order of their addresses.
        let follows = snapshot.regions.last().is_none_or(|last: &Region| region.start >= last.end);
        if !(snapshot.regions.is_empty() || follows && *expected == count) {
            held -= snapshot.regions.len();
            snapshot.regions.clear();
            sink.totals.incomplete += 1;
        }
        (*expected, snapshot.end_ns) = (count, end_ns);
        snapshot.regions.push(region);
        held += 1;
        if snapshot.regions.len() as u64 >= count {
            held -= snapshot.regions.len();
            let put = sink.snapshot(target, snapshot);
            put.map_err(|what| input.malformed(Place::Line(input.lines()), what))?;
            snapshot.regions.clear();
        }
        if held > MOST_REGIONS {
            let message = format!("more than {MOST_REGIONS} regions of unfinished snapshots");
            return Err(input.malformed(Place::Line(input.lines()), message));
        }
    }
    // The file ends within a snapshot; those of other targets lack lines before it.
    let is_open = |target: &u64| open.get(target).is_some_and(|o| !o.1.regions.is_empty());
    let others = open.keys().filter(|target| Some(**target) != last && is_open(target));
    sink.totals.incomplete += others.count() as u64;
    let cut = input.is_cut() || last.is_some_and(|last| is_open(&last));
    Ok(ReadUp { interval_ns: None, cut: cut.then_some(Place::Line(input.lines() + 1)) })
}

/// End, target, number of regions, region.
fn parse(before: &str, after: &str) -> Option<(u64, u64, u64, Region)> {
    // `... 82877.315633: damon:`; the last word is what the split left of the event's name.
    let time = before.split_whitespace().rev().find_map(|w| {
        let (seconds, places) = w.strip_suffix(':')?.split_once('.')?;
        let places = places.get(..9).unwrap_or(places);
        let fraction = places.parse::<u64>().ok()? * 10u64.pow(9 - places.len() as u32);
        seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
    })?;
    let mut words = after.split_whitespace();
    let target = words.next()?.strip_prefix("target_id=")?.parse().ok()?;
    let count = words.next()?.strip_prefix("nr_regions=")?.parse().ok()?;
    let (start, end) = words.next()?.strip_suffix(':')?.split_once('-')?;
    // -1 marks an empty snapshot.
    let accesses = words.next()?.parse::<i64>().ok()?.max(0) as u64;
    let region = Region { start: start.parse().ok()?, end: end.parse().ok()?, accesses };
    Some((time, target, count, region))
}
