//! `mix`: one generator after another. Each part is a program of its own: when it ends its memory
//! is freed, and the next one starts up in fresh memory. With `same_memory` it is one program that
//! changes its behaviour.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use terrace_core::page::{Extent, Layout, SpaceId};
use terrace_core::parameters::ParameterDoc;
use terrace_recordings::source::{PeriodAccesses, PeriodSource, SourceError};

use super::program::{bad, members, parse};
use super::{Built, GeneratorError, GeneratorKind, Timing};

const NAME: &str = "mix";

/// The mixes of the adaptive-migration-policy paper, section 6.6, table 5: first one workload, then
/// another, for every ordered pair of the three. Mix 1 is the one whose first workload LRU suits,
/// after which AMP is slow to learn; the others are in alphabetical order of the first workload.
pub const MIXES: [[&str; 2]; 6] = [
    ["lru-favor", "lfu-favor"],
    ["lru-favor", "random-favor"],
    ["lfu-favor", "lru-favor"],
    ["lfu-favor", "random-favor"],
    ["random-favor", "lru-favor"],
    ["random-favor", "lfu-favor"],
];

pub(super) const KIND: GeneratorKind = GeneratorKind {
    name: NAME,
    summary: "one generator after another, each a program with its own memory",
    stands_for: "the mixes of the adaptive-migration-policy paper, section 6.6, table 5 (A8)",
    parameters: &[
        ParameterDoc {
            name: "parts",
            default: "none: it must be given",
            meaning: "list of {generator, parameters}; every part but the last needs a duration_ms among its parameters",
        },
        ParameterDoc {
            name: "same_memory",
            default: "false",
            meaning: "the parts use the same memory: one program that changes its behaviour, as a live machine needs it; the parts after the first then start without start-up, unless they ask for one",
        },
    ],
    build,
    footprint_bytes,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    parts: Vec<Part>,
    #[serde(default)]
    same_memory: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    generator: String,
    #[serde(default)]
    parameters: Value,
}

/// Parses and checks; every part is one that can be built by itself.
fn parameters(value: &Value) -> Result<Parameters, GeneratorError> {
    let parameters: Parameters = parse(NAME, members(NAME, value)?)?;
    let Some((_, before)) = parameters.parts.split_last() else {
        return Err(bad(NAME, "parts is empty, expected at least one".to_owned()));
    };
    if let Some(part) = parameters.parts.iter().find(|p| p.generator == NAME) {
        let message =
            format!("a part is itself a '{}'; put its parts in its place", part.generator);
        return Err(bad(NAME, message));
    }
    for (number, part) in before.iter().enumerate() {
        if part.parameters.get("duration_ms").is_none_or(Value::is_null) {
            let message = format!(
                "part {} ('{}') has no duration_ms, so the next would never start; give it one",
                number + 1,
                part.generator
            );
            return Err(bad(NAME, message));
        }
    }
    Ok(parameters)
}

fn footprint_bytes(value: &Value) -> Result<u64, GeneratorError> {
    let parts = parameters(value)?.parts;
    let footprints = parts.iter().map(|p| super::footprint_bytes(&p.generator, &p.parameters));
    footprints.reduce(|a, b| Ok(a?.max(b?))).unwrap_or(Ok(0))
}

fn build(value: &Value, timing: Timing) -> Built {
    let Parameters { parts, same_memory } = parameters(value)?;
    let mut built = Vec::new();
    for (number, part) in parts.into_iter().enumerate() {
        let mut own = part.parameters;
        if same_memory && number > 0 {
            let mut with_startup = members(NAME, &own)?;
            with_startup.entry("startup_ms").or_insert(Value::from(0));
            own = Value::Object(with_startup);
        }
        // With one seed for all, a part's pages would depend on those of another.
        let seed = timing.seed.wrapping_add(number as u64);
        let source = super::build(&part.generator, &own, Timing { seed, ..timing })?;
        let space = if same_memory { 0 } else { number as u32 };
        built.push(InSpace { source, space: SpaceId(space), layouts: None });
    }
    built.reverse();
    Ok(Box::new(Mix { parts: built }))
}

/// The parts still to come, the present one last.
struct Mix {
    parts: Vec<InSpace>,
}

impl PeriodSource for Mix {
    fn next_period(&mut self) -> Result<Option<PeriodAccesses>, SourceError> {
        while let Some(part) = self.parts.last_mut() {
            if let Some(period) = part.next_period()? {
                return Ok(Some(period));
            }
            self.parts.pop();
        }
        Ok(None)
    }
}

/// A source whose pages are put into one address space.
struct InSpace {
    source: Box<dyn PeriodSource>,
    space: SpaceId,
    /// The source's own last layout, and its translation into the address space.
    layouts: Option<(Arc<Layout>, Arc<Layout>)>,
}

impl PeriodSource for InSpace {
    fn next_period(&mut self) -> Result<Option<PeriodAccesses>, SourceError> {
        let Some(mut period) = self.source.next_period()? else {
            return Ok(None);
        };
        period.layout = match &self.layouts {
            Some((own, turned)) if Arc::ptr_eq(own, &period.layout) => turned.clone(),
            _ => {
                let extents = period.layout.extents().iter();
                let extents = extents.map(|e| Extent { space: self.space, ..*e }).collect();
                let turned = Layout::new(period.layout.page_size(), extents)
                    .map(Arc::new)
                    .map_err(|e| SourceError(format!("generator '{NAME}': {e}")))?;
                self.layouts = Some((period.layout, turned.clone()));
                turned
            }
        };
        Ok(Some(period))
    }
}
