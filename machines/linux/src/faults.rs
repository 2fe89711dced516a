//! Fault injection for tests, into every use of a kernel file: the operation of a given number
//! fails with a given error. Outside tests the checks do nothing.
//!
//! A test counts the operations of the tested function, then runs it once for each with that one
//! failing. So steps that are added later are covered too.

#[cfg(not(test))]
pub(crate) use off::{check, made_folder, remove_folder};
#[cfg(test)]
pub(crate) use on::{check, count, inject, made_folder, on_new_folder, remove_folder};

#[cfg(not(test))]
mod off {
    use std::io;
    use std::path::Path;

    #[inline]
    pub(crate) fn check(_: &Path) -> io::Result<()> {
        Ok(())
    }

    #[inline]
    pub(crate) fn made_folder(_: &Path) {}

    #[inline]
    pub(crate) fn remove_folder(path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }
}

#[cfg(test)]
mod on {
    use std::cell::{Cell, RefCell};
    use std::io;
    use std::path::Path;

    type NewFolder = Box<dyn Fn(&Path)>;

    thread_local! {
        static OPERATIONS: Cell<usize> = const { Cell::new(0) };
        static FAULT: Cell<Option<(usize, i32)>> = const { Cell::new(None) };
        static NEW_FOLDER: RefCell<Option<NewFolder>> = const { RefCell::new(None) };
    }

    /// Counts one operation, and fails if it is its turn.
    pub(crate) fn check(_: &Path) -> io::Result<()> {
        let number = OPERATIONS.get();
        OPERATIONS.set(number + 1);
        match FAULT.get() {
            Some((at, errno)) if at == number => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(()),
        }
    }

    /// Number of operations of this thread while `act` runs, and its result.
    pub(crate) fn count<T>(act: impl FnOnce() -> T) -> (usize, T) {
        OPERATIONS.set(0);
        let result = act();
        (OPERATIONS.get(), result)
    }

    /// Runs `act` with its operation number `at` failing with `errno`.
    pub(crate) fn inject<T>(at: usize, errno: i32, act: impl FnOnce() -> T) -> T {
        FAULT.set(Some((at, errno)));
        OPERATIONS.set(0);
        let result = act();
        FAULT.set(None);
        result
    }

    /// Fills each new folder as the kernel would.
    pub(crate) fn on_new_folder(fill: impl Fn(&Path) + 'static) {
        NEW_FOLDER.set(Some(Box::new(fill)));
    }

    pub(crate) fn made_folder(path: &Path) {
        NEW_FOLDER.with_borrow(|fill| fill.iter().for_each(|fill| fill(path)));
    }

    /// Removes a kernel's folder together with the files that the kernel has put into it.
    pub(crate) fn remove_folder(path: &Path) -> io::Result<()> {
        match NEW_FOLDER.with_borrow(Option::is_some) {
            true => std::fs::remove_dir_all(path),
            false => std::fs::remove_dir(path),
        }
    }
}
