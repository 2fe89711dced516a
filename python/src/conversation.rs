//! The process of a policy that decides for live programs, seen from inside: what it is asked, and
//! what it answers. `terrace.serve` uses it and nothing else does.

use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use terrace_core::remap::LayoutFollower;
use terrace_core::scan;
use terrace_external::protocol::{FromPolicy, ToPolicy};
use terrace_recordings::period::stream::ScanDecoder;

use crate::bridge::moves_of;
use crate::errors::refused;
use crate::scan::{Budget, Scan};

struct State {
    out: BufWriter<File>,
    decoder: ScanDecoder,
    follower: LayoutFollower,
    asked: Option<(scan::Scan, scan::Budget)>,
}

/// Speaks with Terrace by the standard input and output, which are its own from then on: what the
/// policy prints goes to the standard error output.
#[pyclass(frozen, module = "terrace._terrace")]
pub struct Conversation {
    state: Mutex<State>,
}

impl Conversation {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, py: Python<'_>, message: &FromPolicy) -> PyResult<()> {
        Ok(py.detach(|| message.send(&mut self.state().out))?)
    }

    /// What was asked.
    fn asked(&self) -> PyResult<(scan::Scan, scan::Budget)> {
        let asked = self.state().asked.clone();
        asked.ok_or_else(|| refused("nothing was asked; expected a period before an answer"))
    }
}

/// An error of what came in.
fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

#[pymethods]
impl Conversation {
    /// Takes the standard output.
    #[new]
    fn new() -> PyResult<Self> {
        let out = rustix::io::dup(rustix::stdio::stdout()).map_err(io::Error::from)?;
        rustix::stdio::dup2_stdout(rustix::stdio::stderr()).map_err(io::Error::from)?;
        let state = State {
            out: BufWriter::new(File::from(out)),
            decoder: ScanDecoder::default(),
            follower: LayoutFollower::default(),
            asked: None,
        };
        Ok(Conversation { state: Mutex::new(state) })
    }

    /// The policy, as a dict: policy, file, class, source, seed, memory_bytes.
    fn hello<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match py.detach(|| ToPolicy::receive(&mut io::stdin().lock()))? {
            Some(ToPolicy::Hello(hello)) => {
                let text = serde_json::to_string(&hello).map_err(refused)?;
                py.import("json")?.call_method1("loads", (text,))
            }
            _ => Err(refused(
                "no policy: this is started by terraced and terrace, for policies with \
                 kind = \"python\"",
            )),
        }
    }

    /// No program that is run from here on has more privileges than this one.
    fn take_no_privileges(&self) -> PyResult<()> {
        Ok(rustix::thread::set_no_new_privs(true).map_err(io::Error::from)?)
    }

    /// Says that periods can be asked.
    fn ready(&self, py: Python<'_>) -> PyResult<()> {
        self.send(py, &FromPolicy::Ready)
    }

    /// Waits for a period: its scan and its budget; None where there are no more.
    fn period(&self, py: Python<'_>) -> PyResult<Option<(Scan, Budget)>> {
        let asked = py.detach(|| -> io::Result<_> {
            let bytes = match ToPolicy::receive(&mut io::stdin().lock())? {
                Some(ToPolicy::Period(bytes)) => bytes,
                Some(ToPolicy::Hello(_)) => return Err(malformed("a second policy")),
                None => return Ok(None),
            };
            let mut state = self.state();
            let (scan, budget) = state.decoder.decode(&bytes).map_err(|e| malformed(&e))?;
            let remap = state.follower.follow(&scan.layout);
            state.asked = Some((scan.clone(), budget));
            Ok(Some((Scan::new(scan, remap), Budget { budget })))
        });
        Ok(asked?)
    }

    /// Answers it with what `decide` returned. A plan that makes no sense is refused.
    fn answer(&self, py: Python<'_>, answer: &Bound<'_, PyAny>) -> PyResult<()> {
        let (scan, budget) = self.asked()?;
        let moves = moves_of(answer, &scan, &budget)?;
        self.send(py, &FromPolicy::moves(scan.period, &moves))
    }

    /// Answers it with why its plan made no sense.
    fn refuse(&self, py: Python<'_>, text: String) -> PyResult<()> {
        let period = self.asked()?.0.period;
        self.send(py, &FromPolicy::Refused { period, text })
    }

    /// Says that it cannot go on, and why.
    fn fail(&self, py: Python<'_>, text: String) -> PyResult<()> {
        self.send(py, &FromPolicy::Failed(text))
    }
}
