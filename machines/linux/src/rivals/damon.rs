//! DAMON's tiering as its authors set it up: one thread a tier over physical memory. That of the
//! fast tier demotes regions without accesses, that of the slow tier promotes regions with
//! accesses, each at most 200 MB a second; before a page is moved, its accessed bit is checked once
//! more. Since Linux 6.16 amounts follow goals (the fast node 99.7 % used, 0.5 % of it free) and,
//! since 6.15, intervals follow the share of observed accesses (4 % of the maximum, 5 ms to 10 s).
//! A kernel without them has intervals of 50 ms and 1 s, and the same bounds. The values are those
//! of the commit "mm/damon: auto-tune DAMOS for NUMA setups including tiered memory" of Linux 6.16.

use std::path::PathBuf;

use super::{Rival, Setting, balancing};
use crate::conflicts::{Conflict, Severity};
use crate::damon::Kdamond;
use crate::files::{self, FileError};
use crate::host::HostError;
use crate::numa;
use crate::roots::{DAMON_MODULES, Roots};
use crate::session::Session;
use crate::tiers::Topology;

/// DAMON's tiering.
#[derive(Debug)]
pub(super) struct Damon;

/// Operations of its threads: physical memory.
const OPERATIONS: &str = "paddr";
const MIN_REGIONS: u64 = 10;
const MAX_REGIONS: u64 = 1000;
const QUOTA_BYTES: u64 = 200 << 20;
const SECOND_US: u64 = 1_000_000;
const UNBOUNDED: u64 = u64::MAX;
/// Files that a kernel has as part of later features.
const INTERVALS_GOAL: &str = "contexts/0/monitoring_attrs/intervals/intervals_goal";

/// The scheme of a thread.
struct Scheme {
    action: &'static str,
    target: u32,
    /// Accesses in an interval: none, or at least one.
    is_accessed: bool,
    /// Of the fast node, in parts of ten thousand.
    goal: (&'static str, u64),
}

impl Rival for Damon {
    fn name(&self) -> &'static str {
        "damon"
    }

    fn summary(&self) -> &'static str {
        "DAMON's migrate_hot and migrate_cold by its authors' recipe, with goals where the kernel has them"
    }

    fn settings(&self, roots: &Roots) -> Vec<Setting> {
        let mut settings = balancing::settings(roots, "0", "false");
        // Modules that use DAMON differ between kernels.
        let module = DAMON_MODULES.iter().find(|name| **name == "damon_stat");
        let path = module.map(|name| roots.damon_module(name)).filter(|path| path.exists());
        settings.extend(path.map(|path| Setting {
            path,
            value: "N",
            what: "DAMON_STAT, which keeps others from DAMON,",
            option: "CONFIG_DAMON_STAT",
        }));
        settings
    }

    fn missing(&self, roots: &Roots) -> Result<Option<Conflict>, FileError> {
        let path = roots.kdamonds().join("nr_kdamonds");
        let missing = |found: String, remedy: &str| {
            let (name, remedy) = ("rival_missing", remedy.to_owned());
            Some(Conflict { name, severity: Severity::Fatal, found, remedy })
        };
        Ok(match files::read_number::<u32>(&path)? {
            None => missing(
                format!("{} does not exist, and 'damon' needs DAMON", path.display()),
                "boot a kernel with CONFIG_DAMON_SYSFS and CONFIG_DAMON_PADDR, such as Debian's",
            ),
            Some(0) => None,
            Some(n) => missing(
                format!("DAMON is used by another program ({n} kdamonds), expected 0"),
                "stop that user, then write 0 to nr_kdamonds",
            ),
        })
    }

    fn begin(
        &self,
        roots: &Roots,
        topology: &Topology,
        session: &Session,
    ) -> Result<(), HostError> {
        let (fast, slow) = (topology.fast_nodes(), topology.slow_nodes());
        let (Some(&to_fast), Some(&to_slow)) = (fast.first(), slow.first()) else {
            return Err(HostError::Nodes("'damon' needs a fast and a slow node".to_owned()));
        };
        session.take_kdamonds_for(2, Some(OPERATIONS))?;
        let cold = Scheme {
            action: "migrate_cold",
            target: to_slow,
            is_accessed: false,
            goal: ("node_mem_free_bp", 50),
        };
        let hot = Scheme {
            action: "migrate_hot",
            target: to_fast,
            is_accessed: true,
            goal: ("node_mem_used_bp", 9970),
        };
        for (number, (nodes, scheme)) in [(&fast, cold), (&slow, hot)].into_iter().enumerate() {
            let thread = Thread { folder: roots.kdamonds().join(number.to_string()) };
            thread.watch(roots, nodes)?;
            thread.act(&scheme, to_fast)?;
            Kdamond::new(roots, number).on()?;
        }
        Ok(())
    }
}

/// A thread's folder.
struct Thread {
    folder: PathBuf,
}

impl Thread {
    fn set(&self, file: &str, value: impl ToString) -> Result<(), FileError> {
        files::write(&self.folder.join(file), &value.to_string())
    }

    fn has(&self, file: &str) -> bool {
        self.folder.join(file).exists()
    }

    /// The physical memory of these nodes.
    fn watch(&self, roots: &Roots, nodes: &[u32]) -> Result<(), FileError> {
        let mut ranges = Vec::new();
        for &node in nodes {
            ranges.extend(numa::physical_ranges(roots, node)?);
        }
        self.set("contexts/nr_contexts", 1)?;
        self.set("contexts/0/operations", OPERATIONS)?;
        let attrs = "contexts/0/monitoring_attrs";
        let tunes = self.has(INTERVALS_GOAL);
        let (sample_us, aggr_us) = if tunes { (5_000, 100_000) } else { (50_000, SECOND_US) };
        self.set(&format!("{attrs}/intervals/sample_us"), sample_us)?;
        self.set(&format!("{attrs}/intervals/aggr_us"), aggr_us)?;
        self.set(&format!("{attrs}/intervals/update_us"), 60 * SECOND_US)?;
        if tunes {
            for (file, value) in [
                ("access_bp", 400),
                ("aggrs", 3),
                ("min_sample_us", 5_000),
                ("max_sample_us", 10 * SECOND_US),
            ] {
                self.set(&format!("{INTERVALS_GOAL}/{file}"), value)?;
            }
        }
        self.set(&format!("{attrs}/nr_regions/min"), MIN_REGIONS)?;
        self.set(&format!("{attrs}/nr_regions/max"), MAX_REGIONS)?;
        self.set("contexts/0/targets/nr_targets", 1)?;
        self.set("contexts/0/targets/0/regions/nr_regions", ranges.len())?;
        for (number, (start, end)) in ranges.into_iter().enumerate() {
            let folder = format!("contexts/0/targets/0/regions/{number}");
            self.set(&format!("{folder}/start"), start)?;
            self.set(&format!("{folder}/end"), end)?;
        }
        Ok(())
    }

    fn act(&self, scheme: &Scheme, fast_node: u32) -> Result<(), FileError> {
        self.set("contexts/0/schemes/nr_schemes", 1)?;
        let own = "contexts/0/schemes/0";
        self.set(&format!("{own}/action"), scheme.action)?;
        self.set(&format!("{own}/target_nid"), scheme.target)?;
        self.set(&format!("{own}/apply_interval_us"), SECOND_US)?;
        let (least, most) = if scheme.is_accessed { (1, UNBOUNDED) } else { (0, 0) };
        for (range, min, max) in
            [("sz", 0, UNBOUNDED), ("nr_accesses", least, most), ("age", 0, UNBOUNDED)]
        {
            // Numbers of accesses and ages are those of the kernel's `unsigned int`.
            let max = if range == "sz" { max } else { max.min(u32::MAX.into()) };
            self.set(&format!("{own}/access_pattern/{range}/min"), min)?;
            self.set(&format!("{own}/access_pattern/{range}/max"), max)?;
        }
        self.set(&format!("{own}/quotas/bytes"), QUOTA_BYTES)?;
        self.set(&format!("{own}/quotas/reset_interval_ms"), 1000)?;
        self.set(&format!("{own}/watermarks/metric"), "none")?;
        self.goal(own, scheme, fast_node)?;
        self.filter(own, scheme.is_accessed)
    }

    /// Sets the goal of the amount, if the kernel has goals.
    fn goal(&self, own: &str, scheme: &Scheme, fast_node: u32) -> Result<(), FileError> {
        let goals = format!("{own}/quotas/goals");
        if !self.has(&goals) {
            return Ok(());
        }
        self.set(&format!("{goals}/nr_goals"), 1)?;
        let (metric, value) = scheme.goal;
        if !self.has(&format!("{goals}/0/nid")) {
            return self.set(&format!("{goals}/nr_goals"), 0);
        }
        self.set(&format!("{goals}/0/target_metric"), metric)?;
        self.set(&format!("{goals}/0/target_value"), value)?;
        self.set(&format!("{goals}/0/nid"), fast_node)
    }

    /// Checks the accessed bit of each page before it is moved: hot ones must have it set, cold
    /// ones clear.
    fn filter(&self, own: &str, is_accessed: bool) -> Result<(), FileError> {
        let folder = ["ops_filters", "filters"].map(|name| format!("{own}/{name}"));
        let Some(folder) = folder.into_iter().find(|folder| self.has(folder)) else {
            return Ok(());
        };
        self.set(&format!("{folder}/nr_filters"), 1)?;
        let filter = format!("{folder}/0");
        self.set(&format!("{filter}/type"), "young")?;
        if self.has(&format!("{filter}/allow")) {
            self.set(&format!("{filter}/matching"), "Y")?;
            self.set(&format!("{filter}/allow"), if is_accessed { "Y" } else { "N" })
        } else {
            // Matching pages are left out.
            self.set(&format!("{filter}/matching"), if is_accessed { "N" } else { "Y" })
        }
    }
}

/// The files of a kernel with, or without, the later features.
#[cfg(test)]
pub(super) fn put_kernel(root: &std::path::Path, has_goals: bool) {
    use crate::testing::put;
    let base = "sys/kernel/mm/damon/admin/kdamonds";
    put(root, &format!("{base}/nr_kdamonds"), "0\n");
    for number in 0..2 {
        let thread = format!("{base}/{number}");
        put(root, &format!("{thread}/state"), "off\n");
        put(root, &format!("{thread}/pid"), "77\n");
        let context = format!("{thread}/contexts/0");
        let goal = format!("{context}/monitoring_attrs/intervals/intervals_goal");
        let scheme = format!("{context}/schemes/0");
        let mut files: Vec<String> = [
            "contexts/nr_contexts",
            "contexts/0/operations",
            "contexts/0/monitoring_attrs/intervals/sample_us",
            "contexts/0/monitoring_attrs/intervals/aggr_us",
            "contexts/0/monitoring_attrs/intervals/update_us",
            "contexts/0/monitoring_attrs/nr_regions/min",
            "contexts/0/monitoring_attrs/nr_regions/max",
            "contexts/0/targets/nr_targets",
            "contexts/0/targets/0/regions/nr_regions",
            "contexts/0/targets/0/regions/0/start",
            "contexts/0/targets/0/regions/0/end",
            "contexts/0/schemes/nr_schemes",
        ]
        .map(|file| format!("{thread}/{file}"))
        .into();
        for file in [
            "action",
            "target_nid",
            "apply_interval_us",
            "access_pattern/sz/min",
            "access_pattern/sz/max",
            "access_pattern/nr_accesses/min",
            "access_pattern/nr_accesses/max",
            "access_pattern/age/min",
            "access_pattern/age/max",
            "quotas/bytes",
            "quotas/reset_interval_ms",
            "quotas/goals/nr_goals",
            "quotas/goals/0/target_metric",
            "quotas/goals/0/target_value",
            "watermarks/metric",
        ] {
            files.push(format!("{scheme}/{file}"));
        }
        let filters = if has_goals { "ops_filters" } else { "filters" };
        for file in ["nr_filters", "0/type", "0/matching"] {
            files.push(format!("{scheme}/{filters}/{file}"));
        }
        if has_goals {
            files.push(format!("{scheme}/{filters}/0/allow"));
            files.push(format!("{scheme}/quotas/goals/0/nid"));
            for file in ["access_bp", "aggrs", "min_sample_us", "max_sample_us"] {
                files.push(format!("{goal}/{file}"));
            }
        }
        files.iter().for_each(|file| put(root, file, ""));
    }
    put(
        root,
        "proc/zoneinfo",
        "Node 0, zone    DMA32\n        spanned  1044480\n  start_pfn:           4096\n\
         Node 0, zone   Normal\n        spanned  1048576\n  start_pfn:           1048576\n\
         Node 1, zone   Normal\n        spanned  524288\n  start_pfn:           2097152\n",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::clean_host;
    use crate::tiers;
    use std::fs;

    /// The files of both threads after they were started.
    fn begun(has_goals: bool) -> impl Fn(&str) -> String {
        let (keep, roots) = clean_host();
        put_kernel(keep.path(), has_goals);
        let topology = tiers::discover(&roots).unwrap();
        let session = Session::open(&roots, None).unwrap();
        Damon.begin(&roots, &topology, &session).unwrap();
        move |file| {
            let _session = &session;
            let path = keep.path().join("sys/kernel/mm/damon/admin/kdamonds").join(file);
            fs::read_to_string(path).unwrap().trim().to_owned()
        }
    }

    #[test]
    fn each_tier_has_a_thread_over_its_memory_that_sends_to_the_other() {
        let get = begun(true);
        assert_eq!(get("nr_kdamonds"), "2");
        for (thread, action, target, goal) in [
            (0, "migrate_cold", "1", ("node_mem_free_bp", "50")),
            (1, "migrate_hot", "0", ("node_mem_used_bp", "9970")),
        ] {
            let of = |file: &str| get(&format!("{thread}/contexts/0/{file}"));
            assert_eq!(
                (of("operations").as_str(), get(&format!("{thread}/state")).as_str()),
                ("paddr", "on")
            );
            let scheme = |file: &str| of(&format!("schemes/0/{file}"));
            assert_eq!(
                (scheme("action").as_str(), scheme("target_nid").as_str()),
                (action, target)
            );
            let goals = |file: &str| scheme(&format!("quotas/goals/0/{file}"));
            assert_eq!((goals("target_metric").as_str(), goals("target_value").as_str()), goal);
            assert_eq!(
                (goals("nid").as_str(), scheme("quotas/bytes").as_str()),
                ("0", "209715200")
            );
        }
        // Adjacent zones are one range.
        let region = "contexts/0/targets/0/regions";
        let start = (4096u64 << 12).to_string();
        assert_eq!(get(&format!("0/{region}/0/start")), start);
        assert_eq!(get(&format!("0/{region}/0/end")), (2097152u64 << 12).to_string());
        assert_eq!(get(&format!("1/{region}/0/end")), (2621440u64 << 12).to_string());
        let filter = "contexts/0/schemes/0/ops_filters/0";
        assert_eq!([0, 1].map(|t| get(&format!("{t}/{filter}/allow"))), ["N", "Y"]);
        assert_eq!(get("0/contexts/0/monitoring_attrs/intervals/intervals_goal/access_bp"), "400");
    }

    #[test]
    fn without_goals_it_has_fixed_intervals_and_leaves_out_what_matches() {
        let get = begun(false);
        assert_eq!(get("0/contexts/0/monitoring_attrs/intervals/sample_us"), "50000");
        assert_eq!(get("0/contexts/0/schemes/0/quotas/goals/nr_goals"), "0");
        let filter = "contexts/0/schemes/0/filters/0/matching";
        assert_eq!([0, 1].map(|t| get(&format!("{t}/{filter}"))), ["Y", "N"]);
    }
}
