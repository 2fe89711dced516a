//! Policies of the caller: not in the registry, passed as objects. The Python package has such.

use std::fmt;
use std::sync::Arc;

use terrace_core::policy::Policy;

/// Builds a policy with the seed of the run. Every run of every group gets its own.
type Build = dyn Fn(u64) -> Box<dyn Policy> + Send + Sync;

/// A policy of the caller's own.
#[derive(Clone)]
pub struct CustomPolicy {
    name: String,
    build: Arc<Build>,
}

impl CustomPolicy {
    /// A policy of this name, which results show.
    pub fn new(
        name: impl Into<String>,
        build: impl Fn(u64) -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Self {
        CustomPolicy { name: name.into(), build: Arc::new(build) }
    }

    /// The name in results.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Builds the policy.
    pub(crate) fn build(&self, seed: u64) -> Box<dyn Policy> {
        (self.build)(seed)
    }
}

impl fmt::Debug for CustomPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomPolicy({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};

    use serde_json::Value;
    use terrace_core::plan::Decision;
    use terrace_core::policy;
    use terrace_core::scan::{Budget, Scan};
    use terrace_results::{RunRow, read};

    use super::*;
    use crate::Experiment;
    use crate::run::{Quiet, Request};
    use crate::runner::run;

    fn experiment() -> Experiment {
        let text = "name = \"e\"\nseed = 5\nperiod_ms = 100\nperiods = 8\n[[groups]]\nname = \"a\"\n\
                    fast_ratio = 0.5\nworkload = { kind = \"zipf\", footprint_mib = 64 }\n";
        Experiment::parse(text, PathBuf::new()).unwrap()
    }

    fn lru(name: &str) -> CustomPolicy {
        CustomPolicy::new(name, |seed| policy::build("lru", &Value::Null, seed).unwrap())
    }

    #[test]
    fn a_policy_of_ones_own_runs_beside_the_registrys_and_is_made_once_a_group() {
        let made = Arc::new(AtomicU64::new(0));
        let counts = made.clone();
        let own = CustomPolicy::new("mine", move |seed| {
            counts.fetch_add(seed, Ordering::Relaxed);
            policy::build("lru", &Value::Null, seed).unwrap()
        });
        let out = tempfile::tempdir().unwrap();
        let request = Request {
            policies: Some(vec!["lru".to_owned(), "mine".to_owned()]),
            ..Request::simulated(
                experiment().with_custom_policy(own).unwrap(),
                out.path().to_owned(),
            )
        };
        run(request, &mut Quiet).unwrap();
        let rows: Vec<RunRow> = read(out.path()).unwrap();
        assert_eq!((rows[0].policy.as_str(), rows[1].policy.as_str()), ("lru", "mine"));
        assert_eq!(rows[0].hit_ratio, rows[1].hit_ratio);
        assert_eq!(made.load(Ordering::Relaxed), 5, "once, with the experiment's seed");
    }

    /// As a policy in Python that raises an exception.
    struct Raises;

    impl Policy for Raises {
        fn name(&self) -> &'static str {
            "mine"
        }

        fn decide(&mut self, _: &Scan, _: &Budget) -> Decision {
            std::panic::resume_unwind(Box::new("raised"))
        }

        fn metadata_bytes(&self) -> usize {
            0
        }
    }

    #[test]
    fn a_policy_that_panics_leaves_no_part_of_a_recording() {
        for jobs in [1, 2] {
            let own = CustomPolicy::new("mine", |_| Box::new(Raises));
            let experiment = experiment().with_custom_policy(own).unwrap();
            let out = tempfile::tempdir().unwrap();
            let policies = ["mine", "lru"].map(str::to_owned).to_vec();
            let request = Request {
                policies: Some(policies),
                jobs,
                ..Request::simulated(experiment, out.path().to_owned())
            };
            let run = || run(request, &mut Quiet);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
            let left = std::fs::read_dir(out.path().join("recordings")).unwrap();
            let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
            assert!(!left.iter().any(|name| name == "mine.trec.partial"), "{left:?}");
        }
    }

    #[test]
    fn names_that_are_taken_or_no_names_are_refused() {
        let refusal = |e: Experiment, name: &str| e.with_custom_policy(lru(name)).unwrap_err().0;
        assert!(refusal(experiment(), "lru").contains("like one of Terrace's"));
        assert!(refusal(experiment(), "a b").contains("expected 1 to 64 letters"));
        let one = experiment().with_custom_policy(lru("mine")).unwrap();
        assert!(refusal(one, "mine").contains("expected different names"));
    }
}
