//! Tests of the time until a failed group is tried again.

use super::*;

#[test]
fn a_group_that_was_served_since_its_last_failure_is_tried_again_soon() {
    let begin = Instant::now();
    let failure = |wait: Duration| Failure { reason: String::new(), until: begin, wait };
    let mut waits = vec![wait_after(None, begin)];
    // It fails again at once, each time.
    for _ in 0..8 {
        let last = failure(waits[waits.len() - 1]);
        waits.push(wait_after(Some(&last), begin + Duration::from_secs(1)));
    }
    let seconds: Vec<u64> = waits.iter().map(Duration::as_secs).collect();
    assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
    let served = begin + LAST_RETRY + Duration::from_secs(1);
    assert_eq!(wait_after(Some(&failure(LAST_RETRY)), served), FIRST_RETRY);
}
