//! The common part of all generators: memory that is touched in order at the start, a layout, time
//! in periods, an end. The touches in between are a [`Pattern`].

use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use terrace_core::bits::PageBits;
use terrace_core::page::Layout;
use terrace_core::parameters;
use terrace_recordings::source::{PeriodAccesses, PeriodSource, SourceError};

use super::{Built, COMMON_PARAMETERS, GeneratorError, Timing};

/// A span of time in ms since the end of the start-up, its end excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
}

impl Span {
    pub(super) fn length_ms(&self) -> u64 {
        self.to_ms - self.from_ms
    }
}

/// Which pages are touched when. Called with spans in order, each beginning where the one before
/// ended.
pub(super) trait Pattern: Send {
    /// Sets the bits of the pages touched in the span.
    fn touch(&mut self, span: Span, accessed: &mut PageBits);
}

/// More than any machine has; keeps arithmetic on pages within 64 bits.
const MAX_FOOTPRINT_MIB: u64 = 1 << 26;

/// A day; keeps arithmetic on times within 64 bits.
const MAX_PERIOD_MS: u64 = 24 * 3600 * 1000;

/// The parameters that every generator has: see [`COMMON_PARAMETERS`].
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Common {
    footprint_mib: u64,
    startup_ms: u64,
    duration_ms: Option<u64>,
}

impl Default for Common {
    fn default() -> Self {
        Common { footprint_mib: 1024, startup_ms: 2000, duration_ms: None }
    }
}

pub(super) fn bad(generator: &'static str, message: String) -> GeneratorError {
    GeneratorError::BadParameter { generator, message }
}

/// The members of an object of parameters; none for null.
pub(crate) fn members(
    generator: &'static str,
    parameters: &Value,
) -> Result<Map<String, Value>, GeneratorError> {
    match parameters {
        Value::Null => Ok(Map::new()),
        Value::Object(members) => Ok(members.clone()),
        other => Err(bad(generator, format!("parameters are {other}, expected an object"))),
    }
}

/// Parameters from an object.
pub(super) fn parse<T: DeserializeOwned>(
    generator: &'static str,
    members: Map<String, Value>,
) -> Result<T, GeneratorError> {
    parameters::read(&Value::Object(members)).map_err(|message| bad(generator, message))
}

/// Takes the common parameters out of an object; the rest is the generator's own.
fn split(
    generator: &'static str,
    parameters: &Value,
) -> Result<(Common, Map<String, Value>), GeneratorError> {
    let (common, own) = members(generator, parameters)?
        .into_iter()
        .partition(|(key, _)| COMMON_PARAMETERS.iter().any(|p| p.name == key));
    let common: Common = parse(generator, common)?;
    if !(1..=MAX_FOOTPRINT_MIB).contains(&common.footprint_mib) {
        let got = common.footprint_mib;
        let message = format!("footprint_mib is {got}, expected 1 to {MAX_FOOTPRINT_MIB}");
        return Err(bad(generator, message));
    }
    Ok((common, own))
}

/// The footprint of a program, in bytes.
pub(super) fn footprint_bytes(
    generator: &'static str,
    parameters: &Value,
) -> Result<u64, GeneratorError> {
    Ok(split(generator, parameters)?.0.footprint_mib << 20)
}

/// Builds the program of a generator whose own parameters are `P`. `pattern` makes the pattern of
/// that many pages, or returns the error.
pub(super) fn build<P: DeserializeOwned>(
    generator: &'static str,
    parameters: &Value,
    timing: Timing,
    pattern: impl FnOnce(P, usize) -> Result<Box<dyn Pattern>, String>,
) -> Built {
    let (common, own) = split(generator, parameters)?;
    let own: P = parse(generator, own).map_err(|e| match e {
        GeneratorError::BadParameter { message, .. } if message.starts_with("unknown field") => {
            let common: Vec<_> = COMMON_PARAMETERS.iter().map(|p| p.name).collect();
            bad(generator, format!("{message}, or one of {}", common.join(", ")))
        }
        other => other,
    })?;
    if !(1..=MAX_PERIOD_MS).contains(&timing.period_ms) {
        let message = format!("period_ms is {}, expected 1 to {MAX_PERIOD_MS}", timing.period_ms);
        return Err(bad(generator, message));
    }
    let page_bytes = timing.page_size.bytes();
    let bytes = common.footprint_mib << 20;
    if !bytes.is_multiple_of(page_bytes) {
        let message = format!(
            "footprint_mib is {}, expected a multiple of {} for pages of {page_bytes} bytes",
            common.footprint_mib,
            page_bytes >> 20
        );
        return Err(bad(generator, message));
    }
    let pages = (bytes / page_bytes) as usize;
    let pattern = pattern(own, pages).map_err(|message| bad(generator, message))?;
    Ok(Box::new(Program {
        timing,
        pages,
        startup_ms: common.startup_ms,
        duration_ms: common.duration_ms,
        now_ms: 0,
        layout: Arc::new(Layout::contiguous(timing.page_size, 0)),
        pattern,
    }))
}

/// A program that runs period by period.
struct Program {
    timing: Timing,
    pages: usize,
    startup_ms: u64,
    duration_ms: Option<u64>,
    now_ms: u64,
    layout: Arc<Layout>,
    pattern: Box<dyn Pattern>,
}

impl PeriodSource for Program {
    fn next_period(&mut self) -> Result<Option<PeriodAccesses>, SourceError> {
        if self.duration_ms.is_some_and(|duration_ms| self.now_ms >= duration_ms) {
            return Ok(None);
        }
        let (from_ms, to_ms) = (self.now_ms, self.now_ms + self.timing.period_ms);
        self.now_ms = to_ms;
        let touched = if to_ms >= self.startup_ms {
            self.pages
        } else {
            position(to_ms, self.pages, self.startup_ms, Rounding::Up) as usize
        };
        if self.layout.pages() != touched {
            let layout = Layout::contiguous(self.timing.page_size, touched as u64);
            self.layout = Arc::new(layout);
        }
        let mut accessed = PageBits::new(touched);
        if from_ms < self.startup_ms {
            let first = position(from_ms, self.pages, self.startup_ms, Rounding::Down) as usize;
            accessed.set_range(first..touched, true);
        }
        if to_ms > self.startup_ms {
            let span = Span {
                from_ms: from_ms.saturating_sub(self.startup_ms),
                to_ms: to_ms - self.startup_ms,
            };
            self.pattern.touch(span, &mut accessed);
        }
        Ok(Some(PeriodAccesses { layout: self.layout.clone(), accessed, lost_periods: 0 }))
    }
}

pub(super) enum Rounding {
    Up,
    Down,
}

/// The number of pages that a walk over `pages` in `sweep_ms` has passed after `time_ms`; rounded
/// up, the current page counts.
pub(super) fn position(time_ms: u64, pages: usize, sweep_ms: u64, rounding: Rounding) -> u64 {
    let (way, sweep_ms) = (u128::from(time_ms) * pages as u128, u128::from(sweep_ms));
    let position = match rounding {
        Rounding::Up => way.div_ceil(sweep_ms),
        Rounding::Down => way / sweep_ms,
    };
    u64::try_from(position).unwrap_or(u64::MAX)
}
