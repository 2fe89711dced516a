//! Copies: folders of two hosts with the histories of one.
//!
//! A boot of a machine has an identifier that no other has, and a history says which boot it is of. Two
//! folders whose histories are of the same boot are of one host, such as one whose folder was copied,
//! or listed under an old name too. It would count twice, so that the first folder counts alone.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::host::{Host, LeftOut};

/// The hosts, with nothing used of those that are copies of earlier ones.
pub fn without_copies(hosts: &[Host]) -> Cow<'_, [Host]> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut copies = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        let Some(boot) = &host.boot else { continue };
        match first.get(boot.as_str()) {
            Some(original) => copies.push((number, (*original).to_owned())),
            None => {
                first.insert(boot, &host.name);
            }
        }
    }
    if copies.is_empty() {
        return Cow::Borrowed(hosts);
    }
    let mut all = hosts.to_vec();
    for (number, original) in copies {
        let host = &mut all[number];
        let reason = format!(
            "of the same boot as the histories of {original}: a copy of them; expected one folder \
             for each host"
        );
        host.services.clear();
        host.pairs.clear();
        host.left_out = vec![LeftOut::missing(host.name.clone(), reason)];
    }
    Cow::Owned(all)
}
