//! `terrace lab --shell`, typed at through a pseudo-terminal as by somebody at a keyboard.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// A program at a terminal.
struct Seat {
    keyboard: std::fs::File,
    printed: Receiver<Vec<u8>>,
    /// All that was printed, and up to where it was waited for.
    text: String,
    seen: usize,
    program: Child,
}

fn window(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Seat {
    fn at(arguments: &[&str]) -> Seat {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keyboard = openpt(flags).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        tcsetwinsize(&keyboard, window(40, 100)).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let end = || Stdio::from(rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap());
        let program = Command::new(env!("CARGO_BIN_EXE_terrace"))
            .args(arguments)
            .env("TERM", "vt220")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keyboard = std::fs::File::from(keyboard);
        let mut screen = keyboard.try_clone().unwrap();
        let (sender, printed) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The last end of the terminal is closed with the program: then reading fails.
            while let Ok(n @ 1..) = screen.read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Seat { keyboard, printed, text: String::new(), seen: 0, program }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is printed, behind what was waited for before.
    fn shows(&mut self, expected: &str) {
        let end = Instant::now() + Duration::from_secs(240);
        loop {
            if let Some(at) = self.text[self.seen..].find(expected) {
                self.seen += at + expected.len();
                return;
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.printed.recv_timeout(left) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.program.kill();
                    panic!("nothing of '{expected}' in 240 s: {}", self.text);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without '{expected}': {}", self.text)
                }
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn a_shell_in_the_machine_has_terraced_and_a_workload_and_the_size_of_the_window() {
    let mut seat = Seat::at(&["lab", "--shell", "--fast", "768M", "--slow", "512M"]);
    seat.shows("terraced manages the control group 'workload'");
    seat.shows("exit ");
    seat.shows("# ");
    // What is typed is printed too: what is waited for must be another text.
    seat.types("stty size\r");
    seat.shows("40 100");
    // More than the limit is in fast memory at first: the daemon moves pages away by itself.
    seat.types(
        "until terrace status --format json | grep -qE '\"demoted_pages\": [1-9]'; do sleep 1; done; \
         echo $((40 + 3)) demoted\r",
    );
    seat.shows("43 demoted");
    // A screen of its own, which 'q' ends.
    seat.types("terrace top\r");
    seat.shows("\x1b[?1049h");
    seat.shows("workload");
    seat.types("q");
    seat.shows("\x1b[?1049l");
    tcsetwinsize(&seat.keyboard, window(50, 120)).unwrap();
    seat.types(
        "until stty size | grep -q '50 120'; do sleep 0.1; done; echo $((40 + 4)) resized\r",
    );
    seat.shows("44 resized");
    // Ctrl-C ends what runs in the shell, and nothing else.
    // It is in the foreground once it prints: before, the key would reach the shell.
    seat.types("sh -c 'echo $((40 + 5)) begun; exec sleep 1000000'\r");
    seat.shows("45 begun");
    seat.types("\x03");
    seat.types("echo $((40 + 6)) still there\r");
    seat.shows("46 still there");
    seat.types("exit 7\r");
    let status = seat.program.wait().unwrap();
    assert_eq!(status.code(), Some(7), "{}", seat.text);
    // The terminal is as it was: it shows keys, and has lines.
    let modes = tcgetattr(&seat.keyboard).unwrap().local_modes;
    assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON), "{modes:?}");
}

#[test]
fn a_shell_runs_a_program_of_ones_own_and_ends_by_a_key() {
    let mut seat = Seat::at(&["lab", "--shell", "--", "sleep", "1000000"]);
    seat.shows("fast_ratio = 0.5");
    seat.shows("exit ");
    seat.shows("# ");
    seat.types(
        "cat /proc/$(head -n 1 /sys/fs/cgroup/workload/cgroup.procs)/comm; echo $((40 + 2))\r",
    );
    seat.shows("sleep");
    seat.shows("42\r\n");
    seat.types("\x1d");
    let status = seat.program.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{}", seat.text);
    seat.shows("switched off by Ctrl-]");
}

#[test]
fn a_shell_without_a_terminal_is_refused() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_terrace")).args(["lab", "--shell"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("no terminal"), "{text}");
}
