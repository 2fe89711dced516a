//! The guest's kernel: Debian's own package, or any image.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::apt::Suite;
use crate::cache::{Cache, write_whole};
use crate::error::{Doing, LabError};
use crate::packages::{Package, Packages};
use crate::vmlinux::from_image;

/// Which kernel a machine boots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Kernel {
    /// Debian's packaged 6.12 for clouds (`linux-image-6.12.*-cloud-amd64`): the newest in the
    /// cache or, if the cache has none, the newest that apt knows.
    #[default]
    Debian,
    /// Debian's packaged kernel for clouds of a newer series, such as 7.3, from Debian 13's
    /// backports: the newest in the cache or, if the cache has none, the newest of the mirror.
    DebianSeries(Series),
    /// An image that QEMU's `-kernel` takes: a bzImage, or a vmlinux with the PVH entry point
    /// (CONFIG_PVH), which starts sooner. It has to have devtmpfs, virtio-pci, virtio-console
    /// and the 8250 serial console built in.
    Path(PathBuf),
    /// Debian's source with the patch series of `kernel/`, as `make kernel` left it in the cache.
    Terrace,
    /// The same of a newer series of kernels, such as 7.3, as `kernel/build --kernel` left it.
    TerraceSeries(Series),
}

/// A series of kernels: 7.3 of 7.3.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// 7 of 7.3.
    pub major: u32,
    /// 3 of 7.3.
    pub minor: u32,
}

/// The series of Debian 12 and 13.
const STABLE: Series = Series { major: 6, minor: 12 };

/// The suite of newer series.
const NEWER: Suite = Suite::TrixieBackports;

impl Series {
    /// Parses `7.3`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// Prefix of the names of packages with an image: since 7.0 the image has a package of its own,
    /// and `linux-image` only depends on it.
    fn prefix(self) -> &'static str {
        if self.major < 7 { "linux-image-" } else { "linux-binary-" }
    }

    /// Pattern of the packages that have such a kernel. Packages with debugging symbols (`-dbg`) do
    /// not match.
    fn pattern(self) -> String {
        let Self { major, minor } = self;
        let prefix = self.prefix();
        format!(r"^{prefix}{major}\.{minor}\.[0-9]+.*-cloud-amd64(-unsigned)?$")
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Kernel {
    /// The kernel of this name: 'debian' or 'terrace', 'debian-7.3' or 'terrace-7.3' or another
    /// series, or the path of an image.
    #[must_use]
    pub fn named(word: &str) -> Self {
        let series = |prefix| word.strip_prefix(prefix).and_then(Series::parse);
        match (word, series("debian-"), series("terrace-")) {
            ("debian", _, _) | (_, Some(STABLE), _) => Self::Debian,
            ("terrace", _, _) | (_, _, Some(STABLE)) => Self::Terrace,
            (_, Some(series), _) => Self::DebianSeries(series),
            (_, _, Some(series)) => Self::TerraceSeries(series),
            (path, None, None) => Self::Path(path.into()),
        }
    }

    /// The image to boot.
    pub fn image(&self, cache: &Cache, say: &mut dyn FnMut(String)) -> Result<PathBuf, LabError> {
        match self {
            Self::Path(path) if path.is_file() => Ok(path.clone()),
            Self::Path(path) => Err(LabError::KernelMissing {
                reason: format!("{} is not a file", path.display()),
                remedy: "give the path of a bzImage, or use Debian's kernel".to_owned(),
            }),
            Self::Debian => debian(&Packages::new(cache), STABLE, say),
            Self::DebianSeries(series) => debian(&Packages::of_suite(cache, NEWER), *series, say),
            Self::Terrace => terrace(cache, STABLE),
            Self::TerraceSeries(series) => terrace(cache, *series),
        }
    }

    /// The files of the package with the modules of this packaged image: the same package, or,
    /// since 7.0, another, which is fetched. `None` for an image that is not packaged.
    pub(crate) fn modules(
        image: &Path,
        cache: &Cache,
        say: &mut dyn FnMut(String),
    ) -> Result<Option<PathBuf>, LabError> {
        let Some(package) = image
            .ancestors()
            .find(|folder| folder.join("root").is_dir() && folder.join("version").is_file())
        else {
            return Ok(None);
        };
        let name = package.file_name().unwrap_or_default().to_string_lossy();
        match name.strip_prefix("linux-binary-") {
            None => Ok(Some(package.join("root"))),
            Some(version) => {
                let packages = Packages::of_suite(cache, NEWER);
                Ok(Some(packages.get(&format!("linux-modules-{version}"), say)?.root))
            }
        }
    }
}

/// `make kernel` keeps images by content, and of each series of kernels a link to the one that it
/// made or found last.
fn terrace(cache: &Cache, series: Series) -> Result<PathBuf, LabError> {
    let (link, remedy) = match series {
        STABLE => ("current".to_owned(), "build the Terrace kernel with `make kernel`".to_owned()),
        _ => (
            format!("current-{series}"),
            format!("build that Terrace kernel with `make kernel KERNEL={series}`"),
        ),
    };
    let current = cache.root().join("kernel").join(link);
    // vmlinux starts without being unpacked.
    ["vmlinux", "bzImage"].map(|name| current.join(name)).into_iter().find(|p| p.is_file()).ok_or(
        LabError::KernelMissing { reason: format!("{} has no image", current.display()), remedy },
    )
}

fn debian(
    packages: &Packages<'_>,
    series: Series,
    say: &mut dyn FnMut(String),
) -> Result<PathBuf, LabError> {
    let name = match newest(packages.cached(), series) {
        Some(name) => name,
        None => {
            let found = packages.search(&series.pattern(), say)?;
            newest(found, series).ok_or_else(|| LabError::KernelMissing {
                reason: format!("apt knows no {}{series}.*-cloud-amd64", series.prefix()),
                remedy: if series == STABLE {
                    "run `apt-get update` with Debian 12's main and security in the sources, or \
                     give the path of a kernel"
                        .to_owned()
                } else {
                    format!("ask for a series that {NEWER} has, or give the path of a kernel")
                },
            })?
        }
    };
    let package = packages.get(&name, say)?;
    // Stored beside the package's files, and made once.
    let unpacked = package.root.with_file_name("vmlinux");
    if unpacked.is_file() {
        return Ok(unpacked);
    }
    let image = packaged_image(&package)?;
    let bytes = std::fs::read(&image).doing(format!("read {}", image.display()))?;
    match from_image(&bytes) {
        Ok(vmlinux) => {
            write_whole(&unpacked, &vmlinux)?;
            Ok(unpacked)
        }
        Err(reason) => {
            tracing::debug!("{} is booted as it is: {reason}", image.display());
            Ok(image)
        }
    }
}

/// In `boot`, or, since 7.0, beside the modules.
fn packaged_image(package: &Package) -> Result<PathBuf, LabError> {
    let entries = |directory: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path()).collect()
    };
    let modules = entries(&package.root.join("usr/lib/modules"));
    let images = entries(&package.root.join("boot"))
        .into_iter()
        .chain(modules.into_iter().map(|directory| directory.join("vmlinuz")));
    let is_image = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        (name == "vmlinuz" || name.starts_with("vmlinuz-")) && path.is_file()
    };
    images.into_iter().find(is_image).ok_or_else(|| LabError::KernelMissing {
        reason: format!("the package {} has no vmlinuz", package.name),
        remedy: format!("delete {} and try again", package.root.display()),
    })
}

/// The newest of these packages that has a kernel of this series; of two with the same version the
/// signed one, which Debian installs.
fn newest(names: Vec<String>, series: Series) -> Option<String> {
    let version = |name: &str| version(name, series);
    names.into_iter().filter_map(|name| Some((version(&name)?, name))).max().map(|(_, name)| name)
}

/// `linux-image-6.12.117+deb12-cloud-amd64` gives 117 and, as the later key, whether it is
/// signed.
fn version(name: &str, series: Series) -> Option<(u32, bool)> {
    let rest = name.strip_prefix(series.prefix())?.strip_prefix(&format!("{series}."))?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let number = rest[..digits].parse().ok()?;
    let signed = rest.ends_with("-cloud-amd64");
    (signed || rest.ends_with("-cloud-amd64-unsigned")).then_some((number, signed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_signed_kernel_is_chosen_by_number() {
        let names = [
            "linux-image-6.12.99+deb12-cloud-amd64",
            "linux-image-6.12.107+deb12-cloud-amd64-unsigned",
            "linux-image-6.12.107+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64-dbg",
            "linux-image-6.12-cloud-amd64",
            "linux-image-6.12.200+deb12-amd64",
            "linux-image-6.12.",
            "redis-server",
        ];
        let found = newest(names.map(str::to_owned).to_vec(), STABLE);
        assert_eq!(found.as_deref(), Some("linux-image-6.12.107+deb12-cloud-amd64"));
        assert_eq!(newest(Vec::new(), STABLE), None);
    }

    #[test]
    fn a_newer_series_is_in_the_package_that_has_the_image() {
        let names = [
            "linux-image-7.3.4+deb13-cloud-amd64",
            "linux-binary-7.3.4+deb13-cloud-amd64",
            "linux-binary-7.3.10+deb13-cloud-amd64",
            "linux-binary-7.30.11+deb13-cloud-amd64",
            "linux-binary-7.2.12+deb13-cloud-amd64",
            "linux-binary-7.3.12+deb13-amd64",
        ];
        let series = Series::parse("7.3").unwrap();
        let found = newest(names.map(str::to_owned).to_vec(), series);
        assert_eq!(found.as_deref(), Some("linux-binary-7.3.10+deb13-cloud-amd64"));
    }

    #[test]
    fn kernels_have_words() {
        let series = |major, minor| Kernel::DebianSeries(Series { major, minor });
        for (word, kernel) in [
            ("debian", Kernel::Debian),
            ("debian-6.12", Kernel::Debian),
            ("debian-7.3", series(7, 3)),
            ("terrace", Kernel::Terrace),
            ("terrace-6.12", Kernel::Terrace),
            ("terrace-7.3", Kernel::TerraceSeries(Series { major: 7, minor: 3 })),
            ("terrace-7", Kernel::Path("terrace-7".into())),
            ("debian-7", Kernel::Path("debian-7".into())),
            ("debian-7.x", Kernel::Path("debian-7.x".into())),
            ("./bzImage", Kernel::Path("./bzImage".into())),
        ] {
            assert_eq!(Kernel::named(word), kernel, "{word}");
        }
    }

    /// Debian's image is beside the modules since 7.0; it is booted from the cache without apt.
    #[test]
    fn a_cached_kernel_is_found_where_its_package_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let name = "linux-binary-7.3.4+deb13-cloud-amd64";
        let package = cache.root().join("suites/trixie-backports/packages").join(name);
        let modules = package.join("root/usr/lib/modules/7.3.4+deb13-cloud-amd64");
        std::fs::create_dir_all(&modules).unwrap();
        std::fs::write(modules.join("vmlinuz"), "image").unwrap();
        std::fs::write(package.join("version"), "7.3.4-1\n").unwrap();
        std::fs::write(package.join("depends"), "\n").unwrap();
        let found = Kernel::named("debian-7.3").image(&cache, &mut |_| {}).unwrap();
        assert_eq!(found, modules.join("vmlinuz"));
        std::fs::remove_file(modules.join("vmlinuz")).unwrap();
        let error = Kernel::named("debian-7.3").image(&cache, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("has no vmlinuz"), "{error}");
    }

    #[test]
    fn the_terrace_kernel_is_the_one_that_was_built_last() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let error = Kernel::Terrace.image(&cache, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("make kernel"), "{error}");
        let images = cache.root().join("kernel/images");
        for (key, name) in [("old", "bzImage"), ("new", "vmlinux")] {
            std::fs::create_dir_all(images.join(key)).unwrap();
            std::fs::write(images.join(key).join(name), key).unwrap();
        }
        let link = cache.root().join("kernel/current");
        for (key, name) in [("old", "bzImage"), ("new", "vmlinux")] {
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(format!("images/{key}"), &link).unwrap();
            let found = Kernel::Terrace.image(&cache, &mut |_| {}).unwrap();
            assert_eq!(std::fs::read_to_string(&found).unwrap(), key);
            assert!(found.ends_with(name), "{}", found.display());
        }
    }

    #[test]
    fn each_series_of_terrace_kernels_has_an_image_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        for (link, text) in [("current", "stable"), ("current-7.3", "newer")] {
            let folder = cache.root().join("kernel").join(link);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("bzImage"), text).unwrap();
        }
        for (word, text) in [("terrace", "stable"), ("terrace-7.3", "newer")] {
            let found = Kernel::named(word).image(&cache, &mut |_| {}).unwrap();
            assert_eq!(std::fs::read_to_string(found).unwrap(), text, "{word}");
        }
        let error = Kernel::named("terrace-7.4").image(&cache, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("make kernel KERNEL=7.4"), "{error}");
    }

    #[test]
    fn a_path_that_is_no_kernel_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let kernel = Kernel::Path(dir.path().join("none"));
        let error = kernel.image(&cache, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("none is not a file"), "{error}");
    }
}
