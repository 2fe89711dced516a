//! Copies: folders of two hosts with histories of one.
//!
//! A history says which boot of a machine it is of, and which group. Two folders with histories of the
//! same group and boot are of one host, such as one that was renamed, or whose folder was copied. It
//! would count twice, so that one of the folders counts: the first of which every history can be used.
//! Machines that were resumed from one snapshot have one boot, too, and are taken for one.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::host::Host;

/// The hosts that count, and the copies, each with the host that it is a copy of.
pub fn without_copies(hosts: &[Host]) -> (Cow<'_, [Host]>, Vec<(&Host, &Host)>) {
    // Which host has this group; and of each host, which one counts in its place.
    let mut owner: BTreeMap<u64, usize> = BTreeMap::new();
    let mut place: Vec<usize> = (0..hosts.len()).collect();
    let better = |one: usize, other: usize| hosts[one].is_whole() && !hosts[other].is_whole();
    for (number, host) in hosts.iter().enumerate() {
        let before = host.groups.iter().find_map(|group| owner.get(group).copied());
        let mut counts = number;
        if let Some(before) = before {
            if better(number, before) {
                place[before] = number;
            } else {
                (place[number], counts) = (before, before);
            }
        }
        host.groups.iter().for_each(|group| {
            owner.insert(*group, counts);
        });
    }
    let original = |mut number: usize| {
        while place[number] != number {
            number = place[number];
        }
        number
    };
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
}
