//! Selects how the guest's processor is emulated. That `/dev/kvm` opens proves nothing: on some
//! hosts guests die or hang under KVM. So the lab starts a test guest under KVM, once per boot of
//! the host, processor, guest kernel and QEMU, and remembers each outcome.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::cache::{Cache, write_whole};
use crate::error::{Doing, LabError};

/// The requested emulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accel {
    /// KVM if a test guest runs under it, else software.
    #[default]
    Auto,
    /// KVM, without a test guest.
    Kvm,
    /// Software emulation (QEMU's TCG).
    Tcg,
}

/// The emulation in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccelChoice {
    /// True for KVM, false for software.
    pub kvm: bool,
    /// The reason for the choice, in one line.
    pub reason: String,
}

impl fmt::Display for AccelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.kvm { "KVM" } else { "software emulation" };
        write!(f, "{name} ({})", self.reason)
    }
}

/// Time within which a guest under KVM must come up; where KVM works a guest takes one second.
pub(crate) const PROBE_BOUND: Duration = Duration::from_secs(8);

/// The conditions under which an outcome of the KVM test holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeKey {
    boot_id: String,
    host_kernel: String,
    cpu_model: String,
    guest_kernel: PathBuf,
    guest_kernel_bytes: u64,
    qemu: PathBuf,
    qemu_changed_s: u64,
}

impl ProbeKey {
    pub fn new(guest_kernel: &Path, qemu: &Path) -> Self {
        let line = |path: &str| {
            std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
        };
        let cpuinfo = line("/proc/cpuinfo");
        let model = cpuinfo.lines().find(|line| line.starts_with("model name")).unwrap_or("");
        let changed = std::fs::metadata(qemu).and_then(|m| m.modified()).ok();
        Self {
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            host_kernel: line("/proc/sys/kernel/osrelease"),
            cpu_model: model.to_owned(),
            guest_kernel: guest_kernel.to_owned(),
            guest_kernel_bytes: std::fs::metadata(guest_kernel).map(|m| m.len()).unwrap_or(0),
            qemu: qemu.to_owned(),
            qemu_changed_s: changed
                .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
                .map_or(0, |since| since.as_secs()),
        }
    }
}

/// Outcome of the KVM test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub key: ProbeKey,
    pub works: bool,
    pub reason: String,
}

fn path(cache: &Cache) -> PathBuf {
    cache.root().join("kvm-verdict.json")
}

/// All remembered outcomes; none where the file cannot be read.
fn all(cache: &Cache) -> Vec<Verdict> {
    let text = std::fs::read_to_string(path(cache)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// The remembered outcome, if there is one that still holds.
pub(crate) fn remembered(cache: &Cache, key: &ProbeKey) -> Option<Verdict> {
    all(cache).into_iter().find(|verdict| verdict.key == *key)
}

/// Remembers an outcome, in place of an older one of the same guest kernel and QEMU. Those of
/// earlier boots of the host are forgotten.
pub(crate) fn remember(cache: &Cache, verdict: &Verdict) -> Result<(), LabError> {
    let mut verdicts = all(cache);
    let key = &verdict.key;
    verdicts.retain(|known| {
        known.key.boot_id == key.boot_id
            && (&known.key.guest_kernel, &known.key.qemu) != (&key.guest_kernel, &key.qemu)
    });
    verdicts.push(verdict.clone());
    let text = serde_json::to_vec_pretty(&verdicts).doing("describe whether KVM works")?;
    write_whole(&path(cache), &text)
}

/// The reason why KVM need not be tested, if there is one.
pub(crate) fn kvm_absent() -> Option<String> {
    let open = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    open.err().map(|e| format!("/dev/kvm: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_holds_only_for_what_it_was_given_on() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let key = ProbeKey::new(Path::new("/proc/self/exe"), Path::new("/bin/sh"));
        assert_eq!(remembered(&cache, &key), None);
        let verdict = Verdict { key: key.clone(), works: false, reason: "it hung".into() };
        remember(&cache, &verdict).unwrap();
        assert_eq!(remembered(&cache, &key), Some(verdict));
        let rebooted = ProbeKey { boot_id: "another".into(), ..key.clone() };
        assert_eq!(remembered(&cache, &rebooted), None);
        // Guests with two kernels take turns, and each is tried once.
        let other = ProbeKey { guest_kernel: "/another/kernel".into(), ..key.clone() };
        let hung = Verdict { key: other.clone(), works: false, reason: "it hung".into() };
        let works = Verdict { works: true, ..hung.clone() };
        for other_verdict in [hung, works] {
            remember(&cache, &other_verdict).unwrap();
            assert_eq!(remembered(&cache, &other), Some(other_verdict));
            assert!(remembered(&cache, &key).is_some());
        }
        let after = Verdict { key: rebooted.clone(), works: false, reason: "it hung".into() };
        remember(&cache, &after).unwrap();
        assert_eq!(all(&cache), [after]);
        std::fs::write(path(&cache), "{ garbage").unwrap();
        assert_eq!(remembered(&cache, &key), None);
    }
}
