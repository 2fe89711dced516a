//! A first configuration of terraced.

use std::fmt::Write;
use std::path::Path;

use terrace_core::InputError;
use terrace_daemon::Config;

use super::survey::{Group, Survey};
use super::{Made, quoted};

/// What is managed where no group is named.
const SERVICES: &str = "/system.slice/*.service";

/// The configuration for a host and a control group of the user's, or the largest.
pub fn made(survey: &Survey, cgroup: Option<&str>, out: &Path) -> Result<Made, InputError> {
    let mut text = format!(
        "# A first configuration, made by 'terrace init daemon' for this host. 'terraced check FILE'\n\
         # says what is wrong with it; docs/operator.md has every key and its default.\n\n\
         [daemon]\n\
         dry_run = true              # nothing is moved and no setting changed: see first what would be,\n\
         \u{20}                           # with 'terrace top', then remove this line\n{}",
        nodes(survey)
    );
    let largest = survey.groups.first();
    let asked = cgroup.map(below_root);
    match asked.or_else(|| largest.map(|group| group.path.as_str())) {
        Some(path) => chosen(&mut text, path, survey),
        None => services(&mut text, survey),
    }
    others(&mut text, survey, asked.or_else(|| largest.map(|group| group.path.as_str())));
    // What is written is what the daemon takes.
    Config::parse(&text, &out.display().to_string()).map_err(InputError::new)?;
    let file = out.display();
    let next = match (&survey.tiers, survey.substitutes()) {
        (None, None) => {
            "terrace lab (a virtual machine with two tiers: this host has one memory node, and \
             terraced would refuse it)"
                .to_owned()
        }
        _ => format!("terraced check {file} --host, then as root terraced run {file}"),
    };
    Ok(Made { text, next })
}

fn nodes(survey: &Survey) -> String {
    match (&survey.tiers, survey.substitutes()) {
        (Some((fast, slow)), _) => format!(
            "# Fast nodes {fast:?} and slow nodes {slow:?} were found by {}; to name others:\n\
             # fast_nodes = {fast:?}\n\
             # slow_nodes = {slow:?}\n",
            survey.by
        ),
        (None, Some((fast, slow))) => format!(
            "fast_nodes = {fast:?}            # nothing distinguishes this host's nodes: one stands for\n\
             slow_nodes = {slow:?}            # fast memory, the rest for slow memory; correct it\n"
        ),
        (None, None) => "# This host has one memory node: slow memory must come online before \
                         terraced can start\n\
                         # (docs/hardware.md), or be named with fast_nodes and slow_nodes.\n"
            .to_owned(),
    }
}

fn chosen(text: &mut String, path: &str, survey: &Survey) {
    let known = survey.groups.iter().position(|group| group.path == path);
    let why = match known.map(|nth| (nth, gb(survey.groups[nth].bytes))) {
        Some((0, gb)) => format!("{gb:.1} GB, the most here"),
        Some((_, gb)) => format!("{gb:.1} GB"),
        None => "as it was asked for".to_owned(),
    };
    let name = name(path);
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\n[[groups]]\n\
         name = {}\n\
         cgroup = {}  # {why}\n\
         policy = \"amp\"              # the one to take when in doubt; see 'terrace policies'\n\
         fast_ratio = 0.5            # half of its memory may be fast: a guess; 'terrace watch' shows how\n\
         \u{20}                           # much is in use, 'terrace plan' what less would cost\n",
        quoted(&name),
        quoted(&pattern(path)),
    );
}

/// A path as a kernel's file or `systemctl` shows it, below the root of control groups.
fn below_root(path: &str) -> &str {
    let path = path.strip_prefix("/sys/fs/cgroup").filter(|p| p.starts_with('/')).unwrap_or(path);
    path.trim_end_matches('/')
}

fn services(text: &mut String, survey: &Survey) {
    let why = match survey.cgroups {
        true => {
            "# No service has 64 MB in use: every service, each by itself; they share by benefit.\n"
        }
        false => {
            "# Control groups of version 2 were not found, and terraced needs them. With them: every\n\
             # service, each by itself; they share fast memory by benefit.\n"
        }
    };
    let _ = write!(
        text,
        "\n{why}[[groups]]\n\
         name = \"services\"\n\
         cgroup = {}\n\
         exclude = [\"/system.slice/terraced.service\"]\n\
         policy = \"amp\"              # the one to take when in doubt; see 'terrace policies'\n\
         share = {{ weight = 1.0 }}\n",
        quoted(SERVICES)
    );
}

/// Other groups that could be managed, as remarks.
fn others(text: &mut String, survey: &Survey, chosen: Option<&str>) {
    let is_other = |group: &&Group| Some(group.path.as_str()) != chosen;
    let others: Vec<&Group> = survey.groups.iter().filter(is_other).collect();
    if !others.is_empty() {
        let _ = writeln!(text, "\n# Other control groups with much memory:");
    }
    for group in others {
        let _ = writeln!(text, "#   {}  {:.1} GB", quoted(&pattern(&group.path)), gb(group.bytes));
    }
}

fn gb(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// A pattern that matches this path. Characters that mean something in patterns, such as the
/// backslashes that systemd writes, match by place; a star matches itself, and what a user means by it.
fn pattern(path: &str) -> String {
    path.chars().map(|c| if "?[]{}\\,!".contains(c) || c.is_control() { '?' } else { c }).collect()
}

/// A name for the group of a path.
fn name(path: &str) -> String {
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let last = last.trim_end_matches(".service").trim_end_matches(".scope");
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = last.chars().map(plain).take(64).collect();
    if name.is_empty() { "group".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::super::survey::Node;
    use super::*;

    fn node(id: u32) -> Node {
        Node { id, bytes: 8 << 30, has_cpus: true, latency_ns: None }
    }

    fn group(path: &str) -> Group {
        Group { path: path.to_owned(), bytes: 3 << 30 }
    }

    fn config(survey: &Survey, cgroup: Option<&str>) -> (Config, Made) {
        let made = made(survey, cgroup, Path::new("t.toml")).unwrap();
        (Config::parse(&made.text, "t.toml").unwrap(), made)
    }

    #[test]
    fn it_is_a_dry_run_over_the_group_with_the_most_memory() {
        let survey = Survey {
            nodes: vec![node(0), node(1)],
            tiers: Some((vec![0], vec![1])),
            cgroups: true,
            groups: vec![
                group("/system.slice/redis\\x2d1.service"),
                group("/system.slice/b.service"),
            ],
            ..Survey::default()
        };
        let (config, made) = config(&survey, None);
        assert!(config.is_dry() && config.daemon.fast_nodes.is_empty());
        let [first] = &config.groups[..] else { panic!("{:?}", config.groups) };
        let first = first.get_ref();
        let pattern = terrace_daemon::discover::Pattern::new(&first.cgroup).unwrap();
        assert!(pattern.matches("/system.slice/redis\\x2d1.service"), "{}", first.cgroup);
        assert!(!pattern.matches("/system.slice/b.service"));
        assert!(made.text.contains("#   \"/system.slice/b.service\"  3.0 GB"), "{}", made.text);
        assert_eq!(made.next, "terraced check t.toml --host, then as root terraced run t.toml");
    }

    #[test]
    fn a_group_that_was_asked_for_comes_before_the_largest() {
        let survey =
            Survey { cgroups: true, groups: vec![group("/a.service")], ..Survey::default() };
        let (config, made) = config(&survey, Some("/b.slice/my app.service"));
        assert_eq!(config.groups[0].get_ref().cgroup, "/b.slice/my app.service");
        assert_eq!(config.groups[0].get_ref().name, "my-app");
        assert!(made.text.contains("#   \"/a.service\""), "{}", made.text);
        let refused = super::made(&survey, Some("b.slice"), Path::new("t.toml")).err().unwrap();
        assert!(refused.to_string().contains("expected a path that begins with '/'"), "{refused}");
    }

    #[test]
    fn a_path_that_was_asked_for_matches_its_group_and_is_described_as_it_is() {
        let (first, second) = ("/system.slice/a.service", "/system.slice/b\\x2d1.service");
        let groups = vec![group(first), Group { path: second.to_owned(), bytes: 1 << 30 }];
        let survey = Survey { cgroups: true, groups, ..Survey::default() };
        for asked in [second.to_owned(), format!("/sys/fs/cgroup{second}/")] {
            let (config, made) = config(&survey, Some(&asked));
            let written = &config.groups[0].get_ref().cgroup;
            let pattern = terrace_daemon::discover::Pattern::new(written).unwrap();
            assert!(pattern.matches(second) && !pattern.matches(first), "{written}");
            assert!(made.text.contains("# 1.0 GB\n"), "{}", made.text);
            assert!(!made.text.contains("the most here"), "{}", made.text);
            let (_, others) = made.text.split_once("# Other control groups").unwrap();
            assert!(others.contains(first) && !others.contains("x2d1"), "{others}");
        }
        let (_, made) = config(&survey, Some(first));
        assert!(made.text.contains("3.0 GB, the most here"), "{}", made.text);
    }

    #[test]
    fn sockets_stand_for_tiers_and_a_host_without_a_second_node_is_sent_to_the_lab() {
        let survey = Survey { nodes: vec![node(0), node(1), node(2)], ..Survey::default() };
        let (config, _) = config(&survey, None);
        assert_eq!((config.daemon.fast_nodes, config.daemon.slow_nodes), (vec![0], vec![1, 2]));
        assert_eq!(config.groups[0].get_ref().cgroup, SERVICES);
        let survey = Survey { nodes: vec![node(0)], ..Survey::default() };
        let (_, made) = self::config(&survey, None);
        assert!(made.next.starts_with("terrace lab"), "{}", made.next);
    }
}
