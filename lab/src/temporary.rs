//! Folders that are gone when the process is, whatever ends it.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A folder that is removed when this is dropped; if the process is ended before, Ctrl-C and
/// `SIGKILL` included, by a shell that waits for its end.
#[derive(Debug)]
pub struct TemporaryFolder {
    folder: tempfile::TempDir,
    /// `None` where it could not be started: then only a process that ends by itself removes the
    /// folder.
    janitor: Option<Child>,
}

/// Waits for a line, which comes when the folder has been removed, or for the end of the process.
/// A machine that is being killed may still write there, hence the second attempt.
const JANITOR: &str = "read -r line && exit; rm -rf -- \"$1\" || { sleep 1; rm -rf -- \"$1\"; }";

impl TemporaryFolder {
    /// A folder in the system's folder for temporary files, with a name that begins with this.
    pub fn new(prefix: &str) -> io::Result<Self> {
        Self::new_in(prefix, &std::env::temp_dir())
    }

    /// A folder in this one.
    pub fn new_in(prefix: &str, parent: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", JANITOR, "sh"]).arg(std::path::absolute(folder.path())?);
        // A process group of its own: Ctrl-C on the terminal is not for it. And it must not keep
        // open what its output would go to.
        shell.process_group(0).current_dir("/");
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(TemporaryFolder { folder, janitor: shell.spawn().ok() })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let Some(janitor) = &mut self.janitor else { return };
        let removed = match std::fs::remove_dir_all(self.folder.path()) {
            Err(error) => error.kind() == io::ErrorKind::NotFound,
            Ok(()) => true,
        };
        if let Some(mut line) = janitor.stdin.take()
            && removed
        {
            let _ = line.write_all(b"\n");
        }
        let _ = janitor.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    const PARENT: &str = "TERRACE_TEST_FOLDER_IN";

    #[test]
    fn it_is_removed_with_what_is_in_it() {
        let parent = tempfile::tempdir().unwrap();
        let folder = TemporaryFolder::new_in("a-", parent.path()).unwrap();
        assert!(folder.janitor.is_some());
        std::fs::write(folder.path().join("file"), "").unwrap();
        let path = folder.path().to_owned();
        assert!(path.starts_with(parent.path()));
        drop(folder);
        assert!(!path.exists());
    }

    /// The process that [`a_process_that_is_ended_leaves_no_folder`] ends.
    #[test]
    #[ignore = "runs until it is ended"]
    fn holds_a_folder() {
        let Some(parent) = std::env::var_os(PARENT) else { return };
        let folder = TemporaryFolder::new_in("it's a-", Path::new(&parent)).unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        eprintln!("{}", folder.path().display());
        std::thread::sleep(Duration::from_secs(600));
    }

    #[test]
    fn a_process_that_is_ended_leaves_no_folder() {
        let parent = tempfile::tempdir().unwrap();
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            // Who runs the tests may ignore Ctrl-C, and a child takes that over.
            let mut child = Command::new("env")
                .arg("--default-signal=INT")
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", "temporary::tests::holds_a_folder", "--ignored", "--nocapture"])
                .env(PARENT, parent.path())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
            let folder = PathBuf::from(line.trim_end());
            assert!(folder.join("file").exists(), "{line}");
            kill_process(Pid::from_child(&child), signal).unwrap();
            child.wait().unwrap();
            let ended = Instant::now();
            while folder.exists() {
                assert!(ended.elapsed() < Duration::from_secs(60), "{signal:?} left {line}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
