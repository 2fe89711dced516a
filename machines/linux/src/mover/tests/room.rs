//! Tests of what the mover reports of room and headroom on fast nodes.

use super::*;

#[test]
fn pages_on_the_processors_lists_are_not_given_up_for_again() {
    let zones = "Node 0, zone    DMA32\n  pages free     100\n        low      100\n\
        \x20       managed  100000\n  pagesets\n    cpu: 0\n              count: 100\n";
    let (_keep, roots) = folder(&[("proc/zoneinfo", zones)]);
    let session = Arc::new(Session::open(&roots, None).unwrap());
    let lacks =
        |lacking_bytes| Headroom { wanted_bytes: 4 << 20, lacking_bytes, ..Headroom::default() };
    let of = |lacking_bytes, lists| {
        let world = World { headroom: lacks(lacking_bytes), ..World::default() };
        mover(world, Duration::from_secs(1)).0.emptying(lists).headroom()
    };
    let lists = || Some(FreeLists::new(&roots, Arc::clone(&session)));
    assert_eq!(of(3 << 20, None), lacks(3 << 20));
    assert_eq!(of(3 << 20, lists()), lacks((3 << 20) - (100 << 12)));
    assert_eq!(of(0, lists()), lacks(0));
}

#[test]
fn room_is_that_of_all_fast_nodes_and_unknown_where_that_of_one_is() {
    let of = |fast: Vec<u32>, room_bytes| {
        let headroom = Headroom { wanted_bytes: 4 << 20, lacking_bytes: 0, room_bytes };
        let mut mover = mover(World { headroom, ..World::default() }, Duration::from_secs(1)).0;
        mover.nodes.fast = fast;
        mover.headroom().room_bytes
    };
    assert_eq!((of(vec![0], Some(5)), of(vec![0, 2], Some(5))), (Some(5), Some(10)));
    assert_eq!((of(vec![0], None), of(vec![0, 2], None)), (None, None));
    assert_eq!(of(vec![0, 2], Some(u64::MAX)), Some(u64::MAX));
}
