//! A terminal taken over for a screen of text that is drawn again and again, and its keys.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use crossterm::{cursor, execute, queue, style, terminal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use terrace_core::InputError;

/// The terminal, until it is dropped: a screen of its own, keys as they are pressed.
pub struct Screen;

impl Screen {
    /// Whether standard input and output are a terminal.
    pub fn is_there() -> bool {
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
    }

    /// Takes it. Refused where there is none.
    pub fn take() -> anyhow::Result<Self> {
        if !Self::is_there() {
            return Err(InputError::new(
                "standard input or output is no terminal; expected one, or use --once",
            )
            .into());
        }
        terminal::enable_raw_mode()?;
        let screen = Screen;
        execute!(std::io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub fn size() -> std::io::Result<(u16, u16)> {
        terminal::size()
    }

    /// The next key, unless none is pressed until then.
    pub fn key(due: Instant) -> std::io::Result<Option<Key>> {
        let stdin = std::io::stdin();
        let left = due.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let ready =
            match poll(&mut [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)], Some(&limit))
            {
                // A change of the window's size, for one.
                Err(rustix::io::Errno::INTR) => return Ok(Some(Key::Other)),
                ready => ready?,
            };
        if ready == 0 {
            return Ok(None);
        }
        let mut pressed = [0; 64];
        let n = stdin.lock().read(&mut pressed)?;
        Ok(Some(meaning(&pressed[..n])))
    }

    /// Draws these lines, and nothing below them.
    pub fn put(lines: &[String]) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        queue!(out, cursor::MoveTo(0, 0))?;
        for (row, line) in lines.iter().enumerate() {
            queue!(
                out,
                cursor::MoveTo(0, row as u16),
                style::Print(line),
                terminal::Clear(terminal::ClearType::UntilNewLine)
            )?;
        }
        queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(std::io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// A key.
#[derive(Debug, PartialEq)]
pub enum Key {
    /// Arrow up, or k.
    Up,
    /// Arrow down, or j.
    Down,
    /// q, escape or Ctrl-C; or the terminal has gone.
    End,
    /// Any other, or a change of the window's size.
    Other,
}

/// What was pressed; nothing at all means that the terminal has gone.
fn meaning(pressed: &[u8]) -> Key {
    match pressed {
        b"k" | b"\x1b[A" | b"\x1bOA" => Key::Up,
        b"j" | b"\x1b[B" | b"\x1bOB" => Key::Down,
        b"" | b"q" | b"\x1b" | b"\x03" => Key::End,
        _ => Key::Other,
    }
}

/// A line cut off at the width of a terminal.
pub fn cut(line: &str, width: u16) -> String {
    line.chars().take(width.into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_the_last_line_says() {
        assert_eq!([&b"q"[..], b"\x03", b""].map(meaning), [Key::End, Key::End, Key::End]);
        assert_eq!([&b"\x1b[A"[..], b"j", b"x"].map(meaning), [Key::Up, Key::Down, Key::Other]);
    }
}
