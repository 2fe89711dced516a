//! The tables of a fleet: how much fast memory its hosts and services need.

table! {
    /// Fast memory for the hosts of a class, beside slow memory of one latency. Every column is for
    /// that latency.
    pub struct FleetClassRow in "fleet_classes" {
        /// The class.
        class: String,
        /// Idle latency of a read from slow memory beyond the caches, in ns.
        slow_latency_ns: f64,
        /// It is the latency of the class.
        own_latency: bool,
        /// Hosts whose histories were used, all of each.
        hosts: u64,
        /// Hosts that were left out.
        left_out_hosts: u64,
        /// Memory of a host, in bytes.
        memory_bytes: u64,
        /// Share of it that is to be fast: enough for the fleet's quantile of hosts.
        fast_share: f64,
        /// Lower end of its interval; null with too few hosts.
        low: Option<f64>,
        /// Upper end.
        high: Option<f64>,
        /// What the interval is, or that there are too few hosts.
        interval: String,
        /// Fast memory of a host, in bytes.
        fast_bytes: u64,
        /// Share that is enough at the upper end of the planner's errors.
        safe_fast_share: f64,
        /// The share where services wait for memory less than assumed, by the error of that.
        waits_less_fast_share: f64,
        /// The same, where they wait more.
        waits_more_fast_share: f64,
        /// Share of the hosts that need more than that.
        overrun_share: f64,
        /// Share of the hosts that need more than what is bought for the class's own latency.
        overrun_as_bought_share: f64,
        /// Hosts that there are or will be.
        count: u64,
        /// Price of the memory of a host, in the prices' currency.
        cost: Option<f64>,
        /// The same with all of it fast.
        all_fast_cost: Option<f64>,
        /// What a host saves.
        saved: Option<f64>,
        /// The same at the upper end of the interval.
        saved_low: Option<f64>,
        /// The same at the lower end.
        saved_high: Option<f64>,
        /// What all hosts save.
        saved_by_all: Option<f64>,
    }
}

table! {
    /// Fast memory for a service in a class of hosts or in all, beside slow memory of one latency.
    /// Every column is for that latency.
    pub struct FleetServiceRow in "fleet_services" {
        /// The service.
        service: String,
        /// The class; "all" for all together.
        class: String,
        /// Idle latency of a read from slow memory, in ns; null for each class's own.
        slow_latency_ns: Option<f64>,
        /// It is the latency of the class.
        own_latency: bool,
        /// Run time that it can bear, over that with all memory fast.
        slowdown: f64,
        /// Hosts that it ran on.
        hosts: u64,
        /// Its groups there.
        groups: u64,
        /// Their memory together, in bytes.
        footprint_bytes: u64,
        /// Share of that which is to be fast: what all of them need over what they have.
        fast_share: f64,
        /// Lower end of its interval; null with too few hosts.
        low: Option<f64>,
        /// Upper end.
        high: Option<f64>,
        /// What the interval is, or that there are too few hosts.
        interval: String,
        /// Share that is enough for the fleet's quantile of its hosts; null with too few.
        upper_fast_share: Option<f64>,
        /// Fast memory of all its groups together, in bytes.
        fast_bytes: u64,
        /// Share that is enough at the upper end of the planner's errors.
        safe_fast_share: f64,
        /// The share where it waits for memory less than assumed, by the error of that.
        waits_less_fast_share: f64,
        /// The same, where it waits more.
        waits_more_fast_share: f64,
        /// Share of its hosts on which it needs more than the share.
        overrun_share: f64,
        /// Share of its hosts on which it needs more than the share for the class's own latency.
        overrun_as_bought_share: f64,
        /// Price of its memory, in the prices' currency.
        cost: Option<f64>,
        /// The same with all of it fast.
        all_fast_cost: Option<f64>,
        /// What is saved.
        saved: Option<f64>,
        /// The same at the upper end of the interval.
        saved_low: Option<f64>,
        /// The same at the lower end.
        saved_high: Option<f64>,
    }
}

table! {
    /// What a host needs, beside slow memory of one latency.
    pub struct FleetHostRow in "fleet_hosts" {
        /// The host.
        host: String,
        /// Its class.
        class: String,
        /// Idle latency of a read from slow memory, in ns.
        slow_latency_ns: f64,
        /// It is the latency of the class.
        own_latency: bool,
        /// All of its histories were used; others have no part in the answer for the class.
        whole: bool,
        /// Its services.
        services: u64,
        /// Their memory, in bytes.
        footprint_bytes: u64,
        /// Fast memory that it needs with the reserve, in bytes.
        fast_bytes: u64,
        /// The same over the memory of a host of its class.
        fast_share: f64,
        /// What the class's answer gives it beyond that, as a share of its memory.
        spare_share: f64,
        /// Stage of the rollout, from 1; 0 for a host to look at first.
        stage: u64,
    }
}

table! {
    /// Two services that collide on some host.
    pub struct FleetPairRow in "fleet_pairs" {
        /// A service.
        first: String,
        /// Another.
        second: String,
        /// Hosts on which both ran.
        hosts: u64,
        /// Hosts on which they collide.
        colliding_hosts: u64,
        /// The part of them.
        colliding_share: f64,
        /// They should not share a host.
        apart: bool,
        /// Most that both accessed in one period together, in bytes: the median of the hosts on which they
        /// collide.
        joint_peak_bytes: u64,
        /// Room for both, in bytes: the median of the same.
        room_bytes: u64,
    }
}

table! {
    /// A history or a host that could not be used.
    pub struct FleetLeftOutRow in "fleet_left_out" {
        /// The host.
        host: String,
        /// Its class.
        class: String,
        /// The file or folder.
        path: String,
        /// The reason.
        reason: String,
    }
}
