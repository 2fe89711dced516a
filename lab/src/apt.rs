//! Finds and fetches Debian's packages: by the host's apt, or, for a suite that the host does not
//! use, by the same programs with a separate configuration. The separate configuration keeps its
//! sources list, lists and archives in the cache and runs none of the host's hooks, so the host's
//! state is not changed. The mirror is the one in the host's sources.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::cache::{Cache, lock, write_whole};
use crate::error::{Doing, LabError};

/// Package lists older than this are updated before a fetch.
const LISTS_MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// Package lists older than this are updated when a package that they name cannot be fetched.
const LISTS_RETRY_AGE: Duration = Duration::from_secs(3600);

/// A file whose time of change is that of the lists.
const UPDATED: &str = "updated";

/// Debian's keys, of the package `debian-archive-keyring`. Where the package is not installed, the
/// keys that the host's apt trusts are used.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A suite of Debian other than the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
    /// Newer packages for Debian 13, on top of it.
    TrixieBackports,
    /// Newer packages for Debian 12, on top of it.
    BookwormBackports,
}

impl Suite {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Trixie, Self::TrixieBackports, Self::BookwormBackports, Self::Bookworm];

    /// Its name on a mirror.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::TrixieBackports => "trixie-backports",
            Self::BookwormBackports => "bookworm-backports",
        }
    }

    /// The release whose libraries its packages are built for.
    #[must_use]
    pub fn release(self) -> &'static str {
        match self {
            Self::Trixie | Self::TrixieBackports => "trixie",
            Self::Bookworm | Self::BookwormBackports => "bookworm",
        }
    }

    /// The suite of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }

    /// The suites that apt may take packages from: this one, and the release it builds on.
    fn sources(self) -> Vec<&'static str> {
        let mut names = vec![self.name(), self.release()];
        names.dedup();
        names
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Debian's programs for packages, as the host has them configured or for one suite.
#[derive(Debug, Clone)]
pub(crate) struct Apt {
    suite: Option<(Suite, PathBuf)>,
}

impl Apt {
    /// For the host's suite, or for the given one with its state in the cache.
    pub(crate) fn new(cache: &Cache, suite: Option<Suite>) -> Self {
        let directory = |suite: Suite| cache.root().join("suites").join(suite.name()).join("apt");
        Self { suite: suite.map(|suite| (suite, directory(suite))) }
    }

    /// What to do when apt does not have something.
    pub(crate) fn remedy(&self) -> String {
        match &self.suite {
            None => "run `apt-get update`, check the network and that Debian's sources list has \
                     it (bookworm, main and security)"
                .to_owned(),
            Some((suite, _)) => format!(
                "check the network and that the Debian mirror of the host's apt sources has the \
                 suite {suite}"
            ),
        }
    }

    /// Fetches a package into a directory as a `.deb` file.
    pub(crate) fn download(
        &self,
        name: &str,
        into: &Path,
        say: &mut dyn FnMut(String),
    ) -> Result<(), LabError> {
        let mut download = |max_age| {
            let mut apt = self.command("apt-get", name, max_age, say)?;
            apt.args(["download", "--quiet", name]).current_dir(into);
            run(apt, name, &self.remedy()).map(|_| ())
        };
        match (download(LISTS_MAX_AGE), &self.suite) {
            // The mirror may have replaced the version that the lists name.
            (Err(_), Some((_, directory))) if !younger(directory, LISTS_RETRY_AGE) => {
                download(LISTS_RETRY_AGE)
            }
            (result, _) => result,
        }
    }

    /// The names of packages that match a regular expression.
    pub(crate) fn search(
        &self,
        pattern: &str,
        say: &mut dyn FnMut(String),
    ) -> Result<Vec<String>, LabError> {
        let mut apt = self.command("apt-cache", pattern, LISTS_MAX_AGE, say)?;
        apt.args(["search", "--names-only", pattern]);
        let text = run(apt, pattern, &self.remedy())?;
        Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
    }

    /// The version of a package that would be fetched, if there is one.
    pub(crate) fn candidate(
        &self,
        name: &str,
        say: &mut dyn FnMut(String),
    ) -> Result<Option<String>, LabError> {
        let mut apt = self.command("apt-cache", name, LISTS_MAX_AGE, say)?;
        apt.args(["show", "--no-all-versions", name]);
        // It fails for a package that is in no list.
        let Ok(text) = run(apt, name, &self.remedy()) else { return Ok(None) };
        Ok(text.lines().find_map(|line| line.strip_prefix("Version: ")).map(str::to_owned))
    }

    /// A program of apt, with package lists present.
    fn command(
        &self,
        program: &str,
        package: &str,
        max_age: Duration,
        say: &mut dyn FnMut(String),
    ) -> Result<Command, LabError> {
        let mut command = Command::new(program);
        if let Some((suite, directory)) = &self.suite {
            let configuration = self.ready(*suite, (directory, max_age), package, say)?;
            // After the host's configuration, whose proxies and limits apply.
            command.arg("-c").arg(configuration);
        }
        Ok(command)
    }

    /// Makes the configuration of a suite, and its lists unless they are fresh.
    fn ready(
        &self,
        suite: Suite,
        (directory, max_age): (&Path, Duration),
        package: &str,
        say: &mut dyn FnMut(String),
    ) -> Result<PathBuf, LabError> {
        for part in ["sources.list.d", "lists/partial", "cache/archives/partial", "state"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).doing(format!("make {}", path.display()))?;
        }
        let _lock = lock(&directory.join("lock"))?;
        let configuration = directory.join("apt.conf");
        let updated = directory.join(UPDATED);
        if younger(directory, max_age) && configuration.is_file() {
            return Ok(configuration);
        }
        let mirror = mirror(package)?;
        let keyring = Path::new(KEYRING).is_file().then_some(KEYRING);
        let sources = directory.join("sources.list.d/terrace.sources");
        write_whole(&sources, sources_list(suite, &mirror, keyring).as_bytes())?;
        write_whole(&directory.join("status"), b"")?;
        write_whole(&configuration, apt_configuration(suite, directory)?.as_bytes())?;
        say(format!("fetching the list of packages of {suite}"));
        let mut update = Command::new("apt-get");
        update.arg("-c").arg(&configuration).args(["update", "--quiet", "--error-on=any"]);
        let names = format!("lists of {suite}");
        match run(update, &names, &self.remedy()) {
            Ok(_) => write_whole(&updated, b"")?,
            // Without a network the older lists are used.
            Err(error) if updated.is_file() => say(format!("{error}; older lists are used")),
            Err(error) => return Err(error),
        }
        Ok(configuration)
    }
}

/// Whether the lists of a suite are younger than `age`.
fn younger(directory: &Path, age: Duration) -> bool {
    let updated = fs::metadata(directory.join(UPDATED)).and_then(|file| file.modified());
    updated.is_ok_and(|then| SystemTime::now().duration_since(then).is_ok_and(|is| is < age))
}

/// The mirror from which the host fetches Debian's packages.
fn mirror(package: &str) -> Result<String, LabError> {
    let mut apt = Command::new("apt-get");
    // Any target that exists for every suite serves.
    apt.args(["indextargets", "--format", "$(ORIGIN)\t$(LABEL)\t$(SITE)", "Created-By: Packages"]);
    let remedy = "name a Debian mirror in the host's apt sources and run `apt-get update`";
    let text = run(apt, package, remedy)?;
    debian_mirror(&text).ok_or_else(|| LabError::Package {
        package: package.to_owned(),
        reason: "the host's apt sources name no Debian mirror whose lists were fetched".to_owned(),
        remedy: remedy.to_owned(),
    })
}

/// Security updates come from a separate site with another label.
fn debian_mirror(targets: &str) -> Option<String> {
    targets.lines().find_map(|line| line.strip_prefix("Debian\tDebian\t")).map(str::to_owned)
}

fn sources_list(suite: Suite, mirror: &str, keyring: Option<&str>) -> String {
    let mut text = format!(
        "Types: deb\nURIs: {mirror}\nSuites: {}\nComponents: main\nArchitectures: amd64\n\
         Targets: Packages\n",
        suite.sources().join(" ")
    );
    if let Some(keyring) = keyring {
        text += &format!("Signed-By: {keyring}\n");
    }
    text
}

/// What differs from the host's own configuration, which apt reads first.
fn apt_configuration(suite: Suite, directory: &Path) -> Result<String, LabError> {
    let at = directory.to_str().filter(|at| !at.contains(['"', '\n'])).ok_or_else(|| {
        LabError::Invalid {
            what: "the cache directory",
            got: format!("{directory:?}"),
            expected: "a path in UTF-8 without quotes and line breaks, which apt reads".to_owned(),
        }
    })?;
    let name = suite.name();
    Ok(format!(
        r#"// Hooks of the host clear its own caches and tell its own services.
#clear APT::Update;
#clear APT::Default-Release;
APT::Default-Release "{name}";
APT::Architecture "amd64";
#clear APT::Architectures;
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "{at}/sources.list.d";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "{at}/state";
Dir::State::Lists "{at}/lists";
Dir::State::status "{at}/status";
Dir::Cache "{at}/cache";
Dir::Cache::archives "{at}/cache/archives";
"#
    ))
}

/// Runs a program of Debian and returns its output; on failure the error has its last line of
/// errors.
pub(crate) fn run(mut command: Command, package: &str, remedy: &str) -> Result<String, LabError> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => failed(
            package,
            format!("this host has no {name}"),
            "use Debian or Ubuntu, or give paths of a kernel and programs instead of packages",
        ),
        _ => failed(package, format!("{name}: {e}"), remedy),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let reason = errors
        .lines()
        .find(|line| line.starts_with("E:") || line.contains("error"))
        .or_else(|| errors.lines().last())
        .unwrap_or("no reason given");
    Err(failed(package, format!("{name} failed ({reason})"), remedy))
}

pub(crate) fn failed(package: &str, reason: impl Into<String>, remedy: &str) -> LabError {
    LabError::Package {
        package: package.to_owned(),
        reason: reason.into(),
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_named_as_on_a_mirror() {
        for suite in Suite::ALL {
            assert_eq!(Suite::named(suite.name()), Some(suite));
        }
        assert_eq!(Suite::named("sid"), None);
        assert_eq!(Suite::Trixie.sources(), ["trixie"]);
        assert_eq!(Suite::BookwormBackports.sources(), ["bookworm-backports", "bookworm"]);
    }

    #[test]
    fn the_mirror_is_the_one_of_debian_itself() {
        let targets = "Other\tDebian\thttp://a.example/x\n\
                       Debian\tDebian-Security\thttp://b.example/security\n\
                       Debian\tDebian\thttp://c.example/debian\n\
                       Debian\tDebian\thttp://d.example/debian\n";
        assert_eq!(debian_mirror(targets).as_deref(), Some("http://c.example/debian"));
        // As apt writes it while it has no lists.
        assert_eq!(debian_mirror("$(ORIGIN)\t$(LABEL)\thttp://c.example/debian\n"), None);
    }

    #[test]
    fn a_suite_is_asked_for_with_the_hosts_keys_and_nothing_but_packages() {
        let text = sources_list(Suite::TrixieBackports, "http://c.example/debian", Some("/k.gpg"));
        assert!(text.contains("URIs: http://c.example/debian\n"), "{text}");
        assert!(text.contains("Suites: trixie-backports trixie\n"), "{text}");
        assert!(text.contains("Targets: Packages\n"), "{text}");
        assert!(text.ends_with("Signed-By: /k.gpg\n"), "{text}");
        let text = sources_list(Suite::Trixie, "http://c.example/debian", None);
        assert!(!text.contains("Signed-By"), "{text}");
    }

    /// Asks apt itself for every folder and hook that it would use, beside a host whose
    /// configuration has hooks.
    #[test]
    fn nothing_of_the_hosts_is_used_but_its_network_settings() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host.conf");
        fs::write(
            &host,
            "APT::Update::Post-Invoke { \"touch /hook\"; };\n\
             APT::Update::Post-Invoke-Success { \"touch /hook\"; };\n\
             APT::Default-Release \"stable\";\nAcquire::http::Proxy \"http://proxy.example\";\n",
        )
        .unwrap();
        let own = dir.path().join("apt.conf");
        let suite = Suite::BookwormBackports;
        fs::write(&own, apt_configuration(suite, dir.path()).unwrap()).unwrap();
        let mut command = Command::new("apt-config");
        command.env("APT_CONFIG", &host).arg("-c").arg(&own).arg("dump");
        let dump = command.output().expect("apt-config runs");
        let dump = String::from_utf8(dump.stdout).unwrap();
        // apt writes names of settings in the case in which it first met them.
        let at = |line: &str| dump.lines().any(|one| one.eq_ignore_ascii_case(line));
        let own = dir.path().display();
        for line in [
            "APT::Default-Release \"bookworm-backports\";".to_owned(),
            "Acquire::http::Proxy \"http://proxy.example\";".to_owned(),
            format!("Dir::State::Lists \"{own}/lists\";"),
            format!("Dir::State::status \"{own}/status\";"),
            format!("Dir::Cache \"{own}/cache\";"),
            format!("Dir::Etc::SourceParts \"{own}/sources.list.d\";"),
        ] {
            let near: Vec<&str> = dump.lines().filter(|l| l.starts_with("Dir::")).collect();
            assert!(at(&line), "{line} is not among {near:?}");
        }
        assert!(!dump.contains("/hook"), "{dump}");
        assert!(apt_configuration(suite, Path::new("/a\"b")).is_err());
    }

    #[test]
    fn without_a_mirror_the_remedy_is_reported_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let host = Apt::new(&cache, None).remedy();
        let suite = Apt::new(&cache, Some(Suite::Trixie)).remedy();
        assert!(host.contains("apt-get update"), "{host}");
        assert!(suite.contains("suite trixie") && !suite.contains('\n'), "{suite}");
    }
}
