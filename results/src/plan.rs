//! The tables of a plan: how much fast memory programs need.

table! {
    /// One point of a curve of slowdown against fast memory.
    pub struct PlanPointRow in "plan_points" {
        /// The program.
        program: String,
        /// The machine.
        machine: String,
        /// Idle latency of a read from its slow tier beyond the caches, in ns.
        slow_latency_ns: f64,
        /// Read bandwidth of its slow tier, in GB/s (10^9 bytes).
        slow_gb_per_s: f64,
        /// The policy.
        policy: String,
        /// Share of the footprint that is fast, 0 to 1.
        fast_share: f64,
        /// Fast memory in bytes.
        fast_bytes: u64,
        /// Expected run time over that with all memory fast.
        slowdown: f64,
        /// Lower end of its interval of about 95 %.
        low: f64,
        /// Upper end.
        high: f64,
        /// Half of the interval that is due to interval simulation against trace-driven simulation.
        model_error: f64,
        /// Due to the policy's seed.
        seed_error: f64,
        /// Due to the rule by which slow reads make time.
        reads_error: f64,
        /// Due to the unknowns of a recording without costs.
        waiting_error: f64,
        /// Accessed pages in fast memory, over accessed pages.
        hit_ratio: f64,
        /// Pages moved, either way.
        moved_pages: u64,
        /// Periods it took.
        periods: u64,
        /// Price of the memory, in the prices' currency.
        cost: Option<f64>,
    }
}

table! {
    /// The least fast memory for the target, for a program, machine and policy.
    pub struct PlanAnswerRow in "plan_answers" {
        /// The program.
        program: String,
        /// The machine.
        machine: String,
        /// Idle latency of a read from its slow tier beyond the caches, in ns.
        slow_latency_ns: f64,
        /// Read bandwidth of its slow tier, in GB/s.
        slow_gb_per_s: f64,
        /// The policy.
        policy: String,
        /// Run time allowed over that with all memory fast.
        target: f64,
        /// The least share of the footprint that meets it; null where none does.
        fast_share: Option<f64>,
        /// The least fast memory in bytes.
        fast_bytes: Option<u64>,
        /// Expected run time over that with all memory fast.
        slowdown: Option<f64>,
        /// Lower end of its interval.
        low: Option<f64>,
        /// Upper end.
        high: Option<f64>,
        /// The least share at which the upper end meets the target.
        safe_fast_share: Option<f64>,
        /// Price of the memory, in the prices' currency.
        cost: Option<f64>,
        /// It is the one that is recommended for the program.
        recommended: bool,
        /// Slowdown at trace fidelity, where it was checked.
        measured_slowdown: Option<f64>,
    }
}

table! {
    /// A choice of cost and slowdown that nothing beats.
    pub struct PlanFrontRow in "plan_front" {
        /// The program.
        program: String,
        /// The machine.
        machine: String,
        /// The policy.
        policy: String,
        /// Share of the footprint that is fast.
        fast_share: f64,
        /// Price of the memory, in the prices' currency.
        cost: f64,
        /// Expected run time over that with all memory fast.
        slowdown: f64,
    }
}

table! {
    /// The recommended policy at another latency of slow memory.
    pub struct PlanSensitivityRow in "plan_sensitivity" {
        /// The program.
        program: String,
        /// The policy.
        policy: String,
        /// Idle latency of a read from the slow tier beyond the caches, in ns.
        slow_latency_ns: f64,
        /// The least share that meets the target; null where none does.
        fast_share: Option<f64>,
        /// Slowdown with the share that is recommended.
        slowdown_as_recommended: f64,
    }
}
