//! Policies written in Python behind the engine's interface: called once a period with the scan,
//! and their answers checked before they become plans.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use terrace_core::bits::PageBits;
use terrace_core::features::FeatureCounter;
use terrace_core::names::kept;
use terrace_core::plan::Decision;
use terrace_core::policy::{Allocation, Policy};
use terrace_core::scan::{Budget as CoreBudget, Scan as CoreScan};
use terrace_experiments::CustomPolicy;
use terrace_external::Moves;

use crate::errors::refused;
use crate::scan::{self, Budget, Scan};

/// The payload that unwinds from a policy whose exception waits in [`Raised`].
pub struct PolicyRaised;

/// Where a policy's exception waits until the run has been left.
pub type Raised = Arc<Mutex<Option<PyErr>>>;

/// Keeps an exception and leaves the run: nothing between a policy and the caller of the run could
/// pass it on.
pub fn leave(raised: &Raised, error: PyErr) -> ! {
    *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    resume_unwind(Box::new(PolicyRaised))
}

/// The policy of this name, of which `make(seed)` makes one for every group and run.
pub fn custom_policy(name: &str, make: Py<PyAny>, raised: Raised) -> CustomPolicy {
    let known = kept(name);
    CustomPolicy::new(name, move |seed| {
        let made = Python::attach(|py| {
            let object = make.call1(py, (seed,))?;
            let interleaves = match object.bind(py).getattr_opt("allocation")? {
                None => false,
                Some(allocation) => match allocation.extract::<String>()?.as_str() {
                    "fast-first" => false,
                    "interleave" => true,
                    other => {
                        return Err(refused(format_args!(
                            "policy '{known}': allocation '{other}', expected 'fast-first' or \
                             'interleave'"
                        )));
                    }
                },
            };
            Ok((object.bind(py).getattr("decide")?.unbind(), interleaves))
        });
        match made {
            Ok((decide, interleaves)) => Box::new(InPython {
                name: known,
                decide,
                interleaves,
                features: FeatureCounter::default(),
                raised: raised.clone(),
            }),
            Err(error) => leave(&raised, error),
        }
    })
}

struct InPython {
    name: &'static str,
    decide: Py<PyAny>,
    interleaves: bool,
    features: FeatureCounter,
    raised: Raised,
}

impl Policy for InPython {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide(&mut self, scan: &CoreScan, budget: &CoreBudget) -> Decision {
        let remap = self.features.follow(scan);
        let (features, _) = self.features.count(scan);
        let moves = Python::attach(|py| {
            let seen = Bound::new(py, Scan::new(scan.clone(), remap))?;
            let may_use = Bound::new(py, Budget { budget: *budget })?;
            let answer = self.decide.bind(py).call1((&seen, may_use))?;
            moves_of(&answer, scan, budget).map_err(|e| policy_error(py, self.name, scan.period, e))
        });
        match moves {
            Ok(moves) => Decision { plan: moves.plan(scan), applied: self.name, features },
            Err(error) => leave(&self.raised, error),
        }
    }

    fn allocation(&self) -> Allocation {
        if self.interleaves { Allocation::Interleave } else { Allocation::FastFirst }
    }

    fn metadata_bytes(&self) -> usize {
        // The memory of the object is managed by Python.
        self.features.size_bytes()
    }
}

/// Names the policy whose answer was refused.
fn policy_error(py: Python<'_>, name: &str, period: u64, error: PyErr) -> PyErr {
    match error.is_instance_of::<crate::errors::Refused>(py) {
        true => refused(format_args!("policy '{name}', period {period}: {}", error.value(py))),
        false => error,
    }
}

/// The moves that a return value of `decide` is, checked against the scan and the budget.
pub fn moves_of(
    answer: &Bound<'_, PyAny>,
    scan: &CoreScan,
    budget: &CoreBudget,
) -> PyResult<Moves> {
    if answer.is_none() {
        return Ok(Moves::none(scan.pages()));
    }
    let moves = match answer.cast::<scan::Moves>() {
        Ok(moves) => moves.get().moves.clone(),
        Err(_) => {
            let pair: (Bound<'_, PyAny>, Bound<'_, PyAny>) = answer.extract().map_err(|_| {
                refused(format_args!(
                    "decide returned {}, expected None, (promote, demote), or what terrace.select \
                     returns",
                    answer.get_type()
                ))
            })?;
            Moves {
                up: pages(&pair.0, "promote", scan.pages())?,
                down: pages(&pair.1, "demote", scan.pages())?,
            }
        }
    };
    moves.check(scan, budget).map_err(refused)?;
    Ok(moves)
}

/// Pages given as a mask with an entry for each, or as indices.
fn pages(given: &Bound<'_, PyAny>, what: &str, count: usize) -> PyResult<PageBits> {
    let py = given.py();
    let mut bits = PageBits::new(count);
    if given.is_none() {
        return Ok(bits);
    }
    let numpy = py.import("numpy")?;
    let array = numpy.call_method1("ascontiguousarray", (given,))?;
    if array.len()? == 0 {
        return Ok(bits);
    }
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    match kind.as_str() {
        "b" => {
            let mask: PyBuffer<u8> = array.call_method1("view", ("u1",))?.extract()?;
            let mask = mask.to_vec(py)?;
            if mask.len() != count {
                return Err(refused(format_args!(
                    "{what} is a mask of {} pages, expected {count}",
                    mask.len()
                )));
            }
            let set = |(at, byte): (usize, &u8)| u64::from(*byte != 0) << at;
            let word =
                |bytes: &[u8]| bytes.iter().enumerate().map(set).fold(0, |all, bit| all | bit);
            bits = PageBits::from_words(mask.chunks(64).map(word).collect(), count);
        }
        "i" | "u" => {
            let indices: PyBuffer<i64> = array.call_method1("astype", ("i8",))?.extract()?;
            for index in indices.to_vec(py)? {
                let page = usize::try_from(index).ok().filter(|page| *page < count);
                let Some(page) = page else {
                    return Err(refused(format_args!(
                        "{what} has page {index}, expected 0 to {}",
                        count.saturating_sub(1)
                    )));
                };
                if bits.get(page) {
                    return Err(refused(format_args!("{what} has page {page} twice")));
                }
                bits.set(page, true);
            }
        }
        _ => {
            return Err(refused(format_args!(
                "{what} is an array of {}, expected indices of pages or a mask of them",
                array.getattr("dtype")?
            )));
        }
    }
    Ok(bits)
}
