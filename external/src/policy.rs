//! The policy that asks another process, and its fallback.

use std::time::{Duration, Instant};

use terrace_core::plan::{Decision, Plan};
use terrace_core::policy::{Allocation, ExternalReport, Policy};
use terrace_core::scan::{Budget, Scan};
use terrace_recordings::period::stream::ScanEncoder;

use crate::config::ExternalPolicy;
use crate::process::{Heard, PolicyProcess};
use crate::protocol::{FromPolicy, ToPolicy, moves_of};

/// Time in which a process must have read its policy.
const STARTUP: Duration = Duration::from_secs(30);
/// An answer that takes longer than this, and than so many periods, will not come.
const STUCK: (Duration, u32) = (Duration::from_secs(10), 4);
/// The first wait before a process is started anew, and the longest; each is twice the one before.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Decisions in a row after which earlier failures are forgotten.
const GOOD: u64 = 64;
/// Time for a decision where there is no clock to keep up with.
const UNHURRIED: Duration = Duration::from_secs(60);

/// How long an answer is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// A part of a period of this length, as the policy's configuration says.
    Live {
        /// The length.
        period_ms: u64,
    },
    /// A minute: nothing runs meanwhile.
    Simulated,
}

/// Why the fallback decided a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lapse {
    /// The process was starting.
    Starting,
    /// It did not answer in time.
    Late,
    /// Its plan made no sense.
    Refused,
    /// It raised an exception, died, or hung and was ended.
    Died,
    /// It is to be started anew later.
    Waiting,
    /// It is not started any more.
    GivenUp,
}

/// How many reasons there are.
const LAPSES: usize = 6;

impl Lapse {
    /// Every reason.
    pub const ALL: [Lapse; LAPSES] =
        [Lapse::Starting, Lapse::Late, Lapse::Refused, Lapse::Died, Lapse::Waiting, Lapse::GivenUp];

    /// Its name in status and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Lapse::Starting => "starting",
            Lapse::Late => "late",
            Lapse::Refused => "refused",
            Lapse::Died => "died",
            Lapse::Waiting => "waiting",
            Lapse::GivenUp => "given_up",
        }
    }
}

/// What a process has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owed {
    /// Nothing.
    Nothing,
    /// Word that it is ready, since.
    Ready(Instant),
    /// The answer to a period, since.
    Answer(u64, Instant),
}

/// A process, and what it has seen.
struct Asked {
    process: PolicyProcess,
    encoder: ScanEncoder,
    owed: Owed,
}

/// A policy whose decisions are made by another process, and by a fallback where that does not.
///
/// The fallback sees every scan, so that it knows as much as if it had decided always. The process
/// is started with the first scan; one that is started anew begins with the scan of that period.
pub struct External {
    policy: ExternalPolicy,
    seed: u64,
    deadline: Duration,
    /// Time after which an answer will not come.
    stuck: Duration,
    fallback: Box<dyn Policy>,
    asked: Option<Asked>,
    /// No process is started before.
    wait_until: Option<Instant>,
    /// Processes in a row that failed.
    strikes: u32,
    /// Decisions in a row.
    good: u64,
    decided: u64,
    starts: u64,
    lapses: [u64; LAPSES],
    last: Option<Lapse>,
    error: Option<String>,
}

impl External {
    pub(crate) fn new(
        policy: ExternalPolicy,
        seed: u64,
        patience: Patience,
        fallback: Box<dyn Policy>,
    ) -> Self {
        let (deadline, stuck) = match patience {
            Patience::Live { period_ms } => {
                let period = Duration::from_millis(period_ms);
                let deadline = period.mul_f64(policy.deadline_share);
                (deadline.max(Duration::from_millis(1)), STUCK.0.max(STUCK.1 * period))
            }
            Patience::Simulated => (UNHURRIED, UNHURRIED),
        };
        External {
            policy,
            seed,
            deadline,
            stuck,
            fallback,
            asked: None,
            wait_until: None,
            strikes: 0,
            good: 0,
            decided: 0,
            starts: 0,
            lapses: [0; LAPSES],
            last: None,
            error: None,
        }
    }

    /// Notes that a process failed, and when the next may be started.
    fn failed(&mut self, why: String) -> Lapse {
        self.asked = None;
        self.strikes += 1;
        self.good = 0;
        self.error = Some(why);
        if self.strikes <= self.policy.restarts {
            let wait = WAITS.0 * 2u32.saturating_pow(self.strikes - 1);
            self.wait_until = Some(Instant::now() + wait.min(WAITS.1));
        }
        Lapse::Died
    }

    /// A process that can be asked, or why there is none.
    fn ensure(&mut self) -> Result<(), Lapse> {
        if self.asked.is_some() {
            return Ok(());
        }
        if self.strikes > self.policy.restarts {
            return Err(Lapse::GivenUp);
        }
        let now = Instant::now();
        if self.wait_until.is_some_and(|until| now < until) {
            return Err(Lapse::Waiting);
        }
        self.starts += 1;
        match PolicyProcess::start(&self.policy, self.seed) {
            Ok(process) => {
                let (encoder, owed) = (ScanEncoder::default(), Owed::Ready(now));
                self.asked = Some(Asked { process, encoder, owed });
                Ok(())
            }
            Err(error) => Err(self.failed(error.to_string())),
        }
    }

    /// Asks for the plan of a period.
    fn ask(&mut self, scan: &Scan, budget: &Budget) -> Result<Plan, Lapse> {
        let until = Instant::now() + self.deadline;
        self.ensure()?;
        let stuck = self.stuck;
        let Some(asked) = &mut self.asked else { return Err(Lapse::Waiting) };
        // What it has not done yet comes first; an answer that is late is of no use any more.
        loop {
            if asked.owed == Owed::Nothing {
                let bytes = asked.encoder.encode(scan, budget);
                asked.owed = Owed::Answer(scan.period, Instant::now());
                if !asked.process.send(ToPolicy::Period(bytes)) {
                    let why = match asked.process.hear(Instant::now()) {
                        Heard::Gone(why) => why,
                        _ => "it does not read its pipe".to_owned(),
                    };
                    return Err(self.failed(why));
                }
            }
            let message = match (asked.process.hear(until), asked.owed) {
                (Heard::Message(message), _) => message,
                (Heard::Gone(why), _) => return Err(self.failed(why)),
                (Heard::Nothing, Owed::Ready(since)) if since.elapsed() > STARTUP => {
                    return Err(self.failed(format!("not ready within {STARTUP:?}")));
                }
                (Heard::Nothing, Owed::Ready(_)) => return Err(Lapse::Starting),
                (Heard::Nothing, Owed::Answer(period, since)) if since.elapsed() > stuck => {
                    let why = format!("no answer to period {period} within {stuck:?}, ended");
                    return Err(self.failed(why));
                }
                (Heard::Nothing, _) => return Err(Lapse::Late),
            };
            match (message, asked.owed) {
                (FromPolicy::Ready, Owed::Ready(_)) => asked.owed = Owed::Nothing,
                (FromPolicy::Failed(text), _) => return Err(self.failed(text)),
                (message, Owed::Answer(period, _)) if message.period() == Some(period) => {
                    asked.owed = Owed::Nothing;
                    if period == scan.period {
                        return self.answer(message, scan, budget);
                    }
                }
                (message, owed) => {
                    return Err(self.failed(format!("got {message:.60?} out of turn ({owed:?})")));
                }
            }
        }
    }

    /// The plan that an answer to this period is.
    fn answer(&mut self, message: FromPolicy, scan: &Scan, budget: &Budget) -> Result<Plan, Lapse> {
        let content = match message {
            FromPolicy::Moves(content) => content,
            FromPolicy::Refused { text, .. } => {
                self.error = Some(text);
                return Err(Lapse::Refused);
            }
            _ => return Err(Lapse::Refused),
        };
        // Its process checks plans as this does: one that says otherwise is not what it claims.
        let moves = match moves_of(&content, scan.pages()) {
            Ok(moves) => moves,
            Err(why) => {
                self.failed(why);
                return Err(Lapse::Refused);
            }
        };
        match moves.check(scan, budget) {
            Ok(()) => Ok(moves.plan(scan)),
            Err(error) => {
                self.error = Some(error.0);
                Err(Lapse::Refused)
            }
        }
    }

    /// Says what changed, and only that.
    fn tell(&mut self, lapse: Option<Lapse>, period: u64) {
        if std::mem::replace(&mut self.last, lapse) == lapse {
            return;
        }
        let policy = self.policy.name;
        match lapse {
            None => tracing::info!(policy, period, "the policy decides"),
            Some(Lapse::Starting) => {
                tracing::info!(
                    policy,
                    period,
                    fallback = self.policy.fallback,
                    "the policy starts"
                );
            }
            Some(lapse) => tracing::warn!(
                policy,
                period,
                reason = lapse.name(),
                error = self.error.as_deref().unwrap_or_default(),
                fallback = self.policy.fallback,
                "the policy did not decide; its fallback does"
            ),
        }
    }
}

impl Policy for External {
    fn name(&self) -> &'static str {
        self.policy.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        let fallback = self.fallback.decide(scan, budget);
        match self.ask(scan, budget) {
            Ok(plan) => {
                self.decided += 1;
                self.good += 1;
                if self.good >= GOOD {
                    self.strikes = 0;
                }
                self.tell(None, scan.period);
                Decision { plan, applied: self.policy.name, features: fallback.features }
            }
            Err(lapse) => {
                self.lapses[lapse as usize] += 1;
                self.good = 0;
                self.tell(Some(lapse), scan.period);
                fallback
            }
        }
    }

    fn allocation(&self) -> Allocation {
        self.fallback.allocation()
    }

    fn external(&self) -> Option<ExternalReport> {
        let counts =
            Lapse::ALL.iter().map(|lapse| (lapse.name().to_owned(), self.lapses[*lapse as usize]));
        Some(ExternalReport {
            fallback: self.policy.fallback.clone(),
            state: match (self.last, self.decided) {
                (None, 0) => Lapse::Starting.name(),
                (None, _) => "deciding",
                (Some(lapse), _) => lapse.name(),
            }
            .to_owned(),
            decided_periods: self.decided,
            fallback_periods: counts.collect(),
            restarts: self.starts.saturating_sub(1),
            error: self.error.clone(),
        })
    }

    fn metadata_bytes(&self) -> usize {
        self.fallback.metadata_bytes()
    }
}

#[cfg(test)]
mod tests;
