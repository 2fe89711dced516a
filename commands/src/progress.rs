//! Progress of long work on standard error: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use terrace_experiments::run::{Event, Events};

use crate::show::tell;

/// Time between two lines where there is no terminal to draw on.
pub const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Shows the events of a run.
pub struct Screen {
    bar: Option<ProgressBar>,
    terminal: bool,
    console: bool,
    /// When the last line of progress was written.
    last_line: Instant,
}

impl Screen {
    /// A screen; with `console`, a virtual machine's console is shown too.
    pub fn new(console: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Screen { bar: None, terminal, console, last_line: Instant::now() }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => tell!("{line}"),
        }
    }
}

impl Events for Screen {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::RunStarts { run, number, of, periods } => {
                if self.terminal {
                    let style = ProgressStyle::with_template(
                        "{prefix:>12} [{bar:20}] {pos}/{len} periods, {elapsed}  {wide_msg}",
                    );
                    let bar = ProgressBar::new(periods);
                    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                    bar.set_prefix(run.to_owned());
                    self.bar = Some(bar);
                } else {
                    tell!("run {number} of {of}: {run}");
                    self.last_line = Instant::now();
                }
            }
            Event::Stage(text) => match &self.bar {
                Some(bar) => bar.set_message(text.to_owned()),
                None => tell!("  {text}"),
            },
            Event::Period { period, group, hit_ratio, applied } => {
                // Without a tracker none is known.
                let text = match hit_ratio.is_finite() {
                    true => format!("{group}: {:.1} % hits, {applied}", 100.0 * hit_ratio),
                    false => format!("{group}: {applied}"),
                };
                match &self.bar {
                    Some(bar) => {
                        bar.set_position(period + 1);
                        bar.set_message(text);
                    }
                    None if self.last_line.elapsed() >= BETWEEN_LINES => {
                        tell!("  period {}: {text}", period + 1);
                        self.last_line = Instant::now();
                    }
                    None => {}
                }
            }
            Event::Note(text) => self.say(&format!("  {text}")),
            Event::Console(line) if self.console => self.say(&format!("  | {line}")),
            Event::Console(_) => {}
            Event::RunEnds => {
                if let Some(bar) = self.bar.take() {
                    bar.finish_with_message("");
                }
            }
        }
    }
}
