//! Tests of the configuration file.

use super::*;
use proptest::prelude::*;

const EXAMPLE: &str = include_str!("../../../examples/terraced.toml");
const SMALL: &str = "[[groups]]\nname = \"g\"\ncgroup = \"/a\"\nfast_ratio = 0.5\n";

fn refused(text: &str) -> String {
    let message = Config::parse(text, "t.toml").unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn the_example_is_one_and_states_the_defaults() {
    let config = Config::parse(EXAMPLE, "example").unwrap();
    assert!(config.groups.len() >= 3);
    let small = Config::parse(SMALL, "small").unwrap();
    assert_eq!(config.daemon, small.daemon);
    assert_eq!(config.throttle, small.throttle);
    assert_eq!(config.sharing, small.sharing);
    let settings = small.settings(small.groups[0].get_ref());
    assert_eq!((settings.policy.as_str(), settings.period_ms), ("amp", 1000));
    assert_eq!(settings.limit, GroupLimit::Ratio(0.5));
}

#[test]
fn the_example_has_every_key() {
    // The deserializer's own list of keys.
    let keys_of = |text: &str| -> Vec<String> {
        let message = refused(text);
        let known = message.split_once("expected one of ").unwrap().1;
        known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let example: Vec<&str> =
        EXAMPLE.lines().map(|line| line.trim_start_matches(['#', ' '])).collect();
    for (section, text) in [
        ("daemon", format!("{SMALL}[daemon]\n? = 1\n")),
        ("sharing", format!("{SMALL}[sharing]\n? = 1\n")),
        ("throttle", format!("{SMALL}[throttle]\n? = 1\n")),
        ("groups", format!("{SMALL}? = 1\n")),
    ] {
        let keys = keys_of(&text.replace('?', "no-such-key"));
        assert!(keys.len() > 2, "{section}: {keys:?}");
        for key in keys {
            let is_there = example.iter().any(|line| line.starts_with(&format!("{key} = ")));
            assert!(is_there, "[{section}] {key} is not in examples/terraced.toml");
        }
    }
}

#[test]
fn the_old_name_of_the_throttle_is_read_and_its_line_named() {
    let old = format!("# manners\n{SMALL}[manners]\nstall_ms = 7\n");
    assert_eq!(Config::parse(&old, "t.toml").unwrap().throttle.stall_ms, 7);
    assert_eq!(old_throttle_line(&old), Some(6));
    let new = format!("# manners\n{SMALL}[throttle]\nstall_ms = 7\n");
    assert_eq!(Config::parse(&new, "t.toml").unwrap().throttle.stall_ms, 7);
    assert_eq!(old_throttle_line(&new), None);
}

#[test]
fn faults_are_reported_with_their_line() {
    for (text, expected) in [
        (format!("{SMALL}polcy = \"lru\"\n"), "t.toml:5: unknown field `polcy`, expected"),
        (format!("{SMALL}polcy = \"lru\"\n"), "; did you mean 'policy'?"),
        (format!("[daemon]\nperiod = 1\n{SMALL}"), "t.toml:2: unknown field `period`"),
        (SMALL.replace("0.5", "1.5"), "t.toml:4: group 'g': fast_ratio = 1.5: expected 0 to 1"),
        (format!("{SMALL}fast = \"1G\"\n"), "t.toml:5: group 'g': expected one of fast_ratio"),
        (format!("{SMALL}policy = \"mru\"\n"), "t.toml:5: group 'g': no policy is named 'mru'"),
        (format!("{SMALL}policy = \"apm\"\n"), "terrace; did you mean 'amp'?"),
        (
            format!("{SMALL}page_size = \"1G\"\n"),
            "t.toml:5: got '1G', expected \"auto\", \"2M\" or",
        ),
        (format!("{SMALL}policy = \"physical-4k\"\n"), "only the simulated machine has"),
        (
            format!("{SMALL}[policies.amp]\nwarmup_periods = 3\nwindow = 3\n"),
            "t.toml:7: policy 'amp': unknown field `window`",
        ),
        (format!("[daemon]\nseed = 2\nperiod_ms = 1\n{SMALL}"), "t.toml:3: daemon.period_ms = 1"),
        (format!("{SMALL}[policies.nosuch]\n"), "no policy is named 'nosuch'"),
        (format!("{SMALL}{SMALL}"), "t.toml:6: two groups are named 'g'"),
        (SMALL.replace("/a", "/a/../b"), "'..'"),
        (SMALL.replace("/a", "a"), "t.toml:3: group 'g': cgroup 'a': expected a path that begins"),
        (SMALL.replace("/a", "/[a"), "/[a"),
        (SMALL.replace("\"g\"", "\"g h\""), "expected a name"),
        ("groups = 3".to_owned(), "t.toml:1: got integer `3`, expected a list"),
        (String::new(), "missing field `groups`"),
        (format!("[sharing]\nfast = \"110%\"\n{SMALL}"), "t.toml:2: expected a size or a part"),
        (format!("[daemon]\nmetrics = \"all\"\n{SMALL}"), "expected an address and a port"),
        (format!("[daemon]\nfast_nodes = [0]\n{SMALL}"), "expected both or none"),
        (format!("[daemon]\ncontrol = \"sock\"\n{SMALL}"), "expected an absolute path"),
    ] {
        let message = refused(&text);
        assert!(message.contains(expected), "{text}\n{message}\n{expected}");
    }
}

#[test]
fn a_missing_or_huge_file_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.toml");
    assert!(Config::read(&path).unwrap_err().to_string().contains("t.toml"));
    std::fs::write(&path, vec![b'#'; MOST_BYTES as usize + 1]).unwrap();
    assert!(Config::read(&path).unwrap_err().to_string().contains("expected at most"));
}

proptest! {
    #[test]
    fn any_damage_is_one_line_or_none(
        cut in 0usize..EXAMPLE.len(),
        flips in prop::collection::vec((0usize..EXAMPLE.len(), any::<u8>()), 0..6),
    ) {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        for (at, byte) in flips { bytes[at] = byte; }
        bytes.truncate(EXAMPLE.len() - cut);
        if let Err(e) = Config::parse(&String::from_utf8_lossy(&bytes), "t.toml") {
            let message = e.to_string();
            prop_assert!(message.starts_with("t.toml") && !message.contains('\n'), "{}", message);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(\\[+|\\]+|groups|name|=|\"|[a-z0-9.]{1,4}|\n| ){0,60}") {
        let _ = Config::parse(&text, "t.toml");
    }
}

#[test]
fn a_policy_of_ones_own_is_read_with_its_file_and_is_another_when_that_changes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("own.py"), "class Own: ...\n").unwrap();
    let name = folder.path().join("terraced.toml").display().to_string();
    let text = format!(
        "{SMALL}policy = \"own\"\n[policies.own]\nkind = \"python\"\nfile = \"own.py\"\n\
         class = \"Own\"\ninterpreter = \"/bin/sh\"\n"
    );
    let settings = |text: &str| {
        let config = Config::parse(text, &name).unwrap();
        config.settings(config.groups[0].get_ref())
    };
    let one = settings(&text);
    assert_eq!(one.external.as_ref().unwrap().source, "class Own: ...\n");
    assert!(one.decides_like(&settings(&text)));
    let longer = text.replace("fast_ratio = 0.5", "fast_ratio = 0.5\nperiod_ms = 2000");
    assert!(!one.decides_like(&settings(&longer)), "another deadline");
    std::fs::write(folder.path().join("own.py"), "class Own: pass\n").unwrap();
    assert!(!one.decides_like(&settings(&text)), "another text");

    let refused = |from: &str, to: &str| {
        let error = Config::parse(&text.replace(from, to), &name).unwrap_err().to_string();
        error.strip_prefix(&name).unwrap_or(&error).to_owned()
    };
    let error = refused("own.py", "none.py");
    assert!(error.starts_with(":8: policy 'own': ") && error.contains("none.py"), "{error}");
    let error = refused("policy = \"own\"", "policy = \"owl\"");
    assert!(error.starts_with(":5: group 'g': no policy is named 'owl'"), "{error}");
    let error = refused("class = \"Own\"", "class = \"Own\"\nfallback = \"lur\"");
    assert!(error.starts_with(":10: ") && error.contains("did you mean 'lru'?"), "{error}");
}
