//! Windows of a program: short parts at random places, from which the time of the whole is
//! estimated.
//!
//! They are taken in one pass over the program's references, which simulates nothing, and kept in a
//! file ([`terrace_recordings::windows`]). What they hold is of no machine in particular, so that
//! one file serves machines of any caches, TLBs, latencies and shares of fast memory.
//!
//! - `lines`: the lines that a program used last;
//! - [`mod@take`]: choosing and taking windows;
//! - [`play`]: simulating them.

mod lines;
pub mod play;
pub mod take;

pub use play::{Played, Player, lines_for, source};
pub use take::{Choice, count, take};

use terrace_recordings::windows::{Kind, WindowAccess, WindowStep};

use super::source::{Access, AccessKind, Step};

fn written(access: &Access) -> WindowAccess {
    WindowAccess {
        address: access.address,
        instructions: access.instructions,
        thread: access.thread,
        size: access.size.max(1),
        kind: match access.kind {
            AccessKind::Load => Kind::Load,
            AccessKind::DependentLoad => Kind::DependentLoad,
            AccessKind::Store => Kind::Store,
        },
    }
}

fn read(access: &WindowAccess) -> Access {
    Access {
        address: access.address,
        instructions: access.instructions,
        thread: access.thread,
        size: access.size,
        kind: match access.kind {
            Kind::Load => AccessKind::Load,
            Kind::DependentLoad => AccessKind::DependentLoad,
            Kind::Store => AccessKind::Store,
        },
    }
}

/// A step other than accesses and the end, as it is kept.
fn kept(step: &Step) -> Option<WindowStep> {
    Some(match *step {
        Step::Map { start, size_bytes, huge_eligible } => {
            WindowStep::Map { start, size_bytes, huge_eligible }
        }
        Step::Unmap { start, size_bytes } => WindowStep::Unmap { start, size_bytes },
        Step::Barrier => WindowStep::Barrier,
        Step::MainBegins => WindowStep::MainBegins,
        Step::Accesses(_) | Step::Ended => return None,
    })
}
