//! Experiments: one TOML file with a rack, variants of it, workloads and schemes; every
//! combination is run, and the same with all memory local as the base of its slowdown.
//!
//! ```toml
//! name = "example"
//! schemes = ["BLOCK", "CPM"]       # all, if left out
//! placement = "alone"              # each workload on a rack of its own, or "together"
//!
//! [rack]                           # see config
//! instructions = 1_000_000
//!
//! [[variants]]                     # optional; values laid over those of [rack]
//! name = "40/100"
//! rack.network = { nic_gbit_per_s = 40.0, switch_gbit_per_s = 100.0 }
//!
//! [[workloads]]
//! name = "minife"
//! program = "minife"
//! footprint = "32M"
//! full = { footprint = "400M" }    # what --full replaces
//!
//! [full.rack]                      # likewise
//! instructions = 50_000_000
//!
//! [[claims]]                       # claims of a paper, which `terrace rack` checks
//! ```

use serde::{Deserialize, Serialize};
use terrace_hardware::error::ConfigError;

use crate::config::{MechanismConfig, MigrationConfig, NetworkConfig, RackConfig};
use crate::outcome::Outcome;
use crate::scheme::{REGISTRY, Scheme};
use crate::simulate::{RunError, run};
use crate::stream::WorkloadConfig;

/// Which workloads run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Each on a rack of its own, on all of its nodes.
    #[default]
    Alone,
    /// All on one rack: node `n` runs workload `n`, starting over after the last.
    Together,
}

/// The content of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    schemes: Vec<String>,
    #[serde(default)]
    placement: Placement,
    #[serde(default)]
    rack: toml::Table,
    #[serde(default)]
    variants: Vec<VariantFile>,
    workloads: Vec<toml::Table>,
    #[serde(default)]
    full: Overlay,
    #[serde(default)]
    claims: Vec<toml::Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VariantFile {
    name: String,
    #[serde(default)]
    schemes: Vec<String>,
    #[serde(default)]
    rack: toml::Table,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Overlay {
    #[serde(default)]
    rack: toml::Table,
}

/// A rack of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// The variant's name.
    pub name: String,
    /// The variant's rack.
    pub rack: RackConfig,
    /// The schemes run on it.
    pub schemes: Vec<&'static Scheme>,
}

/// An experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// The experiment's name.
    pub name: String,
    /// Its result, and its scale.
    pub description: String,
    /// Which workloads run at the same time.
    pub placement: Placement,
    /// The racks to run.
    pub variants: Vec<Variant>,
    /// The workloads to run.
    pub workloads: Vec<WorkloadConfig>,
    /// A paper's claims on it, as in the file; the code that checks claims reads them.
    pub claims: Vec<toml::Table>,
}

/// One run of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Index of the variant.
    pub variant: usize,
    /// Index of the workload of each node.
    pub workloads: Vec<usize>,
    /// The scheme; `None` for the base, all memory local.
    pub scheme: Option<&'static Scheme>,
    /// Index in the plan of the base of its slowdown.
    pub base: usize,
}

/// A run and its outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// The run's plan.
    pub planned: Planned,
    /// The run's outcome.
    pub outcome: Outcome,
}

fn overlay(base: &mut toml::Table, over: &toml::Table) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(toml::Value::Table(b)), toml::Value::Table(o)) => overlay(b, o),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

fn schemes(names: &[String]) -> Result<Vec<&'static Scheme>, ConfigError> {
    names.iter().map(|name| Scheme::by_name(name)).collect()
}

fn rack(table: toml::Table, variant: &str) -> Result<RackConfig, ConfigError> {
    let text = toml::to_string(&table)
        .map_err(|e| ConfigError::new("rack", e.to_string().replace('\n', " ")))?;
    RackConfig::from_toml(&text).map_err(|e| match variant {
        "" => e,
        name => e.within(&format!("variants.{name}")),
    })
}

const ONE_SIZE: &str =
    "the file has no full size; leave --full out, or add [full.rack] or full = { } of a workload";

impl Experiment {
    /// Reads TOML. With `full`, the values for full size replace the scaled ones. `only` is the
    /// schemes to run instead of the file's, unless empty.
    pub fn from_toml(text: &str, full: bool, only: &[String]) -> Result<Self, ConfigError> {
        let bad = |what: String| ConfigError::new("experiment", what);
        let file: File = terrace_hardware::layered::from_toml("experiment", text)?;
        let mut base = file.rack;
        let is_of_two_sizes =
            !file.full.rack.is_empty() || file.workloads.iter().any(|w| w.contains_key("full"));
        if full && !is_of_two_sizes {
            return Err(bad(ONE_SIZE.into()));
        }
        if full {
            overlay(&mut base, &file.full.rack);
        }
        let workloads: Vec<WorkloadConfig> = file
            .workloads
            .into_iter()
            .map(|mut table| {
                if let Some(over) = table.remove("full")
                    && full
                {
                    let over = over
                        .as_table()
                        .ok_or_else(|| bad("full of a workload must be a table".into()))?;
                    overlay(&mut table, over);
                }
                table.try_into().map_err(|e: toml::de::Error| {
                    bad(format!("workloads: {}", e.message().replace('\n', " ")))
                })
            })
            .collect::<Result<_, _>>()?;
        if workloads.is_empty() {
            return Err(bad("no workloads; expected one [[workloads]] at least".into()));
        }
        for (n, w) in workloads.iter().enumerate() {
            if workloads[..n].iter().any(|o| o.name == w.name) {
                return Err(bad(format!("two workloads are named {:?}", w.name)));
            }
        }
        let of_file = match (only.is_empty(), file.schemes.is_empty()) {
            (false, _) => schemes(only)?,
            (true, false) => schemes(&file.schemes)?,
            (true, true) => REGISTRY.iter().collect(),
        };
        let mut variants = Vec::new();
        for v in file.variants {
            let mut table = base.clone();
            overlay(&mut table, &v.rack);
            let own = if only.is_empty() && !v.schemes.is_empty() {
                schemes(&v.schemes)?
            } else {
                of_file.clone()
            };
            variants.push(Variant { rack: rack(table, &v.name)?, name: v.name, schemes: own });
        }
        if variants.is_empty() {
            variants.push(Variant { name: "-".into(), rack: rack(base, "")?, schemes: of_file });
        }
        Ok(Experiment {
            name: file.name,
            description: file.description,
            placement: file.placement,
            variants,
            workloads,
            claims: file.claims,
        })
    }

    /// Checks that every workload can start on every rack. Racks themselves were checked when they
    /// were read.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut checked = std::collections::BTreeSet::new();
        for cores in self.variants.iter().map(|v| v.rack.cores()) {
            if checked.insert(cores) {
                self.workloads.iter().try_for_each(|w| w.check(cores))?;
            }
        }
        Ok(())
    }

    /// Sets of workloads that run at the same time, by node.
    fn sets(&self, nodes: usize) -> Vec<Vec<usize>> {
        let all = self.workloads.len();
        match self.placement {
            Placement::Alone => (0..all).map(|w| vec![w; nodes]).collect(),
            Placement::Together => vec![(0..nodes).map(|n| n % all).collect()],
        }
    }

    /// The rack with all memory local. Values without effect then have their default, so that racks
    /// that differ only there have the same base.
    fn base(rack: &RackConfig) -> RackConfig {
        let supported_nodes = rack.mechanism.supported_nodes;
        RackConfig {
            local_share: 1.0,
            pools: 1,
            network: NetworkConfig::default(),
            mechanism: MechanismConfig { supported_nodes, ..MechanismConfig::default() },
            migration: MigrationConfig::default(),
            ..rack.clone()
        }
    }

    /// Every run, bases before those that need them.
    pub fn plan(&self) -> Vec<Planned> {
        let mut plan: Vec<Planned> = Vec::new();
        let mut bases: Vec<(RackConfig, Vec<usize>, usize)> = Vec::new();
        for (variant, v) in self.variants.iter().enumerate() {
            for workloads in self.sets(v.rack.nodes as usize) {
                let config = Self::base(&v.rack);
                let known = bases.iter().find(|b| b.0 == config && b.1 == workloads).map(|b| b.2);
                let base = known.unwrap_or_else(|| {
                    let base = plan.len();
                    let workloads = workloads.clone();
                    plan.push(Planned {
                        variant,
                        workloads: workloads.clone(),
                        scheme: None,
                        base,
                    });
                    bases.push((config, workloads, base));
                    base
                });
                plan.extend(v.schemes.iter().map(|&scheme| Planned {
                    variant,
                    workloads: workloads.clone(),
                    scheme: Some(scheme),
                    base,
                }));
            }
        }
        plan
    }

    /// The rack, scheme and workloads of a run.
    pub fn rack_of(&self, run: &Planned) -> (RackConfig, &'static Scheme, Vec<WorkloadConfig>) {
        let rack = &self.variants[run.variant].rack;
        let workloads = run.workloads.iter().map(|&w| self.workloads[w].clone()).collect();
        match run.scheme {
            Some(scheme) => (rack.clone(), scheme, workloads),
            None => (Self::base(rack), block(), workloads),
        }
    }

    /// Runs everything on so many threads of the host; `done` gets each run that ends. The results
    /// are in the order of the plan and do not depend on the number of threads.
    pub fn run(
        &self,
        threads: usize,
        done: impl Fn(&Planned) + Sync,
    ) -> Result<Vec<Finished>, RunError> {
        let plan = self.plan();
        // Several runs at once where there are several; the remaining threads run within each.
        let outer = threads.min(plan.len()).max(1);
        let inner = (threads / outer).max(1);
        let outcomes = terrace_jobs::try_all(&plan, outer, |planned| {
            let (rack, scheme, workloads) = self.rack_of(planned);
            let outcome = run(&rack, scheme, &workloads, inner);
            done(planned);
            outcome
        })?;
        let finished = plan.into_iter().zip(outcomes);
        Ok(finished.map(|(planned, outcome)| Finished { planned, outcome }).collect())
    }
}

fn block() -> &'static Scheme {
    REGISTRY.iter().find(|s| s.name == "BLOCK").expect("the registry has the baseline")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        name = "x"
        schemes = ["BLOCK", "cpm"]
        [rack]
        instructions = 1000
        [full.rack]
        instructions = 9000
        [[variants]]
        name = "fast"
        [[variants]]
        name = "slow"
        rack.network = { nic_gbit_per_s = 40.0 }
        [[variants]]
        name = "little"
        rack.local_share = 0.2
        rack.nodes = 2
        [[workloads]]
        name = "a"
        program = "stream"
        footprint = "4M"
        full = { footprint = "64M" }
        [[workloads]]
        name = "b"
        program = "gups"
    "#;

    #[test]
    fn racks_that_differ_in_the_network_share_their_base() {
        let e = Experiment::from_toml(FILE, false, &[]).unwrap();
        let plan = e.plan();
        // Two workloads; fast and slow have one base each for both, little another.
        assert_eq!(plan.iter().filter(|p| p.scheme.is_none()).count(), 4);
        assert_eq!(plan.len(), 4 + 3 * 2 * 2);
        for p in &plan {
            assert!(plan[p.base].scheme.is_none());
            assert_eq!(plan[p.base].workloads, p.workloads);
        }
        assert_eq!(plan.last().unwrap().workloads, [1, 1]);
    }

    #[test]
    fn full_size_and_schemes_replace_what_the_file_has() {
        let scaled = Experiment::from_toml(FILE, false, &[]).unwrap();
        let full = Experiment::from_toml(FILE, true, &["apm".into()]).unwrap();
        assert_eq!(scaled.variants[0].rack.instructions, 1000);
        assert_eq!(full.variants[0].rack.instructions, 9000);
        assert_eq!(full.workloads[0].footprint.unwrap().0, 64 << 20);
        assert_eq!(full.variants[1].schemes[0].name, "APM");
        assert_eq!(full.variants[1].rack.network.nic_gbit_per_s, 40.0);
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_reason() {
        for (change, printed) in [
            ("[rack]\npools = 0", "pools is 0"),
            ("[rack]\nnetwork = { nic_gbit_per_s = 0.0 }", "nothing could move"),
            ("[rack]\nmechanism = { page_buffers = 10 }", "npm is 25 but page_buffers 10"),
            ("[rack]\nbogus = 1", "bogus"),
            ("schemes = [\"FAST\"]", "expected one of PAGE"),
        ] {
            let text = format!(
                "name = \"x\"\n{change}\n[[workloads]]\nname = \"a\"\nprogram = \"stream\""
            );
            let error = Experiment::from_toml(&text, false, &[]).unwrap_err().to_string();
            assert!(error.contains(printed), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        assert!(Experiment::from_toml("name = \"x\"\nworkloads = []", false, &[]).is_err());
    }
}
