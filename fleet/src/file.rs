//! The fleet file: host classes, services, the slowdown that each can bear, prices, latencies.

use std::path::{Path, PathBuf};

use globset::GlobMatcher;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use terrace_core::lines::line_at;
use terrace_core::names::expected;
use terrace_core::parameters::in_plain_words;
use terrace_core::policies::REGISTRY;
use terrace_core::policy::build;
use terrace_core::size::Size;
use terrace_core::{InputError, refuse};
use terrace_planner::memory::Machine;
use terrace_planner::recording::{ASSUMED_MACHINE, Waiting};
use terrace_stores::glob;

use crate::answer::ALL_CLASSES;

/// Bytes of a fleet file, at most.
const MOST_BYTES: u64 = 1 << 20;

/// A slowdown: run time over that with all memory fast, written as `"5%"` or `"1.05x"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowdown(pub f64);

impl Slowdown {
    /// Reads it. The error has what was got and what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "slowdown '{text}': expected a percentage as in \"5%\", or \"1.05x\", up to 100x"
            )
        };
        let trimmed = text.trim();
        let value = match (trimmed.strip_suffix('%'), trimmed.strip_suffix('x')) {
            (Some(percent), _) => 1.0 + percent.trim().parse::<f64>().map_err(|_| bad())? / 100.0,
            (_, Some(factor)) => factor.trim().parse::<f64>().map_err(|_| bad())?,
            _ => return Err(bad()),
        };
        if (1.0..=100.0).contains(&value) { Ok(Slowdown(value)) } else { Err(bad()) }
    }
}

impl<'de> Deserialize<'de> for Slowdown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Slowdown::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// A fleet file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fleet {
    /// Seed of the bootstrap.
    pub seed: u64,
    /// Confidence of the intervals, as of 0.95.
    pub confidence: f64,
    /// Part of the hosts of a class that the answer is enough for.
    pub quantile: f64,
    /// Slowdown that services can bear where theirs is not given.
    pub slowdown: Slowdown,
    /// Other latencies of slow memory to answer for, in ns.
    pub slow_latencies_ns: Vec<f64>,
    /// Share of its time, with all memory fast, that a service waits for memory: an assumption.
    pub memory_share: f64,
    /// By how much that may be off either way.
    pub memory_share_error: f64,
    /// The policy that manages fast memory.
    pub policy: String,
    /// Periods at the beginning of a history that are played and not counted.
    pub settle_periods: u64,
    /// Periods that a history must have.
    pub least_periods: u64,
    /// The host classes.
    pub classes: Vec<HostClass>,
    /// The services by name.
    pub services: Vec<Service>,
    /// Folder that the patterns of hosts are relative to.
    #[serde(skip)]
    pub folder: PathBuf,
}

impl Default for Fleet {
    fn default() -> Self {
        Fleet {
            seed: 1,
            confidence: 0.95,
            quantile: 0.95,
            slowdown: Slowdown(1.05),
            slow_latencies_ns: Vec::new(),
            memory_share: 0.4,
            memory_share_error: 0.2,
            policy: "lfu".to_owned(),
            settle_periods: 16,
            least_periods: 32,
            classes: Vec::new(),
            services: Vec::new(),
            folder: PathBuf::new(),
        }
    }
}

/// Hosts that are bought alike.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostClass {
    /// Its name.
    pub name: String,
    /// Pattern of the folders of its hosts, one for each, with `*`, `?`, `[...]` and `{a,b}`; in a
    /// bucket of an object store as `s3://BUCKET/PATTERN`.
    pub hosts: String,
    /// Memory of a host, fast and slow together.
    pub memory: Size,
    /// Fast memory kept for the kernel and for whatever is in no group.
    #[serde(default)]
    pub reserve: Option<Size>,
    /// Hosts that there are or will be; as many as have histories if not given.
    #[serde(default)]
    pub count: Option<u64>,
    /// Price of a GB (2^30 bytes) of fast memory, in any currency.
    #[serde(default)]
    pub price_fast: Option<f64>,
    /// Price of a GB of slow memory.
    #[serde(default)]
    pub price_slow: Option<f64>,
    /// Idle latency of a read from fast memory beyond the caches, in ns.
    #[serde(default)]
    pub fast_latency_ns: Option<f64>,
    /// The same of slow memory.
    #[serde(default)]
    pub slow_latency_ns: Option<f64>,
}

impl HostClass {
    /// Fast memory that no service gets, in bytes.
    pub fn reserve_bytes(&self) -> u64 {
        self.reserve.map_or(0, |r| r.0)
    }

    /// Its tiers: those of `server-ddr5-cxl`, with the latencies that are given.
    ///
    /// # Errors
    /// None but of a registry without that machine.
    pub fn machine(&self) -> Result<Machine, InputError> {
        let mut machine = Machine::preset(ASSUMED_MACHINE)?;
        machine.fast.latency_ns = self.fast_latency_ns.unwrap_or(machine.fast.latency_ns);
        machine.slow.latency_ns = self.slow_latency_ns.unwrap_or(machine.slow.latency_ns);
        machine.name.clone_from(&self.name);
        (machine.price_fast, machine.price_slow) = (self.price_fast, self.price_slow);
        Ok(machine)
    }

    /// Price of the memory of a host with this much of it fast; `None` without prices.
    pub fn price(&self, fast_bytes: f64) -> Option<f64> {
        const GB: f64 = (1u64 << 30) as f64;
        let slow_bytes = (self.memory.0 as f64 - fast_bytes).max(0.0);
        Some((fast_bytes * self.price_fast? + slow_bytes * self.price_slow?) / GB)
    }
}

/// Groups of one kind, wherever they run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Patterns of its groups' names, as those of terraced: `*`, `?`, `[...]`, `{a,b}`, `**`.
    pub groups: Vec<String>,
    /// Slowdown that it can bear; the fleet's if not given.
    #[serde(default)]
    pub slowdown: Option<Slowdown>,
    /// Share of its time that it waits for memory; the fleet's if not given.
    #[serde(default)]
    pub memory_share: Option<f64>,
}

/// Services by the names of their groups.
#[derive(Debug)]
pub struct Matcher {
    /// Patterns and the service's number, in the order of the file.
    globs: Vec<(GlobMatcher, usize)>,
}

/// How one group is planned.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    /// The service's name.
    pub service: String,
    /// Run time that it can bear, over that with all memory fast.
    pub target: f64,
    /// The assumption of the latency model.
    pub waiting: Waiting,
}

impl Fleet {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// One line with the file, the line, what was got and what was expected.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let error =
            |e: std::io::Error| refuse!("{}: {e}; expected a fleet file (TOML)", path.display());
        let size = std::fs::metadata(path).map_err(error)?.len();
        if size > MOST_BYTES {
            return Err(refuse!("{}: {size} bytes, expected at most {MOST_BYTES}", path.display()));
        }
        let text = std::fs::read_to_string(path).map_err(error)?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Self::parse(&text, folder).map_err(|e| refuse!("{}: {e}", path.display()))
    }

    /// Reads and checks a text; patterns of hosts are relative to `folder`.
    ///
    /// # Errors
    /// As [`Self::read`], without the file.
    pub fn parse(text: &str, folder: PathBuf) -> Result<Self, InputError> {
        let mut fleet: Fleet = toml::from_str(text).map_err(|e| {
            let line =
                e.span().map_or(String::new(), |s| format!("line {}: ", line_at(text, s.start)));
            refuse!("{line}{}", in_plain_words(e.message()))
        })?;
        fleet.folder = folder;
        fleet.check()?;
        Ok(fleet)
    }

    fn check(&self) -> Result<(), InputError> {
        within("confidence", self.confidence, 0.5, 0.999)?;
        within("quantile", self.quantile, 0.5, 0.999)?;
        within("memory_share", self.memory_share, 0.01, 1.0)?;
        within("memory_share_error", self.memory_share_error, 0.0, 1.0)?;
        if self.least_periods <= self.settle_periods {
            return Err(refuse!(
                "least_periods is {} and settle_periods {}: expected more periods than those that \
                 are not counted",
                self.least_periods,
                self.settle_periods
            ));
        }
        let policies = || REGISTRY.iter().map(|kind| kind.name);
        if !policies().any(|name| name == self.policy) {
            let expected = expected(&self.policy, policies());
            return Err(refuse!("policy '{}': expected {expected}", self.policy));
        }
        let policy = build(&self.policy, &Value::Null, 1).map_err(InputError::new)?;
        if policy.needs_oracle() {
            return Err(refuse!(
                "policy '{}' plans with knowledge of the future: expected one that terraced can use",
                self.policy
            ));
        }
        if self.classes.is_empty() {
            return Err(refuse!("no host classes: expected at least one [[classes]]"));
        }
        self.check_latencies()?;
        for (index, class) in self.classes.iter().enumerate() {
            let name = &class.name;
            unique("host class", name, self.classes[..index].iter().map(|c| &c.name))?;
            if name == ALL_CLASSES {
                return Err(refuse!(
                    "host class '{name}': rows over all classes have this name, expected another"
                ));
            }
            if class.memory.0 == 0 {
                return Err(refuse!("class '{name}': memory is 0, expected the size of a host's"));
            }
            if class.reserve_bytes() > class.memory.0 {
                return Err(refuse!("class '{name}': reserve is more than memory, expected less"));
            }
            if class.price_fast.is_some() != class.price_slow.is_some() {
                return Err(refuse!(
                    "class '{name}': one of price_fast and price_slow, expected both or none"
                ));
            }
            for price in [class.price_fast, class.price_slow].into_iter().flatten() {
                within(&format!("class '{name}': a price"), price, 0.0, 1e9)?;
            }
            let machine = class.machine()?;
            let others = self.slow_latencies_ns.iter().copied();
            within(&format!("class '{name}': fast_latency_ns"), machine.fast.latency_ns, 0.1, 1e6)?;
            for latency_ns in others.chain([machine.slow.latency_ns]) {
                within(&format!("class '{name}': a slow latency"), latency_ns, 0.1, 1e6)?;
                if latency_ns < machine.fast.latency_ns {
                    return Err(refuse!(
                        "class '{name}': slow memory of {latency_ns} ns and fast memory of {:.0} \
                         ns; expected slow memory to be the slower one",
                        machine.fast.latency_ns
                    ));
                }
            }
        }
        self.check_services()?;
        self.matcher().map(|_| ())
    }

    fn check_services(&self) -> Result<(), InputError> {
        for (index, service) in self.services.iter().enumerate() {
            unique("service", &service.name, self.services[..index].iter().map(|s| &s.name))?;
            let name = &service.name;
            if name.starts_with('/') {
                return Err(refuse!(
                    "service '{name}': groups of no service have such names, expected one without '/' \
                     at its beginning"
                ));
            }
            if service.groups.is_empty() {
                return Err(refuse!("service '{name}': no groups, expected at least one pattern"));
            }
            if let Some(share) = service.memory_share {
                within(&format!("service '{name}': memory_share"), share, 0.01, 1.0)?;
            }
        }
        Ok(())
    }

    fn check_latencies(&self) -> Result<(), InputError> {
        for (index, latency_ns) in self.slow_latencies_ns.iter().enumerate() {
            if self.slow_latencies_ns[..index].contains(latency_ns) {
                return Err(refuse!(
                    "slow_latencies_ns has {latency_ns} twice: expected each latency once"
                ));
            }
        }
        Ok(())
    }

    /// The patterns of services, ready to match.
    ///
    /// # Errors
    /// A pattern that cannot be read.
    pub fn matcher(&self) -> Result<Matcher, InputError> {
        let mut globs = Vec::new();
        for (number, service) in self.services.iter().enumerate() {
            for text in &service.groups {
                let glob = glob(text).map_err(|e| refuse!("service '{}': {e}", service.name))?;
                globs.push((glob, number));
            }
        }
        Ok(Matcher { globs })
    }

    /// How a group is planned: as the first service that has a pattern for it, else as a service of
    /// its own with the fleet's slowdown.
    pub fn terms(&self, matcher: &Matcher, group: &str) -> Terms {
        let trimmed = group.trim_matches('/');
        let found = matcher.globs.iter().find(|(glob, _)| glob.is_match(trimmed));
        let service = found.and_then(|(_, number)| self.services.get(*number));
        let share = service.and_then(|s| s.memory_share).unwrap_or(self.memory_share);
        Terms {
            service: service.map_or(group, |s| &s.name).to_owned(),
            target: service.and_then(|s| s.slowdown).unwrap_or(self.slowdown).0,
            waiting: Waiting { share, error: self.memory_share_error },
        }
    }

    /// Slow latencies to answer for in a class, in ns: its own, then the others that differ from it.
    ///
    /// # Errors
    /// As of [`HostClass::machine`].
    pub fn latencies_ns(&self, class: &HostClass) -> Result<Vec<f64>, InputError> {
        let mut all = vec![class.machine()?.slow.latency_ns];
        for latency_ns in &self.slow_latencies_ns {
            if !all.contains(latency_ns) {
                all.push(*latency_ns);
            }
        }
        Ok(all)
    }
}

fn within(what: &str, value: f64, low: f64, high: f64) -> Result<(), InputError> {
    if value.is_finite() && (low..=high).contains(&value) {
        return Ok(());
    }
    Err(refuse!("{what} is {value}: expected {low} to {high}"))
}

fn unique<'a>(
    what: &str,
    name: &str,
    mut before: impl Iterator<Item = &'a String>,
) -> Result<(), InputError> {
    if name.trim().is_empty() {
        return Err(refuse!("a {what} without a name: expected one"));
    }
    match before.any(|other| other == name) {
        true => Err(refuse!("two of {what} '{name}': expected different names")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "[[classes]]\nname = \"web\"\nhosts = \"web/*\"\nmemory = \"64G\"\n";

    fn parse(text: &str) -> Result<Fleet, InputError> {
        Fleet::parse(text, PathBuf::new())
    }

    #[test]
    fn what_cannot_be_used_is_refused_in_one_line() {
        for (text, part) in [
            (format!("sed = 2\n{SMALL}"), "line 1: unknown field `sed`"),
            (format!("sed = 2\n{SMALL}"), "did you mean 'seed'?"),
            (format!("{SMALL}memry = 1\n"), "did you mean 'memory'?"),
            (format!("policy = \"lur\"\n{SMALL}"), "did you mean 'lru'?"),
            (format!("policy = \"optimum\"\n{SMALL}"), "expected one that terraced can use"),
            (format!("slowdown = \"5\"\n{SMALL}"), "expected a percentage"),
            (format!("confidence = 2\n{SMALL}"), "confidence is 2: expected 0.5 to 0.999"),
            (format!("slow_latencies_ns = [1]\n{SMALL}"), "to be the slower one"),
            (format!("{SMALL}price_fast = 1\n"), "expected both or none"),
            (format!("{SMALL}reserve = \"65G\"\n"), "reserve is more than memory"),
            (format!("{SMALL}{SMALL}"), "two of host class 'web'"),
            (SMALL.replace("\"web\"", "\"all\""), "expected another"),
            (format!("slow_latencies_ns = [250, 300, 250.0]\n{SMALL}"), "has 250 twice"),
            (format!("least_periods = 16\n{SMALL}"), "least_periods is 16"),
            (format!("{SMALL}[[services]]\nname = \"a\"\ngroups = []\n"), "no groups"),
            (format!("{SMALL}[[services]]\nname = \"/a\"\ngroups = [\"*\"]\n"), "without '/'"),
            (format!("{SMALL}[[services]]\nname = \"a\"\ngroups = [\"[\"]\n"), "pattern '['"),
            (String::new(), "no host classes"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_group_is_of_the_first_service_that_names_it() {
        let services = "[[services]]\nname = \"redis\"\ngroups = [\"/system.slice/redis*\"]\n\
                        slowdown = \"2%\"\nmemory_share = 0.6\n[[services]]\nname = \"rest\"\n\
                        groups = [\"/system.slice/**\"]\n";
        let fleet = parse(&format!("{SMALL}{services}")).unwrap();
        let matcher = fleet.matcher().unwrap();
        let terms = |group: &str| fleet.terms(&matcher, group);
        let redis = terms("/system.slice/redis-server.service");
        assert_eq!((redis.service.as_str(), redis.target), ("redis", 1.02));
        assert_eq!(redis.waiting.share, 0.6);
        assert_eq!(terms("/system.slice/a/b").service, "rest");
        let own = terms("/other");
        assert_eq!((own.service.as_str(), own.target), ("/other", 1.05));
    }
}
