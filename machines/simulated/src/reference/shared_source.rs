//! One source for several machines: the program runs, or the recording is decoded, once.
//!
//! Every machine sees the steps that the source gives, in its blocks. The machines run on threads of
//! their own, each at its own pace: the fastest is at most `AHEAD` steps before the slowest,
//! so memory is bounded. A machine that drops its end no longer counts.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use terrace_recordings::source::SourceError;

use super::source::{AHEAD, ReferenceSource, Step};

type Shown = Result<Step, SourceError>;

/// A source for each of `machines`, all with the steps of this one.
pub fn shared(source: Box<dyn ReferenceSource>, machines: usize) -> Vec<Box<dyn ReferenceSource>> {
    let (threads, footprint_bytes) = (source.threads(), source.footprint_bytes());
    let (senders, ends): (Vec<_>, Vec<_>) = (0..machines)
        .map(|_| {
            let (sender, receiver) = sync_channel(AHEAD);
            let end: Box<dyn ReferenceSource> =
                Box::new(End { threads, footprint_bytes, receiver });
            (sender, end)
        })
        .unzip();
    // It ends with the source, or when the last of the ends is dropped.
    std::thread::spawn(move || pass_on(source, senders));
    ends
}

/// Gives each step to everyone who is still there.
fn pass_on(mut source: Box<dyn ReferenceSource>, mut senders: Vec<SyncSender<Shown>>) {
    while !senders.is_empty() {
        let step = source.next_step();
        let is_last = matches!(step, Ok(Step::Ended) | Err(_));
        senders.retain(|sender| sender.send(step.clone()).is_ok());
        if is_last {
            return;
        }
    }
}

/// One machine's end.
struct End {
    threads: usize,
    footprint_bytes: Option<u64>,
    receiver: Receiver<Shown>,
}

impl ReferenceSource for End {
    fn threads(&self) -> usize {
        self.threads
    }

    fn footprint_bytes(&self) -> Option<u64> {
        self.footprint_bytes
    }

    fn next_step(&mut self) -> Result<Step, SourceError> {
        self.receiver.recv().unwrap_or_else(|_| {
            Err(SourceError("the source that several machines share stopped".into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::{Access, AccessKind, BLOCK, Piped};
    use super::*;

    /// A source of so many blocks, and of an error after them if `breaks`.
    fn source(blocks: usize, breaks: bool) -> Box<dyn ReferenceSource> {
        Box::new(Piped::start(3, Some(4096), move |pipe| {
            for address in 0..(blocks * BLOCK) as u64 {
                let kind = AccessKind::Load;
                let access = Access { address, instructions: 1, thread: 0, size: 8, kind };
                if pipe.access(access).is_err() {
                    return Ok(());
                }
            }
            if breaks { Err(SourceError("broken".into())) } else { Ok(()) }
        }))
    }

    fn steps(end: &mut dyn ReferenceSource) -> Result<Vec<Step>, SourceError> {
        let mut steps = Vec::new();
        loop {
            match end.next_step()? {
                Step::Ended => return Ok(steps),
                step => steps.push(step),
            }
        }
    }

    #[test]
    fn everyone_sees_all_steps_in_the_blocks_of_the_source() {
        let blocks = 3 * AHEAD;
        let alone = steps(&mut *source(blocks, false)).unwrap();
        let ends = shared(source(blocks, false), 3);
        let reported: Vec<_> = ends.iter().map(|e| (e.threads(), e.footprint_bytes())).collect();
        assert_eq!(reported, [(3, Some(4096)); 3]);
        let seen = std::thread::scope(|scope| {
            let readers: Vec<_> =
                ends.into_iter().map(|mut end| scope.spawn(move || steps(&mut *end))).collect();
            readers.into_iter().map(|r| r.join().unwrap().unwrap()).collect::<Vec<_>>()
        });
        assert!(seen.iter().all(|steps| *steps == alone));
    }

    #[test]
    fn everyone_gets_the_error_of_the_source() {
        for mut end in shared(source(1, true), 2) {
            assert_eq!(steps(&mut *end).unwrap_err().0, "broken");
        }
    }

    #[test]
    fn one_that_leaves_holds_nobody_up() {
        let mut ends = shared(source(3 * AHEAD, false), 2);
        let mut stays = ends.pop().unwrap();
        drop(ends);
        assert_eq!(steps(&mut *stays).unwrap().len(), 3 * AHEAD);
    }
}
