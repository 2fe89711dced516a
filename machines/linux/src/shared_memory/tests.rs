//! Tests of memory that several groups map, with made-up processes.

use proptest::prelude::*;
use terrace_core::bits::PageBits;
use terrace_core::counts::AccessCounts;
use terrace_core::page::{PageSize, SpaceId};

use super::*;
use crate::testing::{folder, put};

const PAGE: u64 = 4096;

fn layout(extents: &[(u32, u64, u64)]) -> Arc<Layout> {
    let of = |&(space, page, pages): &(u32, u64, u64)| Extent {
        space: SpaceId(space),
        start: page * PAGE,
        pages,
    };
    Arc::new(Layout::new(PageSize::Base, extents.iter().map(of).collect()).unwrap())
}

fn scan(layout: &Arc<Layout>, counts: &[u8]) -> Scan {
    let mut accessed = PageBits::new(layout.pages());
    counts.iter().enumerate().for_each(|(page, &count)| accessed.set(page, count > 0));
    let fast = PageBits::ones(layout.pages());
    let counts = AccessCounts { samples: 10, interval_us: 1000, counts: counts.into() };
    Scan::new(0, Arc::clone(layout), accessed, fast).with_counts(counts)
}

fn counts(scan: &Scan) -> Vec<u8> {
    scan.counts.as_ref().unwrap().counts.to_vec()
}

/// Two processes: each has four pages of its own, 16 to 19, and maps pages 2 to 7 of the same object,
/// one at page 32, the other at 64.
fn two() -> (tempfile::TempDir, Roots, [Arc<Layout>; 2]) {
    let maps = |at: u64| {
        format!(
            "10000-14000 rw-p 0 00:00 0\n{:x}-{:x} rw-s 2000 00:01 7 /dev/shm/x\n",
            at * PAGE,
            (at + 6) * PAGE
        )
    };
    let (keep, roots) = folder(&[("proc/1/maps", &maps(32)), ("proc/2/maps", &maps(64))]);
    let layouts = [layout(&[(1, 16, 4), (1, 32, 6)]), layout(&[(2, 16, 4), (2, 64, 6)])];
    (keep, roots, layouts)
}

#[test]
fn the_first_moves_it_by_the_accesses_of_both_and_the_next_when_it_has_gone() {
    let (_keep, roots, [one, two]) = two();
    let all = Arc::new(SharedMemory::default());
    let (mut first, mut second) = (all.join(), all.join());
    first.follow(&roots, &one).unwrap();
    second.follow(&roots, &two).unwrap();

    let (divided, left_out) = second.divide(scan(&two, &[1, 2, 3, 4, 0, 0, 0, 0, 9, 5]));
    assert_eq!((divided.layout.extents(), left_out), (&two.extents()[..1], 6));
    assert_eq!(counts(&divided), [1, 2, 3, 4]);
    // The same layout while nothing changes.
    let (again, _) = second.divide(scan(&two, &[1, 2, 3, 4, 0, 0, 0, 0, 9, 5]));
    assert!(Arc::ptr_eq(&again.layout, &divided.layout));

    let (whole, left_out) = first.divide(scan(&one, &[0, 0, 0, 1, 0, 8, 0, 0, 3, 7]));
    assert_eq!(left_out, 0);
    assert!(Arc::ptr_eq(&whole.layout, &one));
    assert_eq!(counts(&whole), [0, 0, 0, 1, 0, 8, 0, 0, 9, 7], "the hotter of both");
    assert_eq!(whole.accessed.iter_ones().collect::<Vec<_>>(), [3, 5, 8, 9]);

    drop(first);
    let (whole, left_out) = second.divide(scan(&two, &[0; 10]));
    assert_eq!((left_out, whole.layout.pages()), (0, 10));
    assert_eq!(counts(&whole), [0; 10], "nothing of one that has gone");
}

#[test]
fn one_that_no_longer_maps_it_leaves_it_to_the_other() {
    let (keep, roots, [one, two]) = two();
    let all = Arc::new(SharedMemory::default());
    let (mut first, mut second) = (all.join(), all.join());
    first.follow(&roots, &one).unwrap();
    second.follow(&roots, &two).unwrap();
    assert_eq!(second.divide(scan(&two, &[0; 10])).1, 6);
    put(keep.path(), "proc/1/maps", "10000-14000 rw-p 0 00:00 0\n");
    first.follow(&roots, &layout(&[(1, 16, 4)])).unwrap();
    assert_eq!(second.divide(scan(&two, &[0; 10])).1, 0);
    // When it maps the object again, it is the second.
    put(keep.path(), "proc/1/maps", "20000-26000 rw-s 2000 00:01 7 /dev/shm/x\n");
    first.follow(&roots, &one).unwrap();
    assert_eq!(second.divide(scan(&two, &[0; 10])).1, 0);
    assert_eq!(first.divide(scan(&one, &[0; 10])).1, 6);
}

#[test]
fn private_mappings_and_other_objects_are_nobodys_but_the_groups() {
    let (_keep, roots) = folder(&[
        ("proc/1/maps", "10000-14000 rw-p 0 08:01 7 /data\n20000-21000 rw-s 0 00:01 7 /a\n"),
        ("proc/2/maps", "10000-14000 rw-p 0 08:01 7 /data\n20000-21000 rw-s 0 00:01 8 /b\n"),
    ]);
    let all = Arc::new(SharedMemory::default());
    let mut members: Vec<Member> = [1, 2]
        .map(|pid| {
            let mut member = all.join();
            member.follow(&roots, &layout(&[(pid, 16, 4), (pid, 32, 1)])).unwrap();
            member
        })
        .into();
    for (pid, member) in (1..).zip(&mut members) {
        let layout = Arc::clone(member.followed.as_ref().unwrap());
        let (divided, left_out) = member.divide(scan(&layout, &[1; 5]));
        assert_eq!((divided.layout.pages(), left_out), (5, 0), "{pid}");
    }
}

#[test]
fn a_range_that_holds_the_end_of_a_mapping_belongs_to_what_its_middle_is_in() {
    let mapping = |start, end| process::Mapping {
        start,
        end,
        writable: true,
        executable: false,
        shared: true,
        stack: false,
        object: process::Object::default(),
        offset: 0,
    };
    let extent = Extent { space: SpaceId(1), start: 4 << 21, pages: 3 };
    let mut parts = Vec::new();
    // From a quarter of the first to three quarters of the second, and a bit of the third.
    let mappings = [
        mapping((4 << 21) + (1 << 19), (5 << 21) + 3 * (1 << 19)),
        mapping(6 << 21, (6 << 21) + 4096),
    ];
    parts_of(&extent, 10, 1 << 21, &mappings, &mut parts);
    let [part] = parts.as_slice() else { panic!("{parts:?}") };
    assert_eq!((part.pages.clone(), part.offset), (10..12, -(1 << 19)));
}

proptest! {
    /// Whatever two groups map and access: each page of an object has one that moves it, and that
    /// group's scan has the accesses of the hotter of the two.
    #[test]
    fn every_page_has_one_that_moves_it_and_knows_the_hotter(
        a in prop::collection::vec(0u8..=10, 12),
        b in prop::collection::vec(0u8..=10, 12),
        cut in 1u64..6,
    ) {
        // The first maps two objects, the second one of them, all of it in two pieces.
        let (_keep, roots) = folder(&[
            ("proc/1/maps", "20000-26000 rw-s 0 00:01 7 /x\n30000-36000 rw-s 0 00:01 8 /y\n"),
            ("proc/2/maps", &format!(
                "40000-{:x} rw-s 0 00:01 8 /y\n50000-{:x} rw-s {:x} 00:01 8 /y\n60000-66000 rw-p 0 00:00 0\n",
                0x40000 + cut * PAGE, 0x50000 + (6 - cut) * PAGE, cut * PAGE,
            )),
        ]);
        let all = Arc::new(SharedMemory::default());
        let (mut first, mut second) = (all.join(), all.join());
        let one = layout(&[(1, 32, 6), (1, 48, 6)]);
        let two = layout(&[(2, 64, cut), (2, 80, 6 - cut), (2, 96, 6)]);
        first.follow(&roots, &one).unwrap();
        second.follow(&roots, &two).unwrap();
        let (of_second, left_out) = second.divide(scan(&two, &b));
        prop_assert_eq!(left_out, 6);
        prop_assert_eq!(counts(&of_second), b[6..].to_vec());
        let (of_first, left_out) = first.divide(scan(&one, &a));
        prop_assert_eq!(left_out, 0);
        let hotter: Vec<u8> = a[6..].iter().zip(&b).map(|(&a, &b)| a.max(b)).collect();
        prop_assert_eq!(&counts(&of_first)[6..], hotter);
        prop_assert_eq!(&counts(&of_first)[..6], &a[..6]);
    }
}
