//! Folders of programs' sockets and the like: each group has one of its own, which nobody else can
//! enter. Names in a shared folder could be those of another group, or of somebody else's server.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

/// Makes a folder that is removed when it is dropped.
pub(crate) fn private_folder() -> io::Result<TempDir> {
    let mut folder = tempfile::Builder::new();
    folder.prefix("terrace-").permissions(Permissions::from_mode(0o700)).tempdir()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Experiment;
    use crate::host::{Work, work};
    use terrace_workloads::kinds::Ready;

    #[test]
    fn groups_of_one_kind_share_no_socket() {
        let text = "name = \"two\"\nperiods = 1\nperiod_ms = 100\nseed = 1\n\
                    [[groups]]\nname = \"a\"\npolicy = \"lru\"\nfast_ratio = 0.5\npage_size = \"4K\"\n\
                    workload = { kind = \"redis-zipf\" }\n";
        let experiment = Experiment::parse(text, ".".into()).unwrap();
        let folders = [private_folder().unwrap(), private_folder().unwrap()];
        let sockets = folders.each_ref().map(|folder| {
            let mode = folder.path().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
            let work = work(&experiment, &experiment.groups[0], folder.path()).unwrap();
            let Work::Started(workload) = work else { panic!("it is started") };
            let Ready::UnixSocket { path, .. } = workload.ready else { panic!("it has a socket") };
            assert!(path.starts_with(folder.path()), "{}", path.display());
            path
        });
        assert_ne!(sockets[0], sockets[1]);
    }
}
