//! Choosing and taking windows: one pass over a program's references.
//!
//! The program is cut into equal parts, and one window is taken at a random place of each.

use rand_core::RngCore;
use rand_pcg::Pcg64;
use terrace_recordings::source::SourceError;
use terrace_recordings::windows::{Window, WindowStep};

use super::super::source::{Access, AccessKind, ReferenceSource, Step};
use super::lines::Lines;
use super::{kept, written};

/// The stream of a seed from which places are drawn.
const STREAM: u128 = 0x77;

/// Which windows are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Windows.
    pub windows: u64,
    /// Loads and stores of each that are measured.
    pub window_references: u64,
    /// Loads and stores before them.
    pub lead_references: u64,
    /// Lines of each, at most.
    pub lines: u64,
    /// Seed of their places.
    pub seed: u64,
}

impl Choice {
    /// Loads and stores of a window with its lead.
    pub fn window_and_lead(&self) -> u64 {
        self.window_references.saturating_add(self.lead_references)
    }

    /// Where windows begin in a program of so many references, in order. None overlap.
    fn positions(&self, references: u64) -> Vec<u64> {
        let mut random = Pcg64::new(self.seed.into(), STREAM);
        let part =
            |n: u64| (u128::from(references) * u128::from(n) / u128::from(self.windows)) as u64;
        let place = |n| {
            let (start, end) = (part(n), part(n + 1));
            let room = (end - start).saturating_sub(self.window_and_lead());
            let drawn = u128::from(random.next_u64()) * (u128::from(room) + 1);
            start + (drawn >> 64) as u64
        };
        (0..self.windows).map(place).collect()
    }
}

/// Loads and stores of a program.
pub fn count(source: &mut dyn ReferenceSource) -> Result<u64, SourceError> {
    let mut references = 0;
    loop {
        match source.next_step()? {
            Step::Accesses(block) => references += block.len() as u64,
            Step::Ended => return Ok(references),
            _ => {}
        }
    }
}

/// Takes windows from a program of so many references and passes them to `give`, in order. Returns
/// the steps after the last.
pub fn take<E: From<SourceError>>(
    source: &mut dyn ReferenceSource,
    references: u64,
    choice: &Choice,
    give: &mut dyn FnMut(&Window) -> Result<(), E>,
) -> Result<Vec<WindowStep>, E> {
    let positions = choice.positions(references);
    let mut taker = Taker {
        choice,
        next: positions.into_iter().peekable(),
        made: 0,
        lines: Lines::new(),
        before: Vec::new(),
        open: None,
        left: 0,
    };
    loop {
        match source.next_step()? {
            Step::Accesses(block) => {
                for access in &block {
                    if let Some(window) = taker.access(access) {
                        give(&window)?;
                    }
                }
            }
            Step::Ended => break,
            step => taker.step(&step),
        }
    }
    match taker.open.is_none() && taker.next.peek().is_none() {
        true => Ok(taker.before),
        false => Err(SourceError(format!(
            "the program made {} references; expected {references}, as many as the time before",
            taker.made
        ))
        .into()),
    }
}

struct Taker<'a, I: Iterator<Item = u64>> {
    choice: &'a Choice,
    next: std::iter::Peekable<I>,
    /// References so far.
    made: u64,
    lines: Lines,
    /// Steps since the last window.
    before: Vec<WindowStep>,
    /// The window under way.
    open: Option<Window>,
    /// References that it lacks.
    left: u64,
}

impl<I: Iterator<Item = u64>> Taker<'_, I> {
    /// One access; the window that it completes.
    #[inline]
    fn access(&mut self, access: &Access) -> Option<Window> {
        if self.next.peek() == Some(&self.made) {
            self.begin();
        }
        self.made += 1;
        let store = matches!(access.kind, AccessKind::Store);
        let is_first = self.lines.reference(access.address, access.size, access.thread, store);
        let Some(window) = &mut self.open else {
            if is_first {
                self.before.push(WindowStep::Access(written(access)));
            }
            return None;
        };
        window.steps.push(WindowStep::Access(written(access)));
        self.left -= 1;
        match self.left {
            0 => self.open.take(),
            _ => None,
        }
    }

    #[cold]
    fn begin(&mut self) {
        self.next.next();
        self.left = self.choice.window_and_lead();
        self.open = Some(Window {
            position: self.made,
            before: std::mem::take(&mut self.before),
            lines: self.lines.latest(self.choice.lines as usize),
            steps: Vec::with_capacity(self.left as usize),
        });
    }

    fn step(&mut self, step: &Step) {
        if let Step::Map { start, size_bytes, .. } | Step::Unmap { start, size_bytes } = *step {
            self.lines.forget(start, size_bytes);
        }
        let steps = match &mut self.open {
            Some(window) => &mut window.steps,
            None => &mut self.before,
        };
        steps.extend(kept(step));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::source::{AccessKind, Piped};
    use super::*;

    const CHOICE: Choice =
        Choice { windows: 4, window_references: 20, lead_references: 5, lines: 8, seed: 3 };

    #[test]
    fn there_is_a_window_in_each_part_and_none_reaches_into_the_next() {
        for seed in 0..50 {
            let choice = Choice { seed, ..CHOICE };
            for (n, position) in choice.positions(1003).into_iter().enumerate() {
                let part = |n: usize| (1003 * n / 4) as u64;
                assert!(position >= part(n) && position + 25 <= part(n + 1), "{position}");
            }
        }
        let places = |seed| Choice { seed, ..CHOICE }.positions(1 << 40);
        assert_ne!(places(1), places(2));
        assert_eq!(places(1), places(1));
        assert_eq!(CHOICE.positions(100), [0, 25, 50, 75]);
    }

    /// One access to a page of its own, each.
    fn source(pages: u64) -> Piped {
        Piped::start(1, None, move |pipe| {
            let map = Step::Map { start: 0, size_bytes: pages << 12, huge_eligible: false };
            let _ = pipe.step(map);
            for page in 0..pages {
                let kind = AccessKind::Load;
                let access =
                    Access { address: page << 12, instructions: 1, thread: 0, size: 8, kind };
                let _ = pipe.access(access);
            }
            Ok(())
        })
    }

    #[test]
    fn windows_and_what_comes_between_are_the_whole_program() {
        let mut pages = Vec::new();
        let mut see = |steps: &[WindowStep]| {
            pages.extend(steps.iter().filter_map(|step| match step {
                WindowStep::Access(access) => Some(access.address >> 12),
                _ => None,
            }));
        };
        assert_eq!(count(&mut source(1000)).unwrap(), 1000);
        let mut windows = 0;
        let tail = take::<SourceError>(&mut source(1000), 1000, &CHOICE, &mut |window| {
            see(&window.before);
            see(&window.steps);
            windows += 1;
            let last = window.position.saturating_sub(8)..window.position;
            let lines: Vec<u64> = window.lines.iter().map(|line| line.address >> 12).collect();
            assert_eq!(lines, last.collect::<Vec<_>>());
            Ok(())
        });
        see(&tail.unwrap());
        assert_eq!(windows, 4);
        assert_eq!(pages, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_program_that_makes_fewer_references_the_second_time_is_refused() {
        let got = take::<SourceError>(&mut source(700), 1000, &CHOICE, &mut |_| Ok(()));
        let error = got.unwrap_err().0;
        assert!(error.contains("700 references; expected 1000"), "{error}");
    }
}
