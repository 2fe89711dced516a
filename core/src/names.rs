//! Names that are not known: what was expected, and which of it was probably meant.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// A name that lives as long as the program, as those of policies do; each is kept once.
pub fn kept(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name) {
        Some(known) => known,
        None => {
            let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
            names.insert(name);
            name
        }
    }
}

/// The known name that `got` was probably meant to be: the one that takes the fewest changes of a
/// letter, at most one in four and one at least; else the only one that `got` begins, or that
/// begins `got`.
pub fn meant<'a>(got: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (got, known) = (got.to_lowercase(), known.into_iter().collect::<Vec<_>>());
    let allowed = (got.chars().count() / 4).max(1);
    let changes = |name: &&str| strsim::osa_distance(&got, &name.to_lowercase());
    let nearest = known.iter().copied().min_by_key(changes)?;
    if got.chars().count() > 1 && changes(&nearest) <= allowed {
        return Some(nearest);
    }
    let begins = |name: &&&str| {
        let name = name.to_lowercase();
        got.len().min(name.len()) > 2 && (name.starts_with(&got) || got.starts_with(&name))
    };
    let mut alike = known.iter().filter(begins);
    match (alike.next(), alike.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

/// The end of an error about an unknown name: `; did you mean 'amp'?`, or nothing.
pub fn hint<'a>(got: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    meant(got, known).map_or_else(String::new, |name| format!("; did you mean '{name}'?"))
}

/// What was expected in place of an unknown name: `one of lru, amp; did you mean 'amp'?`.
pub fn expected<'a>(got: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    format!("one of {}{}", known.join(", "), hint(got, known.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_keyboard_is_recognised_and_another_word_is_not() {
        let known = ["first-touch", "lru", "lfu", "amp", "granularity", "granularity-4k"];
        for (got, expected) in [
            ("apm", Some("amp")),
            ("AMP", Some("amp")),
            ("lur", Some("lru")),
            ("first_touch", Some("first-touch")),
            ("firsttouch", Some("first-touch")),
            ("granularty", Some("granularity")),
            ("granularity-4K", Some("granularity-4k")),
            ("first", Some("first-touch")),
            ("mglru", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(meant(got, known), expected, "{got}");
        }
        assert_eq!(meant("anything", []), None);
        assert_eq!(expected("lur", ["amp", "lru"]), "one of amp, lru; did you mean 'lru'?");
        assert_eq!(expected("mru2", ["amp", "lfu"]), "one of amp, lfu");
    }
}
