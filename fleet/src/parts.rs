//! Hosts that another process reads, on this machine or elsewhere: which to read, and what it sends back.
//!
//! A host goes out as an [`Address`] and comes back as bytes; [`crate::answer::join`] answers from all of
//! them, in the order of the addresses, as if they had been read here.

use serde::{Deserialize, Serialize};
use terrace_core::{InputError, refuse};
use terrace_stores::Stores;

use crate::file::Fleet;
use crate::folders::{HostFolder, Place};
use crate::host::{Host, HostReader, LeftOut};

/// Where a host's histories are, for a process that has the fleet file's text and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Position of its class.
    pub class: usize,
    /// Its name.
    pub name: String,
    /// Its folder: a path, absolute where the fleet's own is, or one of an object store.
    pub place: String,
}

impl Address {
    /// Where this host is.
    pub fn of(folder: &HostFolder) -> Self {
        let (class, name) = (folder.class, folder.name.clone());
        Address { class, name, place: folder.place.to_string() }
    }

    /// The host in place of one that could not be read at all: all of it is left out, for this reason.
    pub fn given_up(&self, reason: &str) -> Host {
        let left_out = LeftOut::missing(self.place.clone(), InputError::new(reason).0);
        Host {
            class: self.class,
            name: self.name.clone(),
            groups: Vec::new(),
            services: Vec::new(),
            pairs: Vec::new(),
            left_out: vec![left_out],
        }
    }
}

/// Reads hosts, one after the other.
///
/// # Errors
/// An address of another fleet, and a store that cannot be opened. What cannot be used of a host is
/// named in it, and is no error.
pub fn read(fleet: &Fleet, addresses: &[Address]) -> Result<Vec<Host>, InputError> {
    let reader = HostReader::new(fleet)?;
    let mut stores = Stores::new(&fleet.folder);
    let host = |address: &Address| {
        let Address { class, name, place } = address;
        if *class >= fleet.classes.len() {
            return Err(refuse!(
                "{place}: class {class}, expected one of the {} of the fleet",
                fleet.classes.len()
            ));
        }
        let place = Place::open(&mut stores, place).map_err(|e| refuse!("{place}: {e}"))?;
        Ok(reader.read(&HostFolder { class: *class, name: name.clone(), place }))
    };
    addresses.iter().map(host).collect()
}

/// A host as bytes: numbers stay what they are to the last digit.
///
/// # Errors
/// None of hosts that were read.
pub fn to_bytes(host: &Host) -> Result<Vec<u8>, InputError> {
    postcard::to_stdvec(host).map_err(|e| refuse!("host {}: {e}", host.name))
}

/// The host of such bytes.
///
/// # Errors
/// Bytes that are no host, or not only that.
pub fn from_bytes(bytes: &[u8]) -> Result<Host, InputError> {
    let error = |e: &str| {
        refuse!(
            "{} bytes: {e}; expected a host as the same version of Terrace reads it",
            bytes.len()
        )
    };
    match postcard::take_from_bytes(bytes).map_err(|e| error(&e.to_string()))? {
        (host, []) => Ok(host),
        (_, rest) => Err(error(&format!("{} bytes too many", rest.len()))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::answer::{answer, join};
    use crate::folders::hosts;
    use crate::synthetic::Shape;

    fn fleet(folder: &Path) -> Fleet {
        Shape { hosts: 9, services: 6, seed: 3 }.write(folder, &[250.0]).unwrap();
        std::fs::write(folder.join(Shape::host_name(4)).join("bad.trec"), "no history").unwrap();
        Fleet::read(&folder.join("fleet.toml")).unwrap()
    }

    #[test]
    fn hosts_that_go_through_bytes_give_the_same_answer() {
        let place = tempfile::tempdir().unwrap();
        let fleet = fleet(place.path());
        let here = answer(&fleet, 1, &mut |_, _| {}).unwrap();
        let addresses: Vec<Address> = hosts(&fleet).unwrap().iter().map(Address::of).collect();
        let mut parts = Vec::new();
        for address in &addresses {
            let read = read(&fleet, std::slice::from_ref(address)).unwrap();
            parts.push(from_bytes(&to_bytes(&read[0]).unwrap()).unwrap());
        }
        assert_eq!(join(&fleet, &parts, 1).unwrap(), here);
        assert_eq!(here.hosts_left_out, 1);
        // One that could not be read is left out with its reason, and the rest is used.
        parts[0] = addresses[0].given_up("its worker\ndied");
        let without = join(&fleet, &parts, 1).unwrap();
        assert_eq!((without.hosts_found, without.hosts_left_out), (9, 2));
        assert_eq!(without.left_out[0].path, addresses[0].place);
        assert!(!without.left_out[0].reason.contains('\n'), "{:?}", without.left_out[0]);
    }

    #[test]
    fn addresses_of_another_fleet_and_bytes_that_are_no_host_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let fleet = fleet(place.path());
        let of_class =
            |class, place: &str| Address { class, name: "h".into(), place: place.into() };
        let error = |address: Address| read(&fleet, &[address]).unwrap_err().0;
        assert!(error(of_class(7, "/x")).contains("class 7, expected one of the 3"));
        assert!(error(of_class(0, "gs://b/x")).contains("expected a path of this host"));
        let bytes = to_bytes(&of_class(0, "/x").given_up("died")).unwrap();
        assert!(from_bytes(&bytes[..bytes.len() - 1]).is_err());
        assert!(
            from_bytes(&[&bytes[..], b"x"].concat()).unwrap_err().0.contains("1 bytes too many")
        );
    }
}
