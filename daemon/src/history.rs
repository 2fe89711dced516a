//! The last 64 scans of a group: a new policy is trained with them, and they are kept on disk over
//! a restart.
//!
//! Two bits a page and scan. A policy that is replaced is fed these scans; policies keep nothing
//! else of the past that matters for long. On disk they are a period recording (which `terrace
//! info` and `terrace replay` read too) named for the control group. Its header has the boot and
//! the processes: addresses are valid only in the same processes.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::discover;
use terrace_core::hotness::HISTORY_PERIODS;
use terrace_core::page::PageSize;
use terrace_core::policy::Policy;
use terrace_core::scan::{Budget, Scan};
use terrace_recordings::period::{GroupHeader, HISTORY, Header, PeriodReader, Record};

/// The last scans of a group.
#[derive(Debug, Clone, Default)]
pub struct History {
    scans: VecDeque<(Scan, Budget)>,
}

/// The group and the processes of the scans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The control group.
    pub cgroup: String,
    /// The boot (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// Process identifiers and start times, of those that have pages in the scans.
    pub processes: Vec<(u32, u64)>,
    /// Length of a period.
    pub period_ms: u64,
}

impl History {
    /// Adds a scan and the budget of its plan.
    pub fn push(&mut self, scan: &Scan, budget: Budget) {
        if self.scans.len() == HISTORY_PERIODS {
            self.scans.pop_front();
        }
        self.scans.push_back((scan.clone(), budget));
    }

    /// Number of scans.
    pub fn len(&self) -> usize {
        self.scans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.scans.is_empty()
    }

    /// The scans, the oldest first.
    pub fn scans(&self) -> impl Iterator<Item = &Scan> {
        self.scans.iter().map(|(scan, _)| scan)
    }

    /// Removes all scans: those of pages of another size are of no value.
    pub fn clear(&mut self) {
        self.scans.clear();
    }

    /// Feeds the scans to a new policy; its plans are dropped.
    pub fn teach(&self, policy: &mut dyn Policy) {
        for (scan, budget) in &self.scans {
            policy.decide(scan, budget);
        }
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        self.scans().map(|s| s.accessed.size_bytes() + s.fast.size_bytes()).sum()
    }

    /// Writes the scans to a file of the folder, as a whole or not at all.
    pub fn save(&self, folder: &Path, who: &Identity) -> Result<(), String> {
        let Some((last, _)) = self.scans.back() else { return Ok(()) };
        let path = file(folder, &who.cgroup);
        let error = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        std::fs::create_dir_all(folder).map_err(|e| error(&e))?;
        let header = Header {
            created_by: terrace_identity::created_by("terraced"),
            experiment: format!("{HISTORY}\n{}\n{}", who.boot, text_of(&who.processes)),
            machine: "host".to_owned(),
            kernel: String::new(),
            period_ms: who.period_ms,
            seed: 0,
            leaves_out_unmovable: false,
            groups: vec![GroupHeader {
                name: who.cgroup.clone(),
                policy: "none".to_owned(),
                parameters: serde_json::Value::Null,
                policy_seed: 0,
                page_size: last.layout.page_size(),
                fast_share: 0.0,
            }],
        };
        let mut writer = terrace_recordings::period::PeriodWriter::create(&path, header)
            .map_err(|e| error(&e))?;
        for (number, (scan, budget)) in self.scans.iter().enumerate() {
            // Numbers of several runs may decrease: the file has its own.
            let scan = Scan { period: number as u64, ..scan.clone() };
            writer.scan(0, &scan).map_err(|e| error(&e))?;
            writer.budget(0, scan.period, budget).map_err(|e| error(&e))?;
        }
        writer.publish().map_err(|e| error(&e))?;
        Ok(())
    }

    /// Reads the scans of a group back. `Ok(None)` if there are no valid ones: no file, another
    /// boot, other processes, another page size or period.
    pub fn load(
        folder: &Path,
        who: &Identity,
        page_size: PageSize,
    ) -> Result<Option<Self>, String> {
        let path = file(folder, &who.cgroup);
        if !path.exists() {
            return Ok(None);
        }
        let error = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let reader = PeriodReader::open(&path).map_err(|e| error(&e))?;
        let header = reader.header();
        let mut lines = header.experiment.lines();
        let same = lines.next() == Some(HISTORY)
            && lines.next() == Some(who.boot.as_str())
            && header.period_ms == who.period_ms
            && header.groups.len() == 1
            && header.groups[0].name == who.cgroup
            && header.groups[0].page_size == page_size;
        // The first scan drops pages of processes that have ended; a process that reuses an
        // identifier would get another's history.
        let known = lines.next().and_then(processes_of).unwrap_or_default();
        let alive = |p: &(u32, u64)| who.processes.contains(p);
        let stranger =
            |p: &(u32, u64)| !alive(p) && who.processes.iter().any(|other| other.0 == p.0);
        if !same || !known.iter().any(alive) || known.iter().any(stranger) {
            return Ok(None);
        }
        let mut history = History::default();
        for record in reader.records() {
            if let Record::Period(period) = record.map_err(|e| error(&e))? {
                let pages = period.scan.pages() as u64;
                history.push(&period.scan, period.budget.unwrap_or(Budget::fast(pages)));
            }
        }
        Ok(Some(history))
    }

    /// Removes the stored scans of a group.
    pub fn forget(folder: &Path, cgroup: &str) {
        let _ = std::fs::remove_file(file(folder, cgroup));
    }

    /// Removes the stored scans that are not valid any more: those of another boot, and those of groups
    /// that are not in this list. Files that are no histories stay. Returns how many were removed.
    pub fn sweep(folder: &Path, boot: &str, groups: &[String]) -> usize {
        let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
        let is_stale = |path: &PathBuf| {
            let Ok(reader) = PeriodReader::open(path) else { return false };
            let header = reader.header();
            let mut lines = header.experiment.lines();
            let [group] = &header.groups[..] else { return false };
            lines.next() == Some(HISTORY)
                && *path == file(folder, &group.name)
                && (lines.next() != Some(boot) || !groups.contains(&group.name))
        };
        let paths = entries.flatten().map(|entry| entry.path()).filter(is_stale);
        paths.filter(|path| std::fs::remove_file(path).is_ok()).count()
    }
}

/// The file of a control group: its name is made of the bytes of the path, so that no path can lead
/// elsewhere and no two share a file.
fn file(folder: &Path, cgroup: &str) -> PathBuf {
    let hash = discover::hash(cgroup);
    let plain: String = cgroup
        .chars()
        .rev()
        .take_while(|c| *c != '/')
        .filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c))
        .take(40)
        .collect();
    let plain: String = plain.chars().rev().collect();
    folder.join(format!("{plain}-{hash:016x}.trec"))
}

fn text_of(processes: &[(u32, u64)]) -> String {
    processes.iter().map(|(pid, start)| format!("{pid}:{start}")).collect::<Vec<_>>().join(" ")
}

fn processes_of(text: &str) -> Option<Vec<(u32, u64)>> {
    text.split_whitespace()
        .map(|word| {
            let (pid, start) = word.split_once(':')?;
            Some((pid.parse().ok()?, start.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use terrace_core::bits::PageBits;
    use terrace_core::page::{Extent, Layout, SpaceId};

    fn scan(period: u64, pages: u64) -> Scan {
        let extents = vec![Extent { space: SpaceId(7), start: 0, pages }];
        let layout = Arc::new(Layout::new(PageSize::Huge, extents).unwrap());
        let accessed = (0..pages).map(|p| (p + period).is_multiple_of(3)).collect::<PageBits>();
        Scan::new(period, layout, accessed, PageBits::new(pages as usize))
    }

    fn history(periods: u64) -> History {
        let mut history = History::default();
        (0..periods).for_each(|p| history.push(&scan(p, 8), Budget::fast(3)));
        history
    }

    fn who() -> Identity {
        Identity {
            cgroup: "/a/b.service".into(),
            boot: "boot".into(),
            processes: vec![(7, 70), (8, 80)],
            period_ms: 100,
        }
    }

    #[test]
    fn a_history_that_was_saved_teaches_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let saved = history(100);
        assert_eq!(saved.len(), 64);
        saved.save(folder.path(), &who()).unwrap();
        let loaded = History::load(folder.path(), &who(), PageSize::Huge).unwrap().unwrap();
        let decide = |history: &History| {
            let mut policy =
                terrace_core::policy::build("lfu", &serde_json::Value::Null, 1).unwrap();
            history.teach(policy.as_mut());
            policy.decide(&scan(100, 8), &Budget::fast(3))
        };
        assert_eq!(decide(&loaded), decide(&saved));
        assert!(!decide(&loaded).plan.is_empty());
    }

    #[test]
    fn a_history_of_other_times_or_processes_is_no_history() {
        let folder = tempfile::tempdir().unwrap();
        history(5).save(folder.path(), &who()).unwrap();
        let load =
            |who: &Identity, size| History::load(folder.path(), who, size).unwrap().is_some();
        assert!(load(&who(), PageSize::Huge));
        assert!(!load(&who(), PageSize::Base));
        assert!(!load(&Identity { boot: "later".into(), ..who() }, PageSize::Huge));
        assert!(!load(&Identity { period_ms: 200, ..who() }, PageSize::Huge));
        assert!(!load(&Identity { cgroup: "/a/c.service".into(), ..who() }, PageSize::Huge));
        // One of two has ended: the other's history is valid. Another process has its identifier:
        // none is.
        let one = Identity { processes: vec![(7, 70)], ..who() };
        assert!(load(&one, PageSize::Huge));
        let stranger = Identity { processes: vec![(7, 70), (8, 81)], ..who() };
        assert!(!load(&stranger, PageSize::Huge));
        History::forget(folder.path(), "/a/b.service");
        assert!(!load(&who(), PageSize::Huge));
    }

    #[test]
    fn damaged_state_is_an_error_with_its_file_and_never_more() {
        let folder = tempfile::tempdir().unwrap();
        history(20).save(folder.path(), &who()).unwrap();
        let path = file(folder.path(), "/a/b.service");
        let whole = std::fs::read(&path).unwrap();
        for cut in (0..whole.len()).step_by(7) {
            std::fs::write(&path, &whole[..cut]).unwrap();
            if let Err(e) = History::load(folder.path(), &who(), PageSize::Huge) {
                assert!(e.contains(".trec"), "{e}");
            }
        }
        for at in (0..whole.len()).step_by(5) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x41;
            std::fs::write(&path, &bytes).unwrap();
            let _ = History::load(folder.path(), &who(), PageSize::Huge);
        }
    }

    #[test]
    fn no_path_of_a_group_leads_out_of_the_folder() {
        for cgroup in ["/../../etc/passwd", "/a/..", "/", "/\u{1b}x", "//"] {
            let path = file(Path::new("/state"), cgroup);
            assert_eq!(path.parent(), Some(Path::new("/state")), "{path:?}");
        }
    }
}
