//! Which histories of a host are of the boot that it was saved in, where there are several boots.
//!
//! A group that ended leaves its history in terraced's folder. After a restart of the host such a file
//! is of another boot than those of the groups that run, and its group has no part in what the host
//! needs. terraced writes the histories of all groups together, so that the file that was written last
//! is of the boot that counts. A copy whose files all have the time of copying does not show that.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// How far apart the last files of two boots are at least: terraced saves once a minute, and first a
/// minute after it began.
const APART: Duration = Duration::from_secs(60);

/// A history: the boot that it is of, and when its file was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Identifier of the boot.
    pub boot: String,
    /// Time of its file, where the store knows it.
    pub modified: Option<SystemTime>,
}

/// What the boots of a host's histories show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boots {
    /// All are of one boot, or there are none.
    One,
    /// Those of this boot count, and the others are of earlier ones.
    Newest(String),
    /// Of so many boots, and times do not show which is the newest.
    Unknown(usize),
}

impl Boots {
    /// Of these histories.
    pub fn of<'a>(all: impl Iterator<Item = &'a Saved> + Clone) -> Self {
        let boots: BTreeSet<&str> = all.clone().map(|saved| saved.boot.as_str()).collect();
        if boots.len() < 2 {
            return Boots::One;
        }
        let last = |boot: &str| all.clone().filter(|s| s.boot == boot).map(|s| s.modified).max();
        let times = boots.iter().map(|boot| Some((last(boot)??, *boot)));
        let Some(mut times) = times.collect::<Option<Vec<(SystemTime, &str)>>>() else {
            return Boots::Unknown(boots.len());
        };
        times.sort();
        let (newest, before) = (times[times.len() - 1], times[times.len() - 2]);
        match newest.0.duration_since(before.0) {
            Ok(apart) if apart >= APART => Boots::Newest(newest.1.to_owned()),
            _ => Boots::Unknown(boots.len()),
        }
    }

    /// Why a history of this boot is left out; `None` where it counts.
    pub fn reason(&self, boot: &str) -> Option<String> {
        match self {
            Boots::One => None,
            Boots::Newest(newest) if newest == boot => None,
            Boots::Newest(_) => Some(EARLIER.to_owned()),
            Boots::Unknown(boots) => Some(format!(
                "one of {boots} boots, and the times of the files do not show which is the last; \
                 expected copies that keep the times (cp -p, rsync -t), or histories of one boot"
            )),
        }
    }
}

/// Why a history of a boot before the last is left out.
pub const EARLIER: &str = "of an earlier boot of the host: its group is not one of those that run";

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(boot: &str, seconds: Option<u64>) -> Saved {
        let modified = seconds.map(|s| SystemTime::UNIX_EPOCH + Duration::from_secs(s));
        Saved { boot: boot.to_owned(), modified }
    }

    #[test]
    fn the_boot_that_was_saved_last_counts_where_times_show_it() {
        let boots = |all: &[Saved]| Boots::of(all.iter());
        assert_eq!(boots(&[]), Boots::One);
        assert_eq!(boots(&[saved("a", Some(5)), saved("a", None)]), Boots::One);
        let two = [saved("b", Some(1000)), saved("a", Some(2000)), saved("a", Some(5))];
        assert_eq!(boots(&two), Boots::Newest("a".to_owned()));
        assert_eq!(boots(&two).reason("a"), None);
        assert!(boots(&two).reason("b").unwrap().contains("earlier boot"));
        // Copied at once, or times that nobody knows.
        let copied = [saved("b", Some(1000)), saved("a", Some(1001))];
        assert_eq!(boots(&copied), Boots::Unknown(2));
        assert!(boots(&copied).reason("a").unwrap().contains("cp -p"));
        assert_eq!(boots(&[saved("b", Some(1)), saved("a", None)]), Boots::Unknown(2));
    }
}
