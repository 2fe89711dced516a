//! Copies: folders of two hosts with histories of one.
//!
//! A history says which boot of a machine it is of, and which group. Two folders with histories of the
//! same group and boot are of one host, such as one that was renamed, or whose folder was copied. It
//! would count twice, so that one of the folders counts: the first of which every history can be used.
//! A folder that has groups of several others joins them: all of them are of one host.
//! Machines that were resumed from one snapshot have one boot, too, and are taken for one.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::host::Host;

/// The hosts that count, and the copies, each with the host that it is a copy of.
pub fn without_copies(hosts: &[Host]) -> (Cow<'_, [Host]>, Vec<(&Host, &Host)>) {
    // Which host had this group first; and of each host, which one counts in its place.
    let mut owner: BTreeMap<u64, usize> = BTreeMap::new();
    let mut place: Vec<usize> = (0..hosts.len()).collect();
    for (number, host) in hosts.iter().enumerate() {
        for group in &host.groups {
            let first = *owner.entry(*group).or_insert(number);
            let [one, other] = [first, number].map(|number| original(&place, number));
            if one != other {
                let (earlier, later) = (one.min(other), one.max(other));
                let better = hosts[later].is_whole() && !hosts[earlier].is_whole();
                let (counts, copy) = if better { (later, earlier) } else { (earlier, later) };
                place[copy] = counts;
            }
        }
    }
    let original = |number: usize| original(&place, number);
    let all = 0..hosts.len();
    let copies = all.clone().filter(|number| original(*number) != *number);
    let copies: Vec<_> = copies.map(|copy| (&hosts[copy], &hosts[original(copy)])).collect();
    let kept = match copies.is_empty() {
        true => Cow::Borrowed(hosts),
        false => {
            all.filter(|number| original(*number) == *number).map(|n| hosts[n].clone()).collect()
        }
    };
    (kept, copies)
}

/// The host that counts in the place of this one.
fn original(place: &[usize], mut number: usize) -> usize {
    while place[number] != number {
        number = place[number];
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{LeftOut, ServiceOnHost};

    fn host(name: &str, groups: &[u64], is_whole: bool) -> Host {
        let service = ServiceOnHost {
            service: "s".to_owned(),
            target: 1.1,
            groups: 1,
            footprint_bytes: 1.0,
            needs: Vec::new(),
        };
        let lost = || LeftOut::missing("x".to_owned(), "damaged".to_owned());
        Host {
            class: 0,
            name: name.to_owned(),
            groups: groups.to_vec(),
            services: vec![service],
            pairs: Vec::new(),
            left_out: if is_whole { Vec::new() } else { vec![lost()] },
        }
    }

    #[test]
    fn of_folders_of_one_host_one_counts_and_best_one_that_is_whole() {
        let hosts = [
            host("cut-off", &[1], false),
            host("a", &[1, 2], true),
            host("older-a", &[2, 3], true),
            host("b", &[4], false),
            host("b-again", &[4], false),
            host("c", &[5], true),
            host("unknown", &[], true),
            host("also-unknown", &[], true),
        ];
        let (kept, copies) = without_copies(&hosts);
        let names: Vec<&str> = kept.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "unknown", "also-unknown"]);
        let copies: Vec<(&str, &str)> =
            copies.iter().map(|(copy, of)| (copy.name.as_str(), of.name.as_str())).collect();
        assert_eq!(copies, [("cut-off", "a"), ("older-a", "a"), ("b-again", "b")]);
    }

    #[test]
    fn folders_that_a_third_shows_to_be_of_one_host_count_once() {
        let kept = |hosts: &[Host]| -> Vec<String> {
            without_copies(hosts).0.iter().map(|host| host.name.clone()).collect()
        };
        let joined = |last: bool| {
            [host("a", &[1], true), host("b", &[2], true), host("both", &[1, 2], last)]
        };
        assert_eq!(kept(&joined(true)), ["a"]);
        assert_eq!(kept(&joined(false)), ["a"]);
        let taken_over =
            [host("cut-off", &[1, 2], false), host("b", &[2], true), host("c", &[1, 2], true)];
        assert_eq!(kept(&taken_over), ["b"]);
    }
}
