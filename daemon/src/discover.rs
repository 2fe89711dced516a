//! Which control groups there are, and which of them are managed: patterns over paths, and
//! the rule that no process belongs to two groups.
//!
//! Names of control groups are chosen by their owners, so they are untrusted: they are matched and
//! shown, and opened only as folders below the control-group root; control characters are replaced
//! before they are shown ([`shown`]).

use globset::{GlobBuilder, GlobMatcher};
use terrace_linux::cgroup_tree::Bounds;

/// Control groups that are visited in one search. Reading the state of one takes some 10 us, so a
/// search is bounded to some 40 ms; a host with 250 pods has about 1,000 groups.
pub const BOUNDS: Bounds = Bounds { depth: 16, groups: 4096 };

/// A pattern over paths of control groups.
#[derive(Debug, Clone)]
pub struct Pattern {
    glob: GlobMatcher,
    /// Pattern of each name of a path, up to the first part that spans names.
    names: Vec<GlobMatcher>,
    /// Whether there is such a part, so that a path may have more names than patterns.
    is_open: bool,
}

impl Pattern {
    /// Reads a pattern: an absolute path below the control-group root, with `*`, `?`, `[...]` and
    /// `{a,b}` within one name and `**` over any number of names.
    pub fn new(text: &str) -> Result<Self, String> {
        let bad = |what: &str| Err(format!("cgroup '{text}': {what}"));
        if !text.starts_with('/') {
            return bad(
                "expected a path that begins with '/', such as /system.slice/redis.service",
            );
        }
        let trimmed = text.trim_end_matches('/');
        if trimmed.is_empty() {
            return bad("expected a path such as /system.slice/redis.service, not the root");
        }
        if text.len() > 4096 || text.chars().any(char::is_control) {
            return bad("expected at most 4096 characters and no control characters");
        }
        if text.split('/').any(|name| name == ".." || name == ".") {
            return bad("expected no '.' or '..' in it");
        }
        // Bounds the time to read a pattern.
        if text.matches(['{', ',']).count() > 64 {
            return bad("expected at most 64 alternatives");
        }
        let read = |text: &str| {
            let glob = GlobBuilder::new(text).literal_separator(true).build();
            glob.map(|glob| glob.compile_matcher())
        };
        let glob = match read(trimmed) {
            Ok(glob) => glob,
            Err(e) => {
                return bad(&format!("{}; expected a path with *, ?, [...] or **", e.kind()));
            }
        };
        // A name that cannot be read alone, such as half of {a/b,c}, spans names.
        let mut names = Vec::new();
        let mut is_open = false;
        for name in trimmed[1..].split('/') {
            match read(name) {
                Ok(matcher) if !name.contains("**") => names.push(matcher),
                _ => {
                    is_open = true;
                    break;
                }
            }
        }
        Ok(Pattern { glob, names, is_open })
    }

    /// Whether a path or one below it can match: what else there is need not be visited.
    pub fn reaches(&self, path: &str) -> bool {
        let mut names = path[1..].split('/').enumerate();
        names.all(|(nth, name)| self.names.get(nth).map_or(self.is_open, |m| m.is_match(name)))
    }

    /// Whether it matches a path such as `/system.slice/x.service`.
    pub fn matches(&self, path: &str) -> bool {
        self.glob.is_match(path)
    }
}

/// What an entry of the configuration wants.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// These paths.
    pub cgroup: Pattern,
    /// But not these.
    pub exclude: Vec<Pattern>,
}

impl Wanted {
    /// Whether a path or one below it can be wanted.
    pub fn reaches(&self, path: &str) -> bool {
        self.cgroup.reaches(path)
    }

    /// Whether this entry wants a control group.
    pub fn matches(&self, path: &str) -> bool {
        self.cgroup.matches(path) && !self.exclude.iter().any(|p| p.matches(path))
    }
}

/// A control group that matches and is not managed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmanaged {
    /// Its path.
    pub path: String,
    /// The entry that matches.
    pub entry: usize,
    /// Why not.
    pub reason: String,
}

/// Which control groups are managed, each with the entry that claims it. `paths` are those
/// that have processes, `held` those that are managed already. At most `most` are chosen.
///
/// The first entry that matches a path claims it. A group contains the groups below it, so of two
/// of which one contains the other only one is chosen: the one that is held, else that of the
/// earlier entry, else the upper one.
pub fn choose(
    paths: &[String],
    wanted: &[Wanted],
    held: &[String],
    most: usize,
) -> (Vec<(String, usize)>, Vec<Unmanaged>) {
    let mut candidates: Vec<(bool, usize, &String)> = paths
        .iter()
        .filter_map(|path| {
            let entry = wanted.iter().position(|w| w.matches(path))?;
            Some((!held.contains(path), entry, path))
        })
        .collect();
    candidates.sort();
    candidates.dedup();
    let mut chosen: Vec<(String, usize)> = Vec::new();
    let mut unmanaged = Vec::new();
    for (_, entry, path) in candidates {
        let overlap =
            chosen.iter().find(|(other, _)| contains(other, path) || contains(path, other));
        let reason = match overlap {
            Some((other, _)) => format!("it has processes in common with {}", shown(other)),
            None if chosen.len() >= most => format!("{most} groups are managed: max_groups"),
            None => {
                chosen.push((path.clone(), entry));
                continue;
            }
        };
        unmanaged.push(Unmanaged { path: path.clone(), entry, reason });
    }
    (chosen, unmanaged)
}

/// Whether a control group is another or contains it.
fn contains(upper: &str, lower: &str) -> bool {
    lower.strip_prefix(upper).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A name for a terminal, a log or a metric: control characters are replaced, and the length is
/// bounded.
pub fn shown(name: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || ('\u{202a}'..='\u{202e}').contains(&c)
            || ('\u{2066}'..='\u{2069}').contains(&c)
    };
    let mut text: String =
        name.chars().take(256).map(|c| if hidden(c) { '\u{fffd}' } else { c }).collect();
    if name.chars().nth(256).is_some() {
        text.push_str("...");
    }
    text
}

/// Digits of the hash of [`distinct`].
const HASH_DIGITS: usize = 16;
/// Characters of a name before its hash: with it [`shown`] shortens nothing.
const BEFORE_HASH: usize = 256 - 1 - HASH_DIGITS;

/// A name as it is [`shown`], and another one for each group: where it is not shown as it is, a hash of
/// it follows. Two series of metrics of one name would be a faulty scrape.
pub fn distinct(name: &str) -> String {
    let text = shown(name);
    let has_hash = |(_, end): (&str, &str)| {
        end.len() == HASH_DIGITS && end.bytes().all(|b| b.is_ascii_hexdigit())
    };
    // Neither can a name be chosen that is another's with its hash.
    if text == name && !name.contains('\u{fffd}') && !name.rsplit_once('~').is_some_and(has_hash) {
        return text;
    }
    let kept: String = text.chars().take(BEFORE_HASH).collect();
    format!("{kept}~{:016x}", hash(name))
}

/// A hash of a name that is the same at each start (FNV-1a).
pub(crate) fn hash(name: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wanted(cgroup: &str, exclude: &[&str]) -> Wanted {
        Wanted {
            cgroup: Pattern::new(cgroup).unwrap(),
            exclude: exclude.iter().map(|p| Pattern::new(p).unwrap()).collect(),
        }
    }

    fn names(chosen: &[(String, usize)]) -> Vec<(&str, usize)> {
        chosen.iter().map(|(p, e)| (p.as_str(), *e)).collect()
    }

    #[test]
    fn a_star_stays_within_a_name_and_two_do_not() {
        let p = |text: &str, path: &str| Pattern::new(text).unwrap().matches(path);
        assert!(p("/system.slice/*.service", "/system.slice/a.service"));
        assert!(!p("/system.slice/*.service", "/system.slice/a.service/sub.service"));
        assert!(p("/pods/**/c-*.scope", "/pods/x/y/c-1.scope"));
        assert!(p("/pods/**/c-*.scope", "/pods/c-1.scope"));
        assert!(p("/a/{b,c}?", "/a/c1") && !p("/a/{b,c}?", "/a/d1"));
        assert!(p("/a/", "/a"));
    }

    #[test]
    fn only_paths_that_lead_to_a_match_are_reached() {
        let reaches = |text: &str, path: &str| Pattern::new(text).unwrap().reaches(path);
        let redis = "/system.slice/redis.service";
        assert!(reaches(redis, "/system.slice") && reaches(redis, redis));
        assert!(!reaches(redis, "/user.slice") && !reaches(redis, "/system.slice/x.service"));
        assert!(!reaches(redis, "/system.slice/redis.service/below"));
        assert!(reaches("/pods/**/c-*", "/pods/x/y/z") && !reaches("/pods/**/c-*", "/user.slice"));
        assert!(reaches("/{a/b,c}/d", "/anything/at/all"));
        assert!(reaches("/a/{b,c}/d", "/a/b") && !reaches("/a/{b,c}/d", "/a/d"));
    }

    #[test]
    fn patterns_that_leave_the_root_or_make_no_sense_are_refused() {
        for (text, expected) in [
            ("", "expected a path"),
            ("/", "not the root"),
            ("///", "not the root"),
            ("system.slice", "expected a path that begins with '/'"),
            ("/a/../b", "'..'"),
            ("/[a", "expected a path with"),
            ("/a\n", "control characters"),
        ] {
            let message = Pattern::new(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
        assert!(Pattern::new(&format!("/{{{}}}", ",".repeat(1000))).is_err());
    }

    #[test]
    fn the_first_entry_claims_and_no_process_has_two_groups() {
        let paths: Vec<String> =
            ["/a", "/a/b", "/a/c", "/ab", "/d"].iter().map(|p| p.to_string()).collect();
        let entries = [wanted("/a/b", &[]), wanted("/**", &["/d"])];
        let (chosen, unmanaged) = choose(&paths, &entries, &[], 10);
        assert_eq!(names(&chosen), [("/a/b", 0), ("/a/c", 1), ("/ab", 1)]);
        assert_eq!(unmanaged.len(), 1);
        assert!(unmanaged[0].path == "/a" && unmanaged[0].reason.contains("/a/b"), "{unmanaged:?}");
        // A managed group stays managed.
        let (chosen, _) = choose(&paths, &entries, &["/a".into()], 10);
        assert_eq!(names(&chosen), [("/a", 1), ("/ab", 1)]);
        let (chosen, unmanaged) = choose(&paths, &entries, &["/ab".into()], 1);
        assert_eq!(names(&chosen), [("/ab", 1)]);
        assert!(unmanaged.iter().all(|l| l.reason.contains("max_groups")), "{unmanaged:?}");
    }

    #[test]
    fn names_are_shown_without_commands_for_terminals() {
        assert_eq!(shown("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(shown("\u{202e}x"), "\u{fffd}x");
        assert!(shown(&"x".repeat(9999)).len() < 300);
    }

    #[test]
    fn names_that_are_shown_alike_are_distinct() {
        let long = "x".repeat(300);
        let names = ["a\n", "a\t", "a\u{fffd}", &format!("{long}1"), &format!("{long}2"), "a"];
        let mut all: Vec<String> = names.map(distinct).into();
        // Names that were made do not meet others, and nothing shortens them again.
        assert!(all.iter().all(|name| shown(name) == *name), "{all:?}");
        all.extend(all[..5].iter().map(|name| distinct(name)).collect::<Vec<_>>());
        let different: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
        assert_eq!(distinct("web:/a/b.service"), "web:/a/b.service");
    }

    proptest! {
        #[test]
        fn any_pattern_is_read_or_refused(text in "[/a\\[\\]{},*?!.\\\\-]{0,40}", path in "/[a-c/]{0,12}") {
            if let Ok(pattern) = Pattern::new(&text) {
                pattern.matches(&path);
            }
        }

        #[test]
        fn what_matches_is_reached_from_the_root(
            text in "(/[ab{},*?]{1,4}){1,4}", path in "(/[ab]{1,2}){1,5}",
        ) {
            if let Ok(pattern) = Pattern::new(&text)
                && pattern.matches(&path)
            {
                let above = path.match_indices('/').skip(1).map(|(at, _)| &path[..at]);
                for path in above.chain([path.as_str()]) {
                    prop_assert!(pattern.reaches(path), "{text} matches below {path}");
                }
            }
        }

        #[test]
        fn no_two_chosen_groups_overlap(
            paths in prop::collection::btree_set("(/[ab]){1,4}", 0..12),
            held in prop::collection::vec("(/[ab]){1,4}", 0..4),
            most in 0usize..6,
        ) {
            let paths: Vec<String> = paths.into_iter().collect();
            let (chosen, unmanaged) =
                choose(&paths, &[wanted("/*/a", &[]), wanted("/**", &["/b/b"])], &held, most);
            prop_assert!(chosen.len() <= most);
            for (i, (a, _)) in chosen.iter().enumerate() {
                prop_assert!(chosen[i + 1..].iter().all(|(b, _)| !contains(a, b) && !contains(b, a)));
            }
            let excluded = paths.iter().filter(|p| *p == "/b/b").count();
            prop_assert_eq!(chosen.len() + unmanaged.len() + excluded, paths.len());
        }
    }
}
