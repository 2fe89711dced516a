//! A kernel of two nodes that behaves as `do_pages_move` does, with faults on request.

use super::*;

/// Stands for a node in calls that exchange.
pub(super) const EXCHANGE: u32 = 99;

/// A kernel of two nodes, 0 fast and 1 slow, that behaves as do_pages_move does.
#[derive(Default)]
pub(super) struct World {
    pub(super) place: BTreeMap<u64, i32>,
    /// Pages whose move fails inside the call, which ends the call early.
    pub(super) stuck: Vec<u64>,
    /// Pages that are refused with this errno in their status.
    pub(super) refused: BTreeMap<u64, i32>,
    /// Pages that are reported as moved and are not.
    pub(super) liars: Vec<u64>,
    pub(super) room_bytes: BTreeMap<u32, u64>,
    pub(super) call_error: Option<i32>,
    pub(super) allowed: Option<Vec<u32>>,
    pub(super) gone: bool,
    /// Whether pages can be exchanged; pairs with a refused page cannot.
    pub(super) exchanges: bool,
    pub(super) now: Duration,
    pub(super) per_page: Duration,
    pub(super) calls: Vec<(u32, Vec<u64>)>,
    /// Bytes by which free memory is below the watermark from which room is counted.
    pub(super) deficit_bytes: u64,
    /// What of node 0 is to stay free, and how much of it is missing.
    pub(super) headroom: Headroom,
    /// Other programs take freed memory at once.
    pub(super) thief: bool,
    /// An event after so many calls.
    pub(super) later: Option<(usize, Later)>,
}

/// An event in the middle of a plan.
pub(super) enum Later {
    /// The run is to stop.
    Stop(Arc<AtomicBool>),
    /// The process ends and another gets its identifier.
    Reused,
    /// Its cpuset is changed to these nodes.
    Cpuset(Vec<u32>),
}

impl World {
    pub(super) fn called(&mut self, node: u32, addresses: Vec<u64>) {
        self.calls.push((node, addresses));
        match &self.later {
            Some((after, Later::Stop(stop))) if self.calls.len() >= *after => {
                stop.store(true, Ordering::Relaxed);
            }
            Some((after, Later::Cpuset(nodes))) if self.calls.len() >= *after => {
                self.allowed = Some(nodes.clone());
            }
            _ => {}
        }
    }

    pub(super) fn is_reused(&self) -> bool {
        matches!(self.later, Some((after, Later::Reused)) if self.calls.len() >= after)
    }

    pub(super) fn room(&mut self, node: u32) -> &mut u64 {
        self.room_bytes.entry(node).or_insert(u64::MAX)
    }
}

#[derive(Clone, Default)]
pub(super) struct Fake(pub(super) Arc<Mutex<World>>);

impl PageKernel for Fake {
    fn headroom(&mut self, _: u32) -> Headroom {
        self.0.lock().unwrap().headroom
    }

    fn locate(&mut self, _: u32, addresses: &[u64], status: &mut [i32]) -> io::Result<()> {
        let world = self.0.lock().unwrap();
        for (a, s) in addresses.iter().zip(status) {
            *s = world.place.get(a).copied().unwrap_or(-libc::ENOENT);
        }
        Ok(())
    }

    fn migrate(
        &mut self,
        _: u32,
        addresses: &[u64],
        node: u32,
        status: &mut [i32],
    ) -> io::Result<u64> {
        let mut world = self.0.lock().unwrap();
        world.called(node, addresses.to_vec());
        let time = world.per_page * addresses.len() as u32;
        world.now += time;
        if let Some(errno) = world.call_error {
            return Err(io::Error::from_raw_os_error(errno));
        }
        // Pages gather until one is refused, then they are moved together.
        let mut begin = 0;
        for i in 0..=addresses.len() {
            let refused = addresses.get(i).and_then(|a| world.refused.get(a).copied());
            if i < addresses.len() && refused.is_none() {
                continue;
            }
            let mut failed = 0;
            for a in &addresses[begin..i] {
                if world.stuck.contains(a) {
                    failed += 1;
                } else if !world.liars.contains(a) {
                    if *world.room(node) < HUGE {
                        // The first page without memory ends the call.
                        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
                    }
                    let left = world.place.insert(*a, node as i32);
                    let room = world.room(node);
                    *room = room.saturating_sub(HUGE);
                    if let Some(left) = left.filter(|_| !world.thief) {
                        let room = world.room(left as u32);
                        *room = room.saturating_add(HUGE);
                    }
                }
            }
            if failed > 0 {
                return Ok(failed + (addresses.len() - i) as u64);
            }
            status[begin..i].fill(node as i32);
            if let Some(errno) = refused {
                status[i] = -errno;
            }
            begin = i + 1;
        }
        Ok(0)
    }

    fn exchanges(&self) -> bool {
        self.0.lock().unwrap().exchanges
    }

    fn exchange(&mut self, _: u32, a: &[u64], b: &[u64], status: &mut [i32]) -> io::Result<()> {
        let mut world = self.0.lock().unwrap();
        let world = &mut *world;
        world.called(EXCHANGE, [a, b].concat());
        world.now += world.per_page * (2 * a.len()) as u32;
        if let Some(errno) = world.call_error {
            return Err(io::Error::from_raw_os_error(errno));
        }
        for ((a, b), status) in a.iter().zip(b).zip(status) {
            let refused = world.refused.get(a).or(world.refused.get(b));
            *status = refused.map_or(0, |errno| -errno);
            if refused.is_none() && !world.stuck.contains(a) && !world.liars.contains(b) {
                let of_a = world.place[a];
                let of_b = world.place.insert(*b, of_a).unwrap();
                world.place.insert(*a, of_b);
            }
        }
        Ok(())
    }

    fn room_bytes(&mut self, node: u32) -> u64 {
        let world = self.0.lock().unwrap();
        let room = world.room_bytes.get(&node).copied().unwrap_or(u64::MAX);
        room.saturating_sub(world.deficit_bytes)
    }

    fn allowed_nodes(&mut self, _: u32) -> Option<Vec<u32>> {
        self.0.lock().unwrap().allowed.clone()
    }

    fn alive(&mut self, pid: u32) -> Option<Process> {
        let world = self.0.lock().unwrap();
        let start_ticks = if world.is_reused() { 2 } else { 1 };
        (!world.gone).then_some(Process { pid, start_ticks })
    }

    fn now(&mut self) -> Duration {
        self.0.lock().unwrap().now
    }

    fn sleep(&mut self, time: Duration) {
        self.0.lock().unwrap().now += time;
    }
}
