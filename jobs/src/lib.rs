//! Work of many parts on several threads.
//!
//! **Owns** the order: parts begin in the order of the items, and results are given in that order,
//! whatever ended first, so that nothing depends on the number of threads. **Must not know** what
//! the work is.
//!
//! - [`in_turn`]: each result is taken on the calling thread when its turn has come;
//! - [`try_all`], [`all`]: all results at the end.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

/// Does `work` for every item, `jobs` at a time (at least 1), and gives the results with the numbers
/// of their items to `take`, on the calling thread and in the order of the items. Only results that
/// wait for one before them are kept.
///
/// # Errors
/// After an error of `work` or `take` no further item is begun; those that are under way end first.
/// Of several errors of `work` the one of the first item is returned.
///
/// # Panics
/// When `work` panics.
pub fn in_turn<T: Sync, R: Send, E: Send>(
    items: &[T],
    jobs: usize,
    work: impl Fn(&T) -> Result<R, E> + Sync,
    mut take: impl FnMut(usize, R) -> Result<(), E>,
) -> Result<(), E> {
    let jobs = jobs.clamp(1, items.len().max(1));
    if jobs == 1 {
        return items.iter().enumerate().try_for_each(|(n, item)| take(n, work(item)?));
    }
    let next = AtomicUsize::new(0);
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(number) else { return };
                    let result = work(item);
                    if result.is_err() {
                        next.store(items.len(), Ordering::Relaxed);
                    }
                    if sender.send((number, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut waiting = BTreeMap::new();
        let mut turn = 0;
        let mut failed: Option<(usize, E)> = None;
        for (number, result) in receiver {
            match result {
                Ok(result) => drop(waiting.insert(number, result)),
                Err(error) if failed.as_ref().is_none_or(|(first, _)| number < *first) => {
                    failed = Some((number, error));
                }
                Err(_) => {}
            }
            while let Some(result) = waiting.remove(&turn) {
                if let Err(error) = take(turn, result) {
                    next.store(items.len(), Ordering::Relaxed);
                    return Err(error);
                }
                turn += 1;
            }
        }
        failed.map_or(Ok(()), |(_, error)| Err(error))
    })
}

/// Does `work` for every item, `jobs` at a time; the results in the order of the items.
///
/// # Errors
/// As of [`in_turn`].
pub fn try_all<T: Sync, R: Send, E: Send>(
    items: &[T],
    jobs: usize,
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let mut results = Vec::with_capacity(items.len());
    in_turn(items, jobs, work, |_, result| {
        results.push(result);
        Ok(())
    })?;
    Ok(results)
}

/// [`try_all`] of work that cannot fail.
pub fn all<T: Sync, R: Send>(items: &[T], jobs: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let Ok(results) = try_all(items, jobs, |item| Ok::<R, Infallible>(work(item)));
    results
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        for jobs in [0, 1, 3, 200] {
            let squares = all(&items, jobs, |n| n * n);
            assert_eq!(squares, items.iter().map(|n| n * n).collect::<Vec<_>>());
        }
        assert!(all(&[], 4, |n: &u64| *n).is_empty());
    }

    #[test]
    fn results_are_taken_in_turn_on_the_calling_thread() {
        let here = std::thread::current().id();
        let mut numbers = Vec::new();
        let taken = in_turn(
            &[5, 0, 3, 1],
            4,
            |&n| Ok::<_, ()>(n * 2),
            |number, result| {
                assert_eq!(std::thread::current().id(), here);
                numbers.push((number, result));
                Ok(())
            },
        );
        assert_eq!((taken, numbers), (Ok(()), vec![(0, 10), (1, 0), (2, 6), (3, 2)]));
    }

    #[test]
    fn after_an_error_nothing_is_begun_and_the_first_items_error_is_returned() {
        for jobs in [1, 2, 8] {
            let begun = AtomicU64::new(0);
            let items: Vec<u64> = (0..1000).collect();
            let done = try_all(&items, jobs, |&n| {
                begun.fetch_add(1, Ordering::Relaxed);
                if n >= 10 { Err(n) } else { Ok(n) }
            });
            assert_eq!(done, Err(10), "{jobs} jobs");
            assert!(begun.into_inner() <= 11 + 2 * jobs as u64);
        }
    }

    #[test]
    fn an_error_of_the_taker_ends_the_work() {
        for jobs in [1, 4] {
            let mut taken = 0;
            let done = in_turn(
                &[1; 100],
                jobs,
                |&n| Ok(n),
                |number, n| {
                    taken += n;
                    if number == 3 { Err("full") } else { Ok(()) }
                },
            );
            assert_eq!((done, taken), (Err("full"), 4));
        }
    }
}
