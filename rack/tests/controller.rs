//! What a controller counts: requests and pages, each once, however often they are offered again.

use terrace_rack::address::RemotePage;
use terrace_rack::config::RackConfig;
use terrace_rack::mechanism::controller::Controller;
use terrace_rack::packet::{Kind, Packet};
use terrace_rack::scheme::Scheme;

/// A controller under CPM for which every page is hot.
fn controller(page_requests: u32, pending_reads: u32) -> Controller {
    let mut config = RackConfig::default();
    config.mechanism.fixed_count = Some(1);
    config.mechanism.page_requests = page_requests;
    config.mechanism.pending_reads = pending_reads;
    Controller::new(&config, Scheme::by_name("CPM").unwrap(), 0)
}

fn read(page: u32, block: u8) -> Packet {
    Packet::new(Kind::Read, 0, RemotePage::new(0, page), block, 16)
}

#[test]
fn a_request_that_is_offered_again_is_held_back_once() {
    let mut controller = controller(4, 1);
    let mut out = Vec::new();
    controller.offer(0, read(1, 0), &mut out).unwrap();
    for now in 1..4 {
        assert!(controller.offer(now, read(1, 1), &mut out).is_err(), "one read may wait");
    }
    assert_eq!((controller.counts.held_back, controller.counts.pending), (1, 1));
    // Its block arrives: the one that was held back waits in its place, and the next is held back.
    let arrived = Packet::new(Kind::PageDataBlock, 0, RemotePage::new(0, 1), 0, 16);
    controller.answer(4, arrived, &mut out);
    controller.offer(5, read(1, 1), &mut out).unwrap();
    assert!(controller.offer(6, read(1, 2), &mut out).is_err());
    assert_eq!((controller.counts.held_back, controller.counts.pending), (2, 2));
}

#[test]
fn a_page_without_room_is_refused_once_until_it_is_requested() {
    let mut controller = controller(1, 64);
    let mut out = Vec::new();
    controller.offer(0, read(1, 0), &mut out).unwrap();
    for block in 0..5 {
        controller.offer(1, read(2, block), &mut out).unwrap();
        controller.offer(1, read(3, block), &mut out).unwrap();
    }
    assert_eq!((controller.counts.pages, controller.counts.pages_refused), (1, 2));
    // The first page is complete: the second has room when it is accessed next.
    for block in 0..64 {
        let arrived = Packet::new(Kind::PageDataBlock, 0, RemotePage::new(0, 1), block, 16);
        controller.answer(2, arrived, &mut out);
    }
    controller.offer(3, read(2, 6), &mut out).unwrap();
    controller.offer(3, read(3, 6), &mut out).unwrap();
    assert_eq!((controller.counts.pages, controller.counts.pages_refused), (2, 2));
}
