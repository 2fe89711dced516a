//! The network alone against closed forms: the M/D/1 queue at an interface and at an output of the
//! switch, the unloaded time of a block part by part, and the bandwidth at saturation. (DRAM alone
//! is validated in `terrace-hardware`'s `dram_validation`.)

use terrace_hardware::cache::config::CacheConfig;
use terrace_hardware::random::Random;
use terrace_hardware::units::Bytes;
use terrace_rack::NEVER;
use terrace_rack::address::RemotePage;
use terrace_rack::config::{NetworkConfig, RackConfig};
use terrace_rack::link::{Sender, Share};
use terrace_rack::packet::{Kind, Message, Packet};
use terrace_rack::scheme::Scheme;
use terrace_rack::simulate::run;
use terrace_rack::stream::{Synthetic, WorkloadConfig};
use terrace_rack::switch::Switch;

const LOADS: [f64; 4] = [0.3, 0.5, 0.7, 0.9];

/// Mean wait of an M/D/1 queue in units of the service time (Pollaczek and Khinchine).
fn wait(load: f64) -> f64 {
    load / (2.0 * (1.0 - load))
}

/// Times of a Poisson process with this load on a server of `service_ps`.
fn arrivals(service_ps: f64, load: f64, count: u32) -> impl Iterator<Item = u64> {
    let mut random = Random::new(7);
    let mut at = 0.0;
    (0..count).map(move |_| {
        at += random.exponential() * service_ps / load;
        at as u64
    })
}

fn packet() -> Packet {
    Packet::new(Kind::Data, 0, RemotePage(0), 0, 16)
}

#[test]
fn an_interface_is_an_m_d_1_queue() {
    // 80 bytes at 100 Gb/s.
    let service = 6400.0;
    for load in LOADS {
        let mut sender = Sender::new(80 * 1024, u64::MAX, u64::MAX / 2, Share::Fifo);
        let (mut waited, mut count) = (0u64, 0u64);
        let mut send = |sender: &mut Sender, until| {
            while sender.next() <= until && sender.next() != NEVER {
                let (packet, _) = sender.send(sender.next()).unwrap();
                waited += packet.spent.queue;
                count += 1;
            }
        };
        for at in arrivals(service, load, 3_000_000) {
            send(&mut sender, at);
            sender.push(at, packet());
        }
        send(&mut sender, NEVER - 1);
        let got = waited as f64 / count as f64 / service;
        assert!((got / wait(load) - 1.0).abs() < 0.03, "load {load}: {got} against {}", wait(load));
    }
}

#[test]
fn an_output_of_the_switch_is_an_m_d_1_queue_whatever_ports_packets_come_from() {
    let mut config = RackConfig { pools: 3, ..RackConfig::default() };
    config.network.nic_buffer = Bytes(1 << 40);
    // 80 bytes at 400 Gb/s.
    let service = 1600.0;
    for load in LOADS {
        let mut switch = Switch::new(&config, Scheme::by_name("BLOCK").unwrap()).unwrap();
        let (mut waited, mut count) = (0u64, 0u64);
        let mut out = Vec::new();
        let total = if load > 0.8 { 1_500_000 } else { 500_000 };
        for (n, at) in arrivals(service, load, total).enumerate() {
            switch.receive(1 + n % 3, Message::Packet(at, packet()));
            switch.run_until(at, &mut out);
            for (_, message) in out.drain(..) {
                if let Message::Packet(_, packet) = message {
                    waited += packet.spent.queue;
                    count += 1;
                }
            }
        }
        let got = waited as f64 / count as f64 / service;
        assert!((got / wait(load) - 1.0).abs() < 0.03, "load {load}: {got} against {}", wait(load));
    }
}

fn pattern(run_blocks: u32, gap: u32) -> WorkloadConfig {
    let synthetic = Synthetic {
        hot_share: 0.0,
        hot_pages: 0.5,
        store_share: 0.0,
        run_blocks,
        gap,
        untouched: 0.0,
    };
    WorkloadConfig {
        name: "pattern".into(),
        program: None,
        recording: None,
        synthetic: Some(synthetic),
        footprint: Some(Bytes::mib(16)),
        dependent_loads: 0.0,
        compute: 1.0,
        region: None,
        options: Default::default(),
    }
}

fn remote(cores: u32) -> RackConfig {
    let mut config = RackConfig { local_share: 0.0, ..RackConfig::default() };
    let node = &mut config.processor.0;
    node.cores = cores;
    node.caches.l2 = None;
    node.caches.llc = CacheConfig::new(Bytes::kib(64), 16, 64);
    config
}

#[test]
fn an_unloaded_read_takes_the_sum_of_its_parts() {
    for network in [
        NetworkConfig::default(),
        NetworkConfig { nic_gbit_per_s: 40.0, switch_gbit_per_s: 100.0, ..Default::default() },
    ] {
        let mut config = remote(1);
        config.network = network.clone();
        config.instructions = 4_000_000;
        let block = Scheme::by_name("BLOCK").unwrap();
        let outcome = run(&config, block, &[pattern(1, 20_000)], 1).unwrap();
        let c = &outcome.nodes[0].counts;
        let [total, nic, switch, queue, dram] = c.remote_latency.sums;
        let reads = c.remote_reads;
        assert!(reads > 150 && c.remote_latency.total.count() == reads);
        // A request of 16 bytes goes, an answer of 80 returns, each over two interfaces and an
        // output.
        let n = &network;
        let per_byte = 8.0 / n.nic_gbit_per_s;
        let at_nics = 4.0 * n.nic_ns + 2.0 * (16.0 + 80.0) * per_byte;
        let at_switch = 2.0 * n.switch_ns + (16.0 + 80.0) * 8.0 / n.switch_gbit_per_s;
        let mean = |ps: u64| ps as f64 / reads as f64 / 1000.0;
        assert!((mean(nic) - at_nics).abs() < 0.01, "{} {at_nics}", mean(nic));
        assert!((mean(switch) - at_switch).abs() < 0.01, "{} {at_switch}", mean(switch));
        assert_eq!(queue, 0);
        let way = at_nics + at_switch + 4.0 * n.propagation_ns + config.translation_ns;
        let rest = mean(total) - mean(dram);
        assert!((rest - way).abs() < 0.5, "{rest} ns beside the memory, expected {way}");
        // A read takes 21 cycles of 0.833 ns in an open row, 38 with its bank closed, 55 with
        // another row open, and up to a cycle until the clock's edge, and refreshes.
        assert!((17.5..50.0).contains(&mean(dram)), "{}", mean(dram));
    }
}

#[test]
fn a_saturated_pool_sends_at_its_interfaces_bandwidth() {
    for gbit in [20.0, 40.0] {
        let mut config = remote(4);
        config.network.nic_gbit_per_s = gbit;
        config.instructions = 200_000;
        let block = Scheme::by_name("BLOCK").unwrap();
        let outcome = run(&config, block, &[pattern(64, 0)], 1).unwrap();
        let reads = outcome.nodes[0].counts.remote_reads;
        let got = reads as f64 * 80.0 * 8000.0 / outcome.time as f64;
        assert!((got / gbit - 1.0).abs() < 0.01, "{got} of {gbit} Gb/s");
    }
}
