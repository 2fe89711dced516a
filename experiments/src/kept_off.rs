//! Processors that belong to a run's programs alone: the run itself, with the guard and clients that
//! it starts, keeps off them, so that what such a processor executes is the programs' work.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use terrace_core::{InputError, refuse};
use terrace_workloads::session::cpu_set;

use crate::file::Experiment;

/// This thread, and what it starts, on the other processors as long as this lives.
#[derive(Debug)]
pub(crate) struct KeptOff {
    /// Where it ran before; `None` if the run's groups have no processors of their own.
    before: Option<CpuSet>,
}

impl KeptOff {
    /// Off the processors of all groups. An error where no other is left.
    pub fn cpus_of(experiment: &Experiment) -> Result<Self, InputError> {
        let cpus: Vec<u32> = experiment.groups.iter().flat_map(|g| g.cpus.clone()).collect();
        if cpus.is_empty() {
            return Ok(Self { before: None });
        }
        let refused = |error: rustix::io::Errno| refuse!("cpus = {cpus:?}: {error}");
        let before = sched_getaffinity(None).map_err(refused)?;
        let theirs = cpu_set(&cpus);
        let mut others = before;
        let all = (0..CpuSet::MAX_CPU).filter(|&cpu| theirs.is_set(cpu));
        all.for_each(|cpu| others.unset(cpu));
        if others.count() == 0 {
            return Err(refuse!(
                "cpus = {cpus:?}: expected one of {} processors to be left for all else, leave one out",
                before.count()
            ));
        }
        sched_setaffinity(None, &others).map_err(refused)?;
        Ok(Self { before: Some(before) })
    }
}

impl Drop for KeptOff {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = sched_setaffinity(None, before)
        {
            tracing::warn!(%error, "this program stays off the processors of its groups");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn experiment(cpus: &str) -> Experiment {
        let text = format!(
            "name = \"e\"\nperiod_ms = 100\nperiods = 2\n[[groups]]\nname = \"a\"\n{cpus}\n\
             fast_ratio = 0.5\nworkload = {{ kind = \"zipf\" }}\n"
        );
        Experiment::parse(&text, PathBuf::from(".")).unwrap()
    }

    #[test]
    fn a_run_keeps_off_its_programs_processors_and_returns() {
        // In a thread of its own: processors are a thread's.
        let run = || {
            let before = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&cpu| before.is_set(cpu)).unwrap();
            let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&c| before.is_set(c)).collect();
            let error = KeptOff::cpus_of(&experiment(&format!("cpus = {all:?}"))).unwrap_err();
            assert!(error.to_string().contains("to be left for all else"), "{error}");
            if before.count() > 1 {
                let kept = KeptOff::cpus_of(&experiment(&format!("cpus = [{first}]"))).unwrap();
                let meanwhile = sched_getaffinity(None).unwrap();
                assert_eq!(meanwhile.count(), before.count() - 1);
                assert!(!meanwhile.is_set(first));
                drop(kept);
            }
            drop(KeptOff::cpus_of(&experiment("")).unwrap());
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        };
        std::thread::spawn(run).join().unwrap();
    }
}
