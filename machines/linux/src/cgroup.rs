//! Control groups of version 2: their processes, the nodes of their memory, creation and removal.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup_tree;
use crate::files::{self, FileError};
use crate::process;
use crate::roots::Roots;

/// Control groups below one, of which the processes are listed at most. A host with 250 pods has about
/// 1,000 in all.
const MOST_GROUPS: usize = 4096;

/// Errors of a group that takes no processes: it is gone, being removed, divided, or threaded.
const TAKES_NONE: [i32; 4] = [libc::ENOENT, libc::ENODEV, libc::EBUSY, libc::EOPNOTSUPP];

/// A control group, by its folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cgroup {
    path: PathBuf,
}

/// Memory of a group per node (`memory.numa_stat`), in bytes; index is the node. Fields that
/// this kernel does not have are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupMemory {
    /// Anonymous memory, huge pages included.
    pub anon_bytes: Option<Vec<u64>>,
    /// Anonymous memory in huge pages.
    pub anon_thp_bytes: Option<Vec<u64>>,
    /// Page cache, shared memory included.
    pub file_bytes: Option<Vec<u64>>,
    /// Of it, pages mapped by some process.
    pub file_mapped_bytes: Option<Vec<u64>>,
    /// Page tables.
    pub pagetables_bytes: Option<Vec<u64>>,
}

impl Cgroup {
    /// The group of this folder, which is an absolute path or one below the control-group root
    /// (`/sys/fs/cgroup`), as `/proc/PID/cgroup` names it.
    pub fn new(roots: &Roots, path: &Path) -> Self {
        let root = roots.cgroup();
        let path = if path.starts_with(&root) {
            path.to_owned()
        } else {
            root.join(path.strip_prefix("/").unwrap_or(path))
        };
        Cgroup { path }
    }

    /// The group of exactly this folder.
    pub fn at(folder: &Path) -> Self {
        Cgroup { path: folder.to_owned() }
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it exists.
    pub fn exists(&self) -> bool {
        self.path.join("cgroup.procs").exists()
    }

    /// The processes of the group and of all groups below it, ascending, each once.
    ///
    /// # Errors
    /// Also where more than [`MOST_GROUPS`] groups are below it: their owner can make any number.
    pub fn processes(&self) -> Result<Vec<u32>, FileError> {
        let mut pids = Vec::new();
        let mut folders = vec![self.path.clone()];
        let mut visited = 0;
        while let Some(folder) = folders.pop() {
            let path = folder.join("cgroup.procs");
            let text = match files::read(&path) {
                Ok(text) => text.unwrap_or_default(),
                // A threaded group has threads alone: their processes are listed by a group above it.
                Err(e) if folder != self.path && e.errno() == Some(libc::EOPNOTSUPP) => {
                    String::new()
                }
                Err(e) => return Err(e),
            };
            for line in text.lines() {
                let pid: u32 = line.trim().parse().map_err(|_| {
                    FileError::malformed(&path, line, "a process identifier on each line")
                })?;
                // 0 stands for a process outside our own pid namespace, which must not be touched.
                if pid != 0 {
                    pids.push(pid);
                }
            }
            for name in cgroup_tree::folders(&folder)? {
                let below = folder.join(name);
                visited += 1;
                if visited > MOST_GROUPS {
                    let path = self.path.clone();
                    let got = format!("more than {MOST_GROUPS} control groups");
                    let expected = "at most so many; manage groups below it";
                    return Err(FileError::Malformed { path, got, expected });
                }
                // What is below a group without processes is not listed.
                let events = files::read(&below.join("cgroup.events"))?;
                if !events.is_some_and(|text| text.lines().any(|line| line == "populated 0")) {
                    folders.push(below);
                }
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// The group's memory by node; `None` without the memory controller.
    pub fn memory(&self) -> Result<Option<GroupMemory>, FileError> {
        let path = self.path.join("memory.numa_stat");
        let Some(text) = files::read(&path)? else { return Ok(None) };
        let mut memory = GroupMemory::default();
        for line in text.lines() {
            let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
            let field = match name {
                "anon" => &mut memory.anon_bytes,
                "anon_thp" => &mut memory.anon_thp_bytes,
                "file" => &mut memory.file_bytes,
                "file_mapped" => &mut memory.file_mapped_bytes,
                "pagetables" => &mut memory.pagetables_bytes,
                _ => continue,
            };
            let nodes = parse_nodes(rest)
                .ok_or_else(|| FileError::malformed(&path, line, "'anon N0=bytes N1=bytes'"))?;
            *field = Some(nodes);
        }
        Ok(Some(memory))
    }

    /// Huge pages into which khugepaged has collapsed the group's base pages so far
    /// (`thp_collapse_alloc` of `memory.stat`); `None` where the kernel does not count them.
    pub fn collapses(&self) -> Result<Option<u64>, FileError> {
        let text = files::read(&self.path.join("memory.stat"))?.unwrap_or_default();
        let count = text.lines().find_map(|l| l.strip_prefix("thp_collapse_alloc "));
        Ok(count.and_then(|n| n.trim().parse().ok()))
    }

    /// Creates the group. It must not exist: another program would own it.
    pub fn create(&self) -> Result<(), FileError> {
        fs::create_dir(&self.path).map_err(|source| FileError::Write {
            path: self.path.clone(),
            value: "a new group".to_owned(),
            source,
        })
    }

    /// Puts a process into the group.
    pub fn add(&self, pid: u32) -> Result<(), FileError> {
        files::write(&self.path.join("cgroup.procs"), &pid.to_string())
    }

    /// Ends all processes of the group and of those below it: with one command where the kernel has it,
    /// else each that is listed.
    pub fn kill(&self) -> Result<(), FileError> {
        let file = self.path.join("cgroup.kill");
        if file.exists() {
            return files::write(&file, "1");
        }
        self.processes()?.into_iter().for_each(process::kill);
        Ok(())
    }

    /// Removes the group and those below it, and moves remaining processes to `origin`, or to the nearest
    /// group above that exists and takes processes. A group that is gone already is no error.
    pub fn remove(&self, origin: &Path) -> Result<(), FileError> {
        if !self.path.exists() {
            return Ok(());
        }
        for pid in self.processes()? {
            give(origin, pid)?;
        }
        self.remove_folders()
    }

    fn remove_folders(&self) -> Result<(), FileError> {
        for name in files::list(&self.path)? {
            let path = self.path.join(name);
            if path.is_dir() && !path.is_symlink() {
                Cgroup { path }.remove_folders()?;
            }
        }
        match fs::remove_dir(&self.path) {
            Err(e) if !files::is_gone(&e) => Err(FileError::Write {
                path: self.path.clone(),
                value: "removal".to_owned(),
                source: e,
            }),
            _ => Ok(()),
        }
    }
}

/// Puts a process into a group, or the nearest above it that takes one: a group may have been removed
/// since, or be divided now. The root takes any. A process that has ended is no error.
fn give(origin: &Path, pid: u32) -> Result<(), FileError> {
    let mut first = None;
    for folder in origin.ancestors() {
        let file = folder.join("cgroup.procs");
        if folder != origin && !file.exists() {
            continue;
        }
        match files::write(&file, &pid.to_string()) {
            Err(e) if e.errno() == Some(libc::ESRCH) => return Ok(()),
            Err(e) if e.errno().is_some_and(|errno| TAKES_NONE.contains(&errno)) => {
                first = first.or(Some(e));
            }
            other => return other,
        }
    }
    first.map_or(Ok(()), Err)
}

/// `N0=12 N1=34` as a vector indexed by node.
fn parse_nodes(text: &str) -> Option<Vec<u64>> {
    let mut nodes = Vec::new();
    for word in text.split_whitespace() {
        let (node, bytes) = word.strip_prefix('N')?.split_once('=')?;
        let node: usize = node.parse().ok()?;
        // The kernel's limit is 1,024 nodes; a larger number is no node list.
        if node >= 4096 {
            return None;
        }
        if nodes.len() <= node {
            nodes.resize(node + 1, 0);
        }
        nodes[node] = bytes.parse().ok()?;
    }
    Some(nodes)
}

/// Folder of the version-2 group of this process, to which other processes are moved.
pub fn own(roots: &Roots) -> Result<PathBuf, FileError> {
    let path = roots.proc.join("self/cgroup");
    let text = files::read(&path)?.unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("0::")).unwrap_or("/");
    Ok(roots.cgroup().join(name.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults;
    use crate::testing::folder;
    use proptest::prelude::*;

    #[test]
    fn processes_of_a_group_include_those_below_it() {
        let (_keep, roots) = folder(&[
            ("sys/fs/cgroup/app/cgroup.procs", "30\n7\n"),
            ("sys/fs/cgroup/app/worker/cgroup.procs", "9\n0\n7\n"),
            ("sys/fs/cgroup/other/cgroup.procs", "1\n"),
        ]);
        let group = Cgroup::new(&roots, Path::new("/app"));
        assert!(group.exists());
        assert_eq!(group.processes().unwrap(), [7, 9, 30]);
        assert_eq!(Cgroup::new(&roots, group.path()), group);
    }

    #[test]
    fn empty_groups_are_not_gone_through_and_very_many_are_refused() {
        let (keep, roots) = folder(&[
            ("sys/fs/cgroup/app/cgroup.procs", "7\n"),
            ("sys/fs/cgroup/app/empty/cgroup.events", "populated 0\nfrozen 0\n"),
            ("sys/fs/cgroup/app/empty/below/cgroup.procs", "8\n"),
            ("sys/fs/cgroup/app/full/cgroup.events", "populated 1\nfrozen 0\n"),
            ("sys/fs/cgroup/app/full/cgroup.procs", "9\n"),
        ]);
        let group = Cgroup::new(&roots, Path::new("/app"));
        assert_eq!(group.processes().unwrap(), [7, 9]);
        let app = keep.path().join("sys/fs/cgroup/app");
        for number in 0..MOST_GROUPS {
            fs::create_dir(app.join(format!("made-{number}"))).unwrap();
        }
        let error = group.processes().unwrap_err().to_string();
        assert!(error.contains("more than 4096 control groups"), "{error}");
    }

    #[test]
    fn threaded_groups_below_a_group_are_no_obstacle() {
        let (_keep, roots) = folder(&[
            ("sys/fs/cgroup/app/cgroup.procs", "7\n"),
            ("sys/fs/cgroup/app/threads/cgroup.procs", "8\n"),
        ]);
        let processes = |path: &str| Cgroup::new(&roots, Path::new(path)).processes();
        // Operations of the group: its own list, the folders in it, whether the one below has processes,
        // then its list.
        let (operations, _) = faults::count(|| processes("app").unwrap());
        assert_eq!(operations, 5);
        let refuse = libc::EOPNOTSUPP;
        assert_eq!(faults::inject(3, refuse, || processes("app")).unwrap(), [7]);
        // One that is asked for itself has no processes that could be managed.
        assert!(faults::inject(0, refuse, || processes("app/threads")).is_err());
        // Other errors are errors.
        assert!(faults::inject(2, libc::EIO, || processes("app")).is_err());
    }

    #[test]
    fn memory_is_read_per_node_and_missing_fields_are_none() {
        let (_keep, roots) = folder(&[(
            "sys/fs/cgroup/app/memory.numa_stat",
            "anon N0=4096 N1=8192\nanon_thp N0=0 N1=2097152\nfile N0=1 N1=2\nshmem N0=0 N1=0\n",
        )]);
        let memory = Cgroup::new(&roots, Path::new("app")).memory().unwrap().unwrap();
        assert_eq!(memory.anon_bytes, Some(vec![4096, 8192]));
        assert_eq!(memory.anon_thp_bytes, Some(vec![0, 2097152]));
        assert_eq!(memory.pagetables_bytes, None);
        assert_eq!(Cgroup::new(&roots, Path::new("none")).memory().unwrap(), None);
    }

    #[test]
    fn collapses_are_those_of_the_group() {
        let (_keep, roots) = folder(&[(
            "sys/fs/cgroup/app/memory.stat",
            "anon 4096\nthp_fault_alloc 7\nthp_collapse_alloc 40\n",
        )]);
        let of = |name: &str| Cgroup::new(&roots, Path::new(name)).collapses().unwrap();
        assert_eq!((of("app"), of("none")), (Some(40), None));
    }

    #[test]
    fn malformed_groups_are_errors_with_their_path() {
        let (_keep, roots) = folder(&[
            ("sys/fs/cgroup/app/memory.numa_stat", "anon N0=lots\n"),
            ("sys/fs/cgroup/app/cgroup.procs", "seven\n"),
        ]);
        let group = Cgroup::new(&roots, Path::new("app"));
        assert!(group.memory().unwrap_err().to_string().contains("app/memory.numa_stat"));
        assert!(group.processes().unwrap_err().to_string().contains("app/cgroup.procs"));
    }

    #[test]
    fn a_group_that_exists_is_not_made_again() {
        let (_keep, roots) = folder(&[("sys/fs/cgroup/cgroup.procs", "")]);
        let group = Cgroup::new(&roots, Path::new("terrace"));
        group.create().unwrap();
        assert!(group.create().is_err());
        group.remove(&roots.cgroup()).unwrap();
        assert!(!group.path().exists());
        group.remove(&roots.cgroup()).unwrap();
    }

    #[test]
    fn a_group_is_ended_by_one_command_where_there_is_one() {
        let (keep, roots) = folder(&[("sys/fs/cgroup/app/cgroup.kill", "")]);
        Cgroup::new(&roots, Path::new("/app")).kill().unwrap();
        let kill = keep.path().join("sys/fs/cgroup/app/cgroup.kill");
        assert_eq!(fs::read_to_string(kill).unwrap(), "1");
    }

    #[test]
    fn processes_of_a_group_go_above_an_origin_that_is_gone() {
        let (keep, roots) = folder(&[
            ("sys/fs/cgroup/cgroup.procs", ""),
            ("sys/fs/cgroup/user.slice/cgroup.procs", ""),
        ]);
        let groups = keep.path().join("sys/fs/cgroup");
        let get = |path: &str| fs::read_to_string(groups.join(path)).unwrap();
        let origin = groups.join("user.slice/session-7.scope");
        give(&origin, 41).unwrap();
        assert_eq!((get("user.slice/cgroup.procs"), get("cgroup.procs")), ("41".into(), "".into()));
        // That one is divided and takes none: the root does.
        faults::inject(0, libc::EBUSY, || give(&groups.join("user.slice"), 42)).unwrap();
        assert_eq!(get("cgroup.procs"), "42");
        // Other errors are errors.
        let origin = groups.join("user.slice");
        assert!(faults::inject(0, libc::EACCES, || give(&origin, 43)).is_err());
        faults::inject(0, libc::ESRCH, || give(&origin, 43)).unwrap();
        assert!(give(&roots.proc.join("gone"), 43).is_err());
    }

    proptest! {
        #[test]
        fn any_node_list_is_read_or_refused(text in "(N|=| |[0-9]{1,22}|x){0,12}") {
            parse_nodes(&text);
        }
    }
}
