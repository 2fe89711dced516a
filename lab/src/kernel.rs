//! The guest's kernel: Debian's own package, or any image.

use std::path::PathBuf;

use crate::cache::{Cache, write_whole};
use crate::error::{Doing, LabError};
use crate::packages::{Package, Packages};
use crate::vmlinux::from_image;

/// Which kernel a machine boots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Kernel {
    /// Debian's packaged 6.12 for clouds (`linux-image-6.12.*-cloud-amd64`): the newest in the
    /// cache or, if that has none, the newest that apt knows.
    #[default]
    Debian,
    /// An image that QEMU's `-kernel` takes: a bzImage, or a vmlinux with the PVH entry point
    /// (CONFIG_PVH), which starts sooner. It has to have devtmpfs, virtio-pci, virtio-console
    /// and the 8250 serial console built in.
    Path(PathBuf),
    /// Debian's source with the series of `kernel/`, as `make kernel` left it in the cache.
    Terrace,
}

/// The packages that have such a kernel. Those with debugging symbols (`-dbg`) do not match.
const PATTERN: &str = r"^linux-image-6\.12\.[0-9]+.*-cloud-amd64(-unsigned)?$";

impl Kernel {
    /// The kernel that people mean by this word: 'debian', 'terrace', or the path of an image.
    #[must_use]
    pub fn named(word: &str) -> Self {
        match word {
            "debian" => Self::Debian,
            "terrace" => Self::Terrace,
            path => Self::Path(path.into()),
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
            Self::Debian => debian(cache, say),
            Self::Terrace => terrace(cache),
        }
    }
}

/// `make kernel` keeps images by content, and a link to the one that it made or found last.
fn terrace(cache: &Cache) -> Result<PathBuf, LabError> {
    let current = cache.root().join("kernel/current");
    // The first starts without being unpacked.
    ["vmlinux", "bzImage"].map(|name| current.join(name)).into_iter().find(|p| p.is_file()).ok_or(
        LabError::KernelMissing {
            reason: format!("{} has no image", current.display()),
            remedy: "build the Terrace kernel with `make kernel`".to_owned(),
        },
    )
}

fn debian(cache: &Cache, say: &mut dyn FnMut(String)) -> Result<PathBuf, LabError> {
    let packages = Packages::new(cache);
    let name = match newest(packages.cached()) {
        Some(name) => name,
        None => newest(packages.search(PATTERN)?).ok_or_else(|| LabError::KernelMissing {
            reason: "apt knows no linux-image-6.12.*-cloud-amd64".to_owned(),
            remedy: "run `apt-get update` with Debian 12's main and security in the sources, or \
                     give the path of a kernel"
                .to_owned(),
        })?,
    };
    let package = packages.get(&name, say)?;
    // Beside the package's files, made once.
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

fn packaged_image(package: &Package) -> Result<PathBuf, LabError> {
    let boot = package.root.join("boot");
    let images = std::fs::read_dir(&boot).into_iter().flatten().flatten();
    images
        .map(|entry| entry.path())
        .find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        })
        .ok_or_else(|| LabError::KernelMissing {
            reason: format!("{} has no vmlinuz", boot.display()),
            remedy: format!("delete {} and try again", package.root.display()),
        })
}

/// The newest of these packages that has such a kernel; of the same version the signed one, which
/// is what Debian installs.
fn newest(names: Vec<String>) -> Option<String> {
    names.into_iter().filter_map(|name| Some((version(&name)?, name))).max().map(|(_, name)| name)
}

/// `linux-image-6.12.117+deb12-cloud-amd64` gives 117 and, as the later key, whether it is
/// signed.
fn version(name: &str) -> Option<(u32, bool)> {
    let rest = name.strip_prefix("linux-image-6.12.")?;
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
        let found = newest(names.map(str::to_owned).to_vec());
        assert_eq!(found.as_deref(), Some("linux-image-6.12.107+deb12-cloud-amd64"));
        assert_eq!(newest(Vec::new()), None);
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
    fn a_path_that_is_no_kernel_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let kernel = Kernel::Path(dir.path().join("none"));
        let error = kernel.image(&cache, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("none is not a file"), "{error}");
    }
}
