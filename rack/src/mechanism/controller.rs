//! The data path of one node's accesses through the structures in the switch (section III-E).
//!
//! [`Controller::offer`] takes a request of the node, [`Controller::answer`] an answer of a pool;
//! the packets that they send go to a list. Only `offer` can fail, in one way: it returns a request
//! for which there is no room, and the request waits in its port's buffer.

use crate::Time;
use crate::address::RemotePage;
use crate::config::{BLOCKS, FaultInjection, RackConfig, ps};
use crate::mechanism::access::{AccessController, Sizes};
use crate::mechanism::buffer::{PageBuffers, State};
use crate::mechanism::feedback::next_npm;
use crate::mechanism::pending::Pending;
use crate::mechanism::tracker::{ByPage, Threshold, Tracked, Tracker};
use crate::mechanism::training::{self, Filter};
use crate::packet::{Kind, Packet};
use crate::scheme::{Batch, Fetch, InFlight, Scheme, Trigger};

/// Counters of a controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControllerCounts {
    /// Requests of blocks answered (reads) or taken (writes) from page buffers at once.
    pub buffer_hits: u64,
    /// Requests that waited for their block.
    pub pending: u64,
    /// Requests sent on to a pool as blocks.
    pub blocks: u64,
    /// Pages requested.
    pub pages: u64,
    /// Pages of which every block arrived in its buffer, and the time from their requests until
    /// then, in picoseconds, summed.
    pub fetches: u64,
    /// Sum of these times, see `fetches`.
    pub fetch_ps: Time,
    /// Pages that became hot and had no room to be requested then, each once until it is requested.
    pub pages_refused: u64,
    /// Blocks read again because they were written meanwhile.
    pub read_again: u64,
    /// Batches migrated.
    pub batches: u64,
    /// Times that parameters were learnt.
    pub trainings: u64,
    /// Requests that had to wait in their port because a queue was full.
    pub held_back: u64,
    /// Pages dropped by their buffer because their use was spent.
    pub dropped: u64,
}

/// The switch's state for one node.
#[derive(Debug, Clone)]
pub struct Controller {
    node: usize,
    scheme: &'static Scheme,
    header_bytes: u32,
    /// Reading or writing a structure.
    lookup: Time,
    tracker: Tracker,
    /// The access controller.
    pub access: AccessController,
    /// Accesses that wait for blocks.
    pub pending: Pending,
    buffers: PageBuffers,
    /// Hot pages that wait for their batch, without buffers; `requested` is their access bit.
    hot: Vec<RemotePage>,
    requested: ByPage<()>,
    /// The batch that the node was instructed to migrate.
    batch: Vec<RemotePage>,
    /// Pages to be sent to the node block by block, and the next block of the first.
    copies: std::collections::VecDeque<(RemotePage, u8)>,
    npm: u32,
    npm_least: u32,
    npm_most: u32,
    first_npm: u32,
    threshold: Option<Threshold>,
    /// Whether thresholds are learnt and not fixed.
    learns: bool,
    /// End of the training, while it runs.
    training_until: Option<Time>,
    training: Time,
    /// Whether pages go on migrating, by the old threshold, while another is learnt.
    migrate_while_relearning: bool,
    /// Pages that became hot while another threshold is learnt: the tracker drops them.
    hot_in_training: Vec<Tracked>,
    /// Pages that had no room and were not requested since.
    refused: ByPage<()>,
    /// Whether the request that is offered next was held back before.
    holds: bool,
    filter: Filter,
    negative: u32,
    most_negative: u32,
    last_score: i32,
    count_least: u16,
    /// Time of the last score, or of the last lowering of the threshold without one.
    scored: Time,
    fault_injection: Option<FaultInjection>,
    /// The controller's counters.
    pub counts: ControllerCounts,
}

impl Controller {
    /// The controller of a node, under a scheme.
    pub fn new(config: &RackConfig, scheme: &'static Scheme, node: usize) -> Self {
        let m = &config.mechanism;
        let unbounded = scheme.in_flight == InFlight::WaitUnbounded;
        let sizes = Sizes {
            blocks: m.block_queue,
            pages: m.page_requests,
            weights: (m.block_weight, m.page_weight),
            critical_first: scheme.own.critical_first,
            adaptive: scheme.own.adaptive_share,
            header_bytes: config.network.header_bytes,
            pass_writes: config.fault_injection == Some(FaultInjection::PassWrites),
        };
        let bound = |n: u32| if unbounded { usize::MAX } else { n as usize };
        let fixed = m.fixed_count.map(|count| Threshold {
            count: count.min(u32::from(u16::MAX)) as u16,
            frequency_per_us: 0.0,
        });
        let training = ps(m.training_us * 1000.0);
        // Without buffers they bound nothing.
        let most = if scheme.buffers { m.page_buffers } else { u32::MAX };
        let npm = m.scaled(scheme.first_batch(m.npm).min(most));
        Controller {
            node,
            scheme,
            header_bytes: config.network.header_bytes,
            lookup: ps(m.lookup_ns),
            tracker: Tracker::new(m.scaled(m.tracker_entries)),
            access: AccessController::new(sizes),
            pending: Pending::new(bound(m.pending_reads), bound(m.pending_writes)),
            buffers: PageBuffers::new(m.scaled(m.page_buffers), config.check_data),
            hot: Vec::new(),
            requested: ByPage::default(),
            batch: Vec::new(),
            copies: std::collections::VecDeque::new(),
            npm,
            npm_least: m.scaled(m.npm_least),
            npm_most: m.scaled(m.page_buffers.min(m.tracker_entries)),
            first_npm: npm,
            threshold: fixed,
            learns: fixed.is_none(),
            training_until: fixed.is_none().then_some(training),
            training,
            migrate_while_relearning: m.migrate_while_relearning,
            hot_in_training: Vec::new(),
            refused: ByPage::default(),
            holds: false,
            filter: Filter {
                share: m.filter_share,
                count_factor: m.count_factor,
                count_least: m.count_least,
                frequency_factor: m.frequency_factor,
            },
            negative: 0,
            most_negative: m.negative_scores,
            last_score: 0,
            count_least: m.count_least.min(u32::from(u16::MAX)) as u16,
            scored: 0,
            fault_injection: config.fault_injection,
            counts: ControllerCounts::default(),
        }
    }

    /// Pages that migrate together now.
    pub fn npm(&self) -> u32 {
        self.npm
    }

    /// The last score that the node reported.
    pub fn score(&self) -> i32 {
        self.last_score
    }

    /// The threshold for a hot page; `None` in training.
    pub fn threshold(&self) -> Option<Threshold> {
        self.threshold
    }

    /// The value of a block in a page buffer, where data are checked.
    pub fn buffered_value(&self, page: RemotePage, block: u8) -> Option<u64> {
        self.buffers.value(page, block)
    }

    /// Pages in the buffers.
    pub fn buffered(&self) -> usize {
        self.buffers.held()
    }

    /// Takes a packet of the node, or returns it if there is no room for it: then it is the one that
    /// is offered next. Packets to send, with their delays, go to `out`.
    pub fn offer(
        &mut self,
        now: Time,
        packet: Packet,
        out: &mut Vec<(Time, Packet)>,
    ) -> Result<(), Packet> {
        match packet.kind {
            Kind::Read | Kind::Write => {
                let taken = self.block(now, packet, out);
                self.counts.held_back += u64::from(taken.is_err() && !self.holds);
                self.holds = taken.is_err();
                return taken;
            }
            Kind::Ready => self.ready(out),
            Kind::Complete => self.complete(now, out),
            Kind::Feedback => self.feedback(now, packet.value as i64 as i32),
            other => unreachable!("{other:?} offered to the controller"),
        }
        Ok(())
    }

    fn block(
        &mut self,
        now: Time,
        packet: Packet,
        out: &mut Vec<(Time, Packet)>,
    ) -> Result<(), Packet> {
        if self.scheme.trigger == Trigger::Never {
            self.counts.blocks += 1;
            out.push((0, packet));
            return Ok(());
        }
        if self.scheme.buffers && self.buffers.get(packet.page).is_some() {
            return self.buffered_block(packet, out);
        }
        match self.scheme.trigger {
            Trigger::FirstAccess => {
                // There is no alternative: the access waits until its page can be requested.
                self.request_page(now, packet.page, packet.block, out);
                self.counts.pending += 1;
                self.pending.push(packet);
                return Ok(());
            }
            Trigger::Hot => {
                // A request for the regular queue must have room there.
                if self.scheme.partition && !self.access.has_room_for_block() {
                    return Err(packet);
                }
                let tracked = self.tracker.access(now, packet.page, packet.block);
                self.learn(now);
                if self.is_hot(now, &tracked) {
                    if self.scheme.buffers {
                        if self.request_page(now, packet.page, packet.block, out) {
                            if let Some(entry) = self.buffers.get(packet.page) {
                                // The present access counts when it is served.
                                entry.used = tracked.blocks & !(1 << packet.block);
                                entry.again = tracked.again > 0;
                            }
                            return self.buffered_block(packet, out);
                        }
                    } else if self.requested.insert(packet.page.0, ()).is_none() {
                        self.hot.push(packet.page);
                        self.announce(out);
                    }
                }
            }
            Trigger::Never => {}
        }
        self.regular(packet, out);
        Ok(())
    }

    /// Sends a block request on its way to the pool.
    fn regular(&mut self, packet: Packet, out: &mut Vec<(Time, Packet)>) {
        self.counts.blocks += 1;
        if self.scheme.partition {
            self.access.push_block(packet);
        } else {
            out.push((0, packet));
        }
    }

    /// An access to a page that is buffered or being read.
    fn buffered_block(
        &mut self,
        packet: Packet,
        out: &mut Vec<(Time, Packet)>,
    ) -> Result<(), Packet> {
        let Some(entry) = self.buffers.get(packet.page) else { return Err(packet) };
        let bit = 1u64 << packet.block;
        if entry.valid & bit != 0 {
            self.counts.buffer_hits += 1;
            self.serve(Packet { buffered: true, ..packet }, out);
            return Ok(());
        }
        match self.scheme.in_flight {
            InFlight::Pass => {
                if packet.kind == Kind::Write
                    && self.fault_injection != Some(FaultInjection::IgnoreOutdated)
                {
                    entry.outdated |= bit;
                }
                self.regular(packet, out);
                Ok(())
            }
            InFlight::Wait | InFlight::WaitUnbounded => {
                if !self.pending.has_room(packet.kind) {
                    return Err(packet);
                }
                self.counts.pending += 1;
                self.pending.push(packet);
                Ok(())
            }
        }
    }

    /// Serves an access from the block in its buffer.
    fn serve(&mut self, packet: Packet, out: &mut Vec<(Time, Packet)>) {
        let Some(entry) = self.buffers.get(packet.page) else { return };
        let block = usize::from(packet.block);
        // A block that is written back was used before by the same core: no reuse.
        let bit = 1u64 << block;
        if packet.kind == Kind::Read {
            entry.again |= entry.used & bit != 0;
            entry.used |= bit;
        }
        let page = packet.page;
        if packet.kind == Kind::Write {
            debug_assert!(entry.state != State::Sent, "a write after its page was sent");
            entry.dirty |= 1 << block;
            if let Some(values) = &mut entry.values {
                values[block] = packet.value;
            }
            return;
        }
        let mut answer = packet.answer(Kind::Data, self.header_bytes);
        answer.value = entry.values.as_ref().map_or(0, |v| v[block]);
        answer.spent.switch += self.lookup;
        out.push((self.lookup, answer));
        self.drop_spent(page, out);
    }

    /// Our own: a page of which every block was read once and none again makes room without
    /// migrating. Blocks written since it arrived go back to the pool.
    fn drop_spent(&mut self, page: RemotePage, out: &mut Vec<(Time, Packet)>) {
        if !self.scheme.own.skip_spent || self.access.room_for_blocks() < BLOCKS as usize {
            return;
        }
        let Some(entry) = self.buffers.drop_spent(page) else { return };
        self.counts.dropped += 1;
        for block in (0..BLOCKS as u8).filter(|b| entry.dirty >> b & 1 != 0) {
            let mut packet = Packet::new(Kind::Write, self.node, page, block, self.header_bytes);
            packet.value = entry.values.as_ref().map_or(0, |v| v[usize::from(block)]);
            self.regular(packet, out);
        }
    }

    fn is_hot(&self, now: Time, tracked: &Tracked) -> bool {
        let Some(threshold) = self.threshold else { return false };
        if tracked.count < threshold.count || tracked.frequency(now) < threshold.frequency_per_us {
            return false;
        }
        // Our own: of a page that was used once, only the rest is worth fetching.
        let left = BLOCKS - tracked.blocks.count_ones();
        let reused = u32::from(tracked.again) * 4 >= tracked.blocks.count_ones();
        !self.scheme.own.skip_spent || reused || left >= BLOCKS / 4
    }

    /// Ends the training when its time is over.
    fn learn(&mut self, now: Time) {
        if self.scheme.own.adaptive_threshold
            && now > self.scored + 4 * self.training
            && let Some(threshold) = &mut self.threshold
        {
            // Nothing migrates: the hot pages may have changed.
            threshold.count = (threshold.count / 2).max(self.count_least);
            self.scored = now;
        }
        if self.training_until.is_none_or(|until| now < until) {
            return;
        }
        let mut seen: Vec<Tracked> = self.tracker.all().into_iter().map(|(_, t)| t).collect();
        seen.append(&mut self.hot_in_training);
        if let Some(threshold) = training::threshold(now, &seen, self.filter) {
            self.threshold = Some(threshold);
            self.training_until = None;
            self.counts.trainings += 1;
        }
    }

    /// Requests a page, if there is room for it.
    fn request_page(
        &mut self,
        now: Time,
        page: RemotePage,
        demanded: u8,
        out: &mut Vec<(Time, Packet)>,
    ) -> bool {
        if !self.access.has_room_for_page() || !self.buffers.has_room() {
            self.counts.pages_refused += u64::from(self.refused.insert(page.0, ()).is_none());
            return false;
        }
        self.refused.remove(&page.0);
        self.counts.pages += 1;
        if self.training_until.is_some() {
            self.hot_in_training.extend(self.tracker.get(page));
        }
        self.buffers.reserve(now, page);
        self.tracker.forget(page);
        let generate = self.scheme.fetch == Fetch::Blocks;
        self.access.begin_page(page, demanded, generate);
        if !generate {
            out.push((0, Packet::new(Kind::PageRead, self.node, page, 0, self.header_bytes)));
        }
        true
    }

    /// Handles an answer of a pool that is not simply for the node.
    pub fn answer(&mut self, now: Time, packet: Packet, out: &mut Vec<(Time, Packet)>) {
        let page = packet.page;
        match packet.kind {
            Kind::PageDataBlock => self.fill(now, page, packet.block, packet.value, out),
            Kind::PageData => {
                for block in 0..BLOCKS as u8 {
                    let value = packet.values.as_ref().map_or(0, |v| v[usize::from(block)]);
                    self.fill(now, page, block, value, out);
                }
            }
            other => unreachable!("{other:?} answered to the controller"),
        }
        if let Some(requested) = self.buffers.settle(page) {
            self.counts.fetches += 1;
            self.counts.fetch_ps += now - requested;
            self.access.end_page();
            self.drop_spent(page, out);
            self.announce(out);
            self.request_waiting(now, out);
        }
    }

    fn fill(
        &mut self,
        now: Time,
        page: RemotePage,
        block: u8,
        value: u64,
        out: &mut Vec<(Time, Packet)>,
    ) {
        if !self.buffers.fill(page, block, value) {
            self.counts.read_again += 1;
            let again = Packet::new(Kind::PageReadBlock, self.node, page, block, self.header_bytes);
            out.push((0, again));
            return;
        }
        while let Some(mut packet) = self.pending.pop(page, block) {
            packet.spent.queue += now - packet.queued;
            if packet.kind == Kind::Write
                && self.fault_injection == Some(FaultInjection::LosePendingWrites)
            {
                continue;
            }
            self.serve(packet, out);
        }
    }

    /// Without remote blocks: requests the pages of accesses that had no room.
    fn request_waiting(&mut self, now: Time, out: &mut Vec<(Time, Packet)>) {
        if self.scheme.in_flight != InFlight::WaitUnbounded {
            return;
        }
        while self.access.has_room_for_page() && self.buffers.has_room() {
            let buffers = &mut self.buffers;
            let Some((page, block)) = self.pending.first(|page| buffers.get(page).is_none()) else {
                break;
            };
            self.request_page(now, page, block, out);
        }
    }

    /// Instructs the node to migrate, if a batch is complete and it is not busy with another.
    fn announce(&mut self, out: &mut Vec<(Time, Packet)>) {
        let npm = self.npm as usize;
        if !self.batch.is_empty() {
            return;
        }
        if self.scheme.buffers {
            // Our own: pages that are used again migrate; others only to make room.
            if self.scheme.own.skip_spent && self.buffers.has_room_for(npm) {
                self.batch = self.buffers.announce_reused(npm);
                if self.batch.is_empty() {
                    return;
                }
            } else if self.buffers.ready() < npm {
                return;
            } else {
                self.batch = self.buffers.announce(npm);
            }
        } else {
            if self.hot.len() < npm {
                return;
            }
            self.batch = self.hot.drain(..npm).collect();
        }
        self.counts.batches += 1;
        let first = self.batch[0];
        let mut packet = Packet::new(Kind::Migrate, self.node, first, 0, self.header_bytes);
        packet.bytes += Kind::Migrate.data_bytes(self.batch.len());
        packet.pages = Some(self.batch.clone().into());
        out.push((0, packet));
    }

    /// The node's translations are changed: sends its pages to it.
    fn ready(&mut self, out: &mut Vec<(Time, Packet)>) {
        for &page in &self.batch {
            if !self.scheme.buffers {
                self.counts.pages += 1;
                out.push((0, Packet::new(Kind::PageRead, self.node, page, 0, self.header_bytes)));
            } else if self.scheme.partition {
                self.buffers.send(page);
                self.copies.push_back((page, 0));
            } else if let Some(entry) = self.buffers.send(page) {
                let mut packet = Packet::new(Kind::PageData, self.node, page, 0, self.header_bytes);
                packet.values = entry.values.clone();
                out.push((0, packet));
            }
        }
    }

    /// Whether pages wait to be sent to the node block by block.
    pub fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    /// The next block of a page that is sent to the node.
    pub fn next_copy(&mut self) -> Option<Packet> {
        let (page, block) = self.copies.front_mut()?;
        let (page, sent) = (*page, *block);
        *block += 1;
        if u32::from(*block) == BLOCKS {
            self.copies.pop_front();
        }
        let mut packet = Packet::new(Kind::PageDataBlock, self.node, page, sent, self.header_bytes);
        let values = self.buffers.get(page).and_then(|e| e.values.as_ref());
        packet.value = values.map_or(0, |v| v[usize::from(sent)]);
        Some(packet)
    }

    /// The batch is in the node's memory.
    fn complete(&mut self, now: Time, out: &mut Vec<(Time, Packet)>) {
        for page in std::mem::take(&mut self.batch) {
            self.buffers.release(page);
            self.requested.remove(&page.0);
            self.tracker.forget(page);
        }
        self.announce(out);
        self.request_waiting(now, out);
    }

    fn feedback(&mut self, now: Time, score: i32) {
        self.last_score = score;
        self.scored = now;
        if self.scheme.own.adaptive_threshold
            && let Some(threshold) = &mut self.threshold
        {
            threshold.count = match score {
                s if s < 0 => threshold.count.saturating_mul(2),
                _ => (threshold.count / 2).max(self.count_least),
            };
        }
        if self.scheme.batch != Batch::Feedback {
            return;
        }
        self.npm = next_npm(self.npm, score, self.npm_most);
        if self.scheme.own.adaptive_threshold {
            self.npm = self.npm.max(self.npm_least);
            return;
        }
        self.negative = if score < 0 { self.negative + 1 } else { 0 };
        if self.npm < self.npm_least || self.negative >= self.most_negative {
            // Re-initialisation (section III-G2).
            self.npm = self.first_npm;
            self.negative = 0;
            if self.learns && self.training_until.is_none() {
                if !self.migrate_while_relearning {
                    self.threshold = None;
                }
                self.tracker.clear();
                self.training_until = Some(now + self.training);
            }
        }
    }
}
