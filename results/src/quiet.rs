//! Panics of a library on damaged input, turned into errors and kept off the screen.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is expected.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// What `work` returns, or `None` when it panics, which is then not reported on standard error.
/// Panics of other threads, and of this one outside `work`, are reported as before.
pub fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                report(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    // `work`'s values are dropped by the panic; nothing of them is used afterwards.
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_none_and_a_value_comes_through() {
        assert_eq!(quietly(|| 7), Some(7));
        assert_eq!(quietly(|| -> u32 { panic!("on damaged input") }), None);
        assert!(!QUIET.get(), "later panics would not be reported");
    }
}
