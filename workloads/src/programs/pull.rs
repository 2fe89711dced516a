//! A traced program as an iterator, for machines that pull their references: the program runs on
//! a thread of its own and waits when it is some blocks ahead. Memory is bounded, and dropping
//! the iterator ends the program.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::sink::{Mark, Reference, Region, Sink};
use super::{Params, ProgramError, ProgramResult, find, trace};

/// One event of a traced program, in program order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new region; before the first reference to it.
    Region(Region),
    /// A beginning or end of a phase.
    Mark(Mark),
    /// Some references, one at least.
    References(Vec<Reference>),
}

/// Events that the program may be ahead: with 4,096 references a block, 4 MB.
const AHEAD: usize = 64;

/// The events of a running program.
pub struct Events {
    events: Option<Receiver<Event>>,
    program: Option<JoinHandle<Result<Option<ProgramResult>, ProgramError>>>,
}

struct Sender(SyncSender<Event>);

impl Sink for Sender {
    fn reference(&mut self, reference: &Reference) -> ControlFlow<()> {
        self.references(std::slice::from_ref(reference))
    }

    fn references(&mut self, block: &[Reference]) -> ControlFlow<()> {
        if block.is_empty() {
            return ControlFlow::Continue(());
        }
        match self.0.send(Event::References(block.to_vec())) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    // When the receiver is gone, the next reference ends the program.
    fn region(&mut self, region: &Region) {
        let _ = self.0.send(Event::Region(region.clone()));
    }

    fn mark(&mut self, mark: &Mark) {
        let _ = self.0.send(Event::Mark(*mark));
    }
}

/// Starts a traced program. A name or parameters that it cannot accept are rejected here or by
/// [`Events::finish`].
pub fn events(name: &str, params: &Params) -> Result<Events, ProgramError> {
    find(name, params)?;
    let (sender, receiver) = sync_channel(AHEAD);
    let (name, params) = (name.to_owned(), params.clone());
    let program = std::thread::spawn(move || trace(&name, &params, &mut Sender(sender)));
    Ok(Events { events: Some(receiver), program: Some(program) })
}

impl Events {
    /// Ends the program, if it still runs, and returns its result; `None` if it had not reached its
    /// end.
    ///
    /// # Panics
    /// When the program panicked.
    pub fn finish(mut self) -> Result<Option<ProgramResult>, ProgramError> {
        self.events = None;
        match self.program.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(None),
        }
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.events.as_ref()?.recv().ok()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.events = None;
        if let Some(program) = self.program.take() {
            // The result is discarded.
            let _ = program.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::phase;
    use super::super::sink::Counter;
    use super::*;

    #[test]
    fn events_are_those_of_the_trace() {
        let params = Params::new(2 << 20, 7);
        let mut pushed = Counter::default();
        let result = trace("stream", &params, &mut pushed).unwrap().unwrap();
        let mut pulled = Counter::default();
        let mut events = events("stream", &params).unwrap();
        for event in events.by_ref() {
            match event {
                Event::Region(region) => pulled.region(&region),
                Event::Mark(mark) => pulled.mark(&mark),
                Event::References(block) => assert!(pulled.references(&block).is_continue()),
            }
        }
        assert_eq!(pulled, pushed);
        assert_eq!(events.finish().unwrap().unwrap().checksum, result.checksum);
    }

    #[test]
    fn dropping_the_iterator_ends_the_program() {
        // Long enough to outlast the test if it is not ended.
        let options = serde_json::json!({"iterations": 1_000_000});
        let params = Params { options, ..Params::new(4 << 20, 7) };
        let mut events = events("stream", &params).unwrap();
        let main = |e: &Event| matches!(e, Event::Mark(mark) if mark.phase == phase::MAIN);
        assert!(events.any(|e| main(&e)));
        assert_eq!(events.finish().unwrap(), None);
    }

    #[test]
    fn what_the_program_refuses_is_refused() {
        assert!(events("nosuch", &Params::new(4 << 20, 7)).is_err());
        let options = serde_json::json!({"iterations": 0});
        let params = Params { options, ..Params::new(4 << 20, 7) };
        let events = events("stream", &params).unwrap();
        assert!(events.finish().unwrap_err().to_string().starts_with("stream: iterations 0"));
    }
}
