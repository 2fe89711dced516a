//! A terminal of the guest, joined to the terminal of this process: keys go in, what the guest's
//! programs print comes out, and the size of the window follows.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::error::{Doing, LabError};

/// Ctrl-], which switches the machine off.
const OFF: u8 = 0x1d;
/// Ctrl-D: no more input.
const END: u8 = 0x04;
/// How often the window is asked for its size.
const SIZE_EVERY: Duration = Duration::from_millis(250);

/// Our ends of what belongs to a terminal.
pub(crate) struct Ends {
    /// What is typed and printed.
    pub(crate) screen: UnixStream,
    /// Lines with rows and columns, for the guest.
    pub(crate) sizes: UnixStream,
    /// Written to when the machine is to be switched off.
    pub(crate) off: UnixStream,
}

/// The two terminals while they are joined, until QEMU has ended.
pub(crate) struct Joined {
    thread: Option<JoinHandle<()>>,
    before: Termios,
}

impl Joined {
    /// Passes every key on from now.
    pub(crate) fn begin(ends: Ends) -> Result<Self, LabError> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).doing("read the settings of the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw).doing("change the terminal")?;
        let thread = std::thread::spawn(move || {
            // Its end is that of the guest or of the terminal, which both are seen elsewhere.
            let _ = pass_on(ends);
        });
        Ok(Self { thread: Some(thread), before })
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn pass_on(mut ends: Ends) -> std::io::Result<()> {
    let (stdin, mut stdout) = (std::io::stdin(), std::io::stdout());
    let limit = Timespec::try_from(SIZE_EVERY).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    let (mut known, mut more) = ((0, 0), true);
    let mut buffer = [0; 4096];
    loop {
        let size = size();
        if size != known {
            writeln!(ends.sizes, "{} {}", size.0, size.1)?;
            known = size;
        }
        let mut fds = vec![PollFd::from_borrowed_fd(ends.screen.as_fd(), PollFlags::IN)];
        if more {
            fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            let n = ends.screen.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            stdout.write_all(&buffer[..n])?;
            stdout.flush()?;
        }
        if ready.get(1) == Some(&true) {
            // Not by way of the buffer of standard input, which is not polled.
            let n = rustix::io::read(&stdin, &mut buffer).unwrap_or(0);
            if buffer[..n].contains(&OFF) {
                return ends.off.write_all(b"off");
            }
            more = n > 0;
            ends.screen.write_all(if more { &buffer[..n] } else { &[END] })?;
        }
    }
}

/// Rows and columns of the window.
fn size() -> (u16, u16) {
    match tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row, size.ws_col),
        _ => (24, 80),
    }
}
