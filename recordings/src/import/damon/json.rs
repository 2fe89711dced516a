//! damo's present format (its `_damo_records.py`): a list of records, one per target, each with its
//! snapshots. Read as a stream: one snapshot is in memory.
//!
//! ```text
//! [{"kdamond_idx": 0, "context_idx": 0, "intervals": {"aggr_us": 100000}, "target_id": 0,
//!   "snapshots": [{"start_time": 0, "end_time": 100000000,
//!                  "regions": [{"start": "4,096", "end": "8,192",
//!                               "nr_accesses": {"samples": 3, "percent": null}}]}]}]
//! ```
//!
//! Numbers are numbers or text, with commas and with units. A document may have the list
//! within `damo_records`, `damon_records` and `record_list`.

use std::fmt;
use std::io::{self, Read};

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::{ImportError, Input, MOST_REGIONS, Place, ReadUp, Region, Sink, Snapshot};

/// Bytes of one string or number: longer ones are not kept.
const MAX_TOKEN_BYTES: usize = 4096;

pub(super) fn read(input: &mut Input, sink: &mut Sink<'_>) -> Result<ReadUp, ImportError> {
    let mut state = State { sink, records: 0, aggr_ns: None };
    let tokens = Tokens { from: input, in_text: false, escaped: false, length: 0, depth: 0 };
    // serde_json reads byte by byte: buffering is below.
    let mut json = serde_json::Deserializer::from_reader(io::BufReader::new(tokens));
    let done = Document { state: &mut state }.deserialize(&mut json).and_then(|()| json.end());
    let interval_ns = state.aggr_ns;
    match done {
        Ok(()) => Ok(ReadUp { interval_ns, cut: None }),
        Err(e) if e.is_eof() => {
            Ok(ReadUp { interval_ns, cut: Some(Place::Line(e.line().max(1) as u64)) })
        }
        Err(e) if e.is_io() && e.io_error_kind() != Some(io::ErrorKind::InvalidData) => {
            Err(ImportError::Read {
                file: input.name().to_owned(),
                at: input.at(),
                source: e.into(),
            })
        }
        Err(e) => {
            let place = match e.line() {
                0 => Place::Byte(input.at()),
                line => Place::Line(line as u64),
            };
            let message = e.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            Err(input.malformed(place, format!("no record of damo's: {}", message.trim())))
        }
    }
}

/// Lists within lists: damo's go nine deep, and each takes memory.
const MAX_DEPTH: usize = 128;

/// Refuses strings, numbers and nesting that would fill memory.
struct Tokens<'a> {
    from: &'a mut Input,
    in_text: bool,
    escaped: bool,
    length: usize,
    depth: usize,
}

impl Read for Tokens<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(buffer)?;
        for b in &buffer[..n] {
            let ends = match (self.in_text, self.escaped, b) {
                (true, true, _) => {
                    self.escaped = false;
                    false
                }
                (true, false, b'\\') => {
                    self.escaped = true;
                    false
                }
                (in_text, _, b'"') => {
                    self.in_text = !in_text;
                    true
                }
                (true, ..) => false,
                (false, _, b) => !(b.is_ascii_alphanumeric() || b"+-.".contains(b)),
            };
            match b {
                b'[' | b'{' if !self.in_text => self.depth += 1,
                b']' | b'}' if !self.in_text => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth > MAX_DEPTH {
                let message = format!("lists nested more than {MAX_DEPTH} deep");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            self.length = if ends { 0 } else { self.length + 1 };
            if self.length > MAX_TOKEN_BYTES {
                let message = format!("a string or number of more than {MAX_TOKEN_BYTES} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        }
        Ok(n)
    }
}

struct State<'a, 'b> {
    sink: &'a mut Sink<'b>,
    records: u64,
    aggr_ns: Option<u64>,
}

/// Implements a seed that a visitor of itself executes.
macro_rules! visits {
    ($name:ident, $method:ident, $expecting:literal) => {
        impl<'de> DeserializeSeed<'de> for $name<'_, '_, '_> {
            type Value = ();
            fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
                from.$method(self)
            }
        }
        impl $name<'_, '_, '_> {
            fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($expecting)
            }
        }
    };
}

/// The list of records, at any place of the document.
struct Document<'s, 'a, 'b> {
    state: &'s mut State<'a, 'b>,
}
visits!(Document, deserialize_any, "a list of records");

impl<'de> Visitor<'de> for Document<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::expecting(f)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Record { state: self.state })?.is_some() {
            self.state.records += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(key) = map.next_key::<String>()? {
            if ["damo_records", "damon_records", "record_list"].contains(&key.as_str()) {
                found = true;
                map.next_value_seed(Document { state: self.state })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        if found { Ok(()) } else { Err(A::Error::custom("a document without 'record_list'")) }
    }
}

/// One target.
struct Record<'s, 'a, 'b> {
    state: &'s mut State<'a, 'b>,
}
visits!(Record, deserialize_map, "a record");

#[derive(Deserialize)]
struct Intervals {
    aggr_us: Option<Amount>,
}

impl<'de> Visitor<'de> for Record<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "snapshots" => {
                    found = true;
                    map.next_value_seed(Snapshots { state: self.state })?;
                }
                "intervals" => {
                    let intervals = map.next_value::<Option<Intervals>>()?;
                    let aggr = intervals.and_then(|i| i.aggr_us);
                    self.state.aggr_ns = aggr.and_then(|a| a.time_ns(1e3)).or(self.state.aggr_ns);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if found { Ok(()) } else { Err(A::Error::custom("a record without 'snapshots'")) }
    }
}

/// The snapshots of one target.
struct Snapshots<'s, 'a, 'b> {
    state: &'s mut State<'a, 'b>,
}
visits!(Snapshots, deserialize_seq, "a list of snapshots");

#[derive(Deserialize)]
struct OneSnapshot {
    start_time: Option<Amount>,
    end_time: Amount,
    regions: Regions,
}

impl<'de> Visitor<'de> for Snapshots<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::expecting(f)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(one) = seq.next_element::<OneSnapshot>()? {
            let end_ns = one.end_time.time_ns(1.0);
            let end_ns = end_ns.ok_or_else(|| A::Error::custom("an end_time that is no time"))?;
            let start_ns = one.start_time.and_then(|t| t.time_ns(1.0));
            let snapshot = Snapshot { start_ns, end_ns, regions: one.regions.0 };
            let put = self.state.sink.snapshot(self.state.records, &snapshot);
            put.map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

/// At most [`MOST_REGIONS`].
struct Regions(Vec<Region>);

#[derive(Deserialize)]
struct OneRegion {
    start: Amount,
    end: Amount,
    nr_accesses: Option<Accesses>,
}

#[derive(Deserialize)]
struct Accesses {
    samples: Option<Amount>,
    percent: Option<Amount>,
}

impl<'de> Deserialize<'de> for Regions {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Regions;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of regions")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Regions, A::Error> {
                let mut all = Vec::new();
                while let Some(r) = seq.next_element::<OneRegion>()? {
                    if all.len() == MOST_REGIONS {
                        let most = format!("more than {MOST_REGIONS} regions in a snapshot");
                        return Err(A::Error::custom(most));
                    }
                    let no_address = || A::Error::custom("an address that is no number");
                    let start = r.start.whole().ok_or_else(no_address)?;
                    let end = r.end.whole().ok_or_else(no_address)?;
                    let accesses = r.nr_accesses.and_then(|a| a.samples.or(a.percent));
                    // -1 marks an empty snapshot; a fraction of a sample counts as one.
                    let accesses = accesses.map_or(0.0, |a| a.number.ceil()).max(0.0) as u64;
                    all.push(Region { start, end, accesses });
                }
                Ok(Regions(all))
            }
        }
        from.deserialize_seq(List)
    }
}

/// A number, or text of one: `12`, `"4,096"`, `"1.5 s"`.
struct Amount {
    number: f64,
    /// Exactly, where it is whole.
    whole: Option<u64>,
    /// Nanoseconds of its unit, where it has one.
    unit_ns: Option<f64>,
}

impl Amount {
    fn of(number: f64) -> Self {
        let is_whole = number.fract() == 0.0 && (0.0..9e18).contains(&number);
        Amount { number, whole: is_whole.then_some(number as u64), unit_ns: None }
    }

    fn parse(text: &str) -> Option<Self> {
        let plain: String = text.chars().filter(|c| *c != ',').collect();
        let plain = plain.trim();
        let split = plain.find(|c: char| c.is_ascii_alphabetic() || c == '%');
        let (number, unit) = plain.split_at(split.unwrap_or(plain.len()));
        let number = number.trim();
        let unit_ns = match unit.trim() {
            "" | "%" => None,
            "ns" => Some(1.0),
            "us" => Some(1e3),
            "ms" => Some(1e6),
            "s" => Some(1e9),
            "m" => Some(60e9),
            "h" => Some(3600e9),
            "d" => Some(86400e9),
            _ => return None,
        };
        let whole = number.parse::<u64>().ok();
        let value = number.parse::<f64>().ok().filter(|n| n.is_finite())?;
        Some(Amount { whole: whole.or(Amount::of(value).whole), number: value, unit_ns })
    }

    fn whole(&self) -> Option<u64> {
        self.whole.filter(|_| self.unit_ns.is_none())
    }

    /// As a time; a number without a unit counts `plain_ns`.
    fn time_ns(&self, plain_ns: f64) -> Option<u64> {
        let unit_ns = self.unit_ns.unwrap_or(plain_ns);
        let fine = |ns: &u64| *ns < 1 << 62;
        if let Some(whole) = self.whole {
            return whole.checked_mul(unit_ns as u64).filter(fine);
        }
        Some(self.number * unit_ns).filter(|ns| (0.0..4e18).contains(ns)).map(|ns| ns as u64)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Amount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or text of one")
            }
            fn visit_u64<E>(self, number: u64) -> Result<Amount, E> {
                Ok(Amount { number: number as f64, whole: Some(number), unit_ns: None })
            }
            fn visit_i64<E>(self, number: i64) -> Result<Amount, E> {
                Ok(Amount::of(number as f64))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Amount, E> {
                Ok(Amount::of(number))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Amount, E> {
                Amount::parse(text).ok_or_else(|| E::custom(format!("'{text}' is no number")))
            }
        }
        from.deserialize_any(Any)
    }
}
