//! Boots real guests. These need QEMU, the plug-in (`cargo build --workspace`) and, the first time,
//! Debian's package archive; without them they fail and say what to do.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use terrace_lab::cache::Cache;
use terrace_lab::closure::Sources;
use terrace_lab::packages::Packages;
use terrace_lab::{
    Accel, AccessCounts, CountedCaches, Event, GuestFile, GuestJob, GuestMachine, GuestResult,
    Kernel, Lab, LabConfig, LabError, Phase, Program,
};

use terrace_recordings::reference::CacheShape;

const MIB: u64 = 1 << 20;

fn machine() -> GuestMachine {
    // KVM has a test of its own; the others use software emulation on every host.
    let timeout = Duration::from_secs(120);
    GuestMachine { accel: Accel::Tcg, timeout, ..GuestMachine::default() }
}

fn lab(machine: GuestMachine) -> Lab {
    Lab::new(LabConfig { machine, cache_dir: None }).expect("the lab")
}

fn run(job: &GuestJob) -> Result<GuestResult, LabError> {
    lab(machine()).run(job, |_| {})
}

fn expect(job: &GuestJob) -> GuestResult {
    run(job).unwrap_or_else(|e| panic!("{e}\n{}", e.console_tail().join("\n")))
}

/// The running or unreaped children of this process, by name.
fn children_of(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map(str::parse).collect::<Vec<_>>())
        .flatten()
        .collect()
}

#[test]
fn where_instructions_are_the_clock_idle_time_is_skipped() {
    // All processors in one thread, and each instruction counted: slower than the others.
    let timeout = Duration::from_secs(400);
    let machine = GuestMachine { instructions_as_time: true, cpus: 1, timeout, ..machine() };
    // Far beyond the bound on the run; and work takes as long as there is of it.
    let script = "sleep 1000
        write() { read -r a _ </proc/uptime
            dd if=/dev/zero of=/dev/null bs=1M count=$1 2>/dev/null
            read -r b _ </proc/uptime; echo $((${b%.*}${b#*.} - ${a%.*}${a#*.})); }
        write 1000; write 3000; read -r now _ </proc/uptime; echo ${now%.*}";
    let result = lab(machine).run(&GuestJob::shell(script), |_| {}).expect("a guest");
    let numbers: Vec<u64> = result.stdout_text().lines().flat_map(str::parse).collect();
    let [short, long, now] = numbers[..] else { panic!("{:?}", result.stdout_text()) };
    assert!(now > 1000, "up for {now} s");
    let ratio = long as f64 / short as f64;
    assert!((2.5..3.5).contains(&ratio), "{short} and {long} hundredths of a second: {ratio}");
}

#[test]
fn linux_sees_two_tiers_with_the_latencies_asked_for() {
    let script = "cat /sys/devices/virtual/memory_tiering/memory_tier*/nodelist
        cat /sys/devices/system/node/node0/access0/initiators/read_latency
        cat /sys/devices/system/node/node1/access0/initiators/read_latency
        cat /sys/devices/system/node/node1/access0/initiators/read_bandwidth
        cat /sys/devices/system/node/node1/cpulist
        nproc
        for node in 0 1; do
            while read -r _ _ name kib _; do
                [ $name = MemTotal: ] && echo $((kib / 1024))
            done < /sys/devices/system/node/node$node/meminfo
        done
        cat /proc/cmdline /proc/sys/kernel/randomize_va_space";
    let machine = GuestMachine {
        kernel_args: vec!["mine=1".to_owned()],
        fast_bytes: 512 * MIB,
        slow_bytes: 1024 * MIB,
        fast_latency_ns: 90,
        slow_latency_ns: 300,
        slow_bandwidth_mib_per_s: 20 * 1024,
        ..machine()
    };
    let result = lab(machine).run(&GuestJob::shell(script), |_| {}).expect("a guest");
    let text = result.stdout_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..6], ["0", "1", "90", "300", "20480", ""], "{text}");
    assert_eq!(lines[6], "2");
    // What the kernel keeps for itself is missing from the totals.
    let mib = |line: &str| line.parse::<u64>().expect("a number");
    assert!((400..=512).contains(&mib(lines[7])), "{text}");
    assert!((950..=1024).contains(&mib(lines[8])), "{text}");
    // Programs have the same addresses at each start; the user's words come last.
    assert!(lines[9].ends_with(" norandmaps cryptomgr.notests mine=1"), "{text}");
    assert_eq!(lines[10], "0");
}

#[test]
fn words_environment_input_outputs_and_exit_code_pass_through() {
    let script = r#"printf '[%s]' "$@"; echo; echo "$WORD"; cat; echo oops >&2; exit 42"#;
    let job = GuestJob::shell(script)
        .args(["sh", "it's", "two words", "$HOME"])
        .env("WORD", "a'b \"c\"")
        .stdin("line one\nno end");
    let mut live = Vec::new();
    let result = lab(machine())
        .run(&job, |event| match event {
            Event::Stdout(line) => live.push(line),
            Event::Booted { kernel_release, .. } => assert!(kernel_release.starts_with("6.12.")),
            _ => {}
        })
        .expect("a guest");
    assert_eq!(result.exit_code, 42);
    assert_eq!(result.stdout_text(), "[it's][two words][$HOME]\na'b \"c\"\nline one\nno end");
    assert_eq!(live, ["[it's][two words][$HOME]", "a'b \"c\"", "line one", "no end"]);
    assert_eq!(result.stderr, b"oops\n");
    assert!(!result.accel.kvm);
}

#[test]
fn lines_come_while_the_command_runs() {
    let started = Instant::now();
    let mut came = Vec::new();
    let job = GuestJob::shell("echo first; sleep 3; echo last");
    lab(machine())
        .run(&job, |event| {
            if let Event::Stdout(line) = event {
                came.push((line, started.elapsed()));
            }
        })
        .expect("a guest");
    assert_eq!((came[0].0.as_str(), came[1].0.as_str()), ("first", "last"));
    let apart = came[1].1 - came[0].1;
    assert!(apart > Duration::from_millis(2500), "the lines came {apart:?} apart");
}

#[test]
fn files_go_in_and_come_back_byte_for_byte() {
    let host = tempfile::tempdir().expect("a directory");
    let input = host.path().join("input");
    fs::create_dir_all(input.join("deep/er")).expect("directories");
    // Every byte value, more than a pipe or a virtio buffer holds, and a length that is no
    // multiple of anything.
    let mut seed = 1u32;
    let bytes: Vec<u8> = (0..9_000_001)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        })
        .collect();
    fs::write(input.join("big"), &bytes).expect("a file");
    fs::write(input.join("deep/er/odd name"), "x\n").expect("a file");
    fs::write(input.join("empty"), "").expect("a file");

    let out = host.path().join("out");
    let mut job = GuestJob::shell("cp -r /in /tmp/copy && md5sum /in/big && /opt/tool/hello")
        .file(&input, "/in")
        .result("/tmp/copy")
        .result("/proc/sys/kernel/ostype")
        .result("/tmp/never made")
        .results_dir(&out);
    job.files.push(GuestFile::Bytes {
        bytes: b"#!/bin/sh\necho hello\n".to_vec(),
        mode: 0o755,
        to: "/opt/tool/hello".into(),
    });
    let result = expect(&job);
    assert_eq!(result.exit_code, 0);
    assert!(result.stdout_text().ends_with("hello\n"));
    assert_eq!(result.results_dir(), Some(out.as_path()));
    let copy = result.result("/tmp/copy").expect("a path");
    assert!(fs::read(copy.join("big")).expect("the big file") == bytes, "the big file differs");
    assert_eq!(fs::read(copy.join("deep/er/odd name")).expect("a file"), b"x\n");
    assert_eq!(fs::read(copy.join("empty")).expect("a file"), b"");
    let kernel_file = result.result("/proc/sys/kernel/ostype").expect("a path");
    assert_eq!(fs::read(kernel_file).expect("a file"), b"Linux\n");
    assert_eq!(result.missing_results, [Path::new("/tmp/never made")]);
    // Nothing half-made beside them.
    let left = fs::read_dir(host.path()).expect("a directory").count();
    assert_eq!(left, 2, "input and out");
}

#[test]
fn a_program_of_the_host_runs_with_its_libraries() {
    let me = std::env::current_exe().expect("this test's program");
    let name = me.file_name().expect("a name").to_string_lossy().into_owned();
    let job = GuestJob::new(name).args(["--list"]).program(Program::host(&me));
    let result = expect(&job);
    assert_eq!(result.exit_code, 0, "{}", String::from_utf8_lossy(&result.stderr));
    assert!(result.stdout_text().contains("a_program_of_the_host_runs_with_its_libraries"));
}

#[test]
fn redis_from_its_debian_package_answers() {
    let script = "redis-server --version
        redis-server --port 7000 --save '' > /tmp/redis.log &
        for i in 1 2 3 4 5 6 7 8 9 10; do
            redis-cli -p 7000 PING 2>/dev/null && break
            sleep 1
        done
        redis-cli -p 7000 SET key value
        redis-cli -p 7000 GET key";
    let job = GuestJob::shell(script)
        .program(Program::package("redis-server", "redis-server"))
        .program(Program::package("redis-tools", "redis-cli"));
    let result = expect(&job);
    let text = result.stdout_text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("Redis server v=7"), "{text}");
    assert_eq!(lines[1..], ["PONG", "OK", "value"]);
}

#[test]
fn a_packaged_program_can_bring_all_its_libraries_from_packages() {
    let cache = Cache::of_user().expect("a cache");
    let packages = Packages::new(&cache);
    let nothing_of_the_host = Sources::packages(Vec::new());
    let found = packages
        .program("redis-server", "redis-server", &nothing_of_the_host, &mut |_| {})
        .expect("redis with its libraries");
    assert_eq!(found.guest_path, Path::new("/usr/bin/redis-server"));
    for (to, from) in &found.closure.files {
        assert!(from.starts_with(cache.root()), "{} is {}", to.display(), from.display());
    }
    let has = |name: &str| found.closure.files.keys().any(|path| path.ends_with(name));
    assert!(has("ld-linux-x86-64.so.2") && has("libc.so.6") && has("libjemalloc.so.2"));
    // And with them it runs.
    let mut job = GuestJob::new("/usr/bin/redis-server").args(["--version"]);
    for (to, from) in &found.closure.files {
        job = job.file(from, to);
    }
    assert!(expect(&job).stdout_text().starts_with("Redis server v="));
}

#[test]
fn a_panic_is_reported_with_the_console_and_leaves_nothing() {
    let started = Instant::now();
    let job = GuestJob::shell("echo before; echo c > /proc/sysrq-trigger; sleep 100")
        .timeout(Duration::from_secs(90));
    let error = run(&job).expect_err("a panic");
    let LabError::Panicked { phase, message, console_tail } = &error else { panic!("{error}") };
    assert_eq!(*phase, Phase::Running);
    assert!(message.starts_with("Kernel panic - not syncing: sysrq triggered crash"), "{message}");
    assert!(console_tail.iter().any(|line| line.contains("Call Trace")), "{console_tail:#?}");
    assert!(started.elapsed() < Duration::from_secs(60), "it took {:?}", started.elapsed());
    assert_eq!(error.to_string().lines().count(), 1);
}

#[test]
fn a_hang_ends_at_its_bound_with_what_was_last_seen() {
    let bound = Duration::from_secs(15);
    let started = Instant::now();
    let job = GuestJob::shell(
        "echo waiting; printf 'half a line'; echo alarm > /dev/console; sleep 1000",
    )
    .timeout(bound);
    let error = run(&job).expect_err("a hang");
    let took = started.elapsed();
    let LabError::TimedOut { phase, bound_ms, console_tail, output_tail } = &error else {
        panic!("{error}")
    };
    assert_eq!((*phase, *bound_ms), (Phase::Running, 15_000));
    assert_eq!(output_tail[..], ["waiting", "half a line"]);
    assert!(console_tail.iter().any(|line| line == "alarm"), "{console_tail:?}");
    assert!(took >= bound && took < bound + Duration::from_secs(5), "it took {took:?}");
}

#[test]
fn a_kernel_that_never_comes_up_ends_at_the_bound_on_the_boot() {
    let machine = GuestMachine {
        boot_timeout: Duration::from_secs(8),
        kernel_args: vec!["rdinit=/bin/sleep".into(), "--".into(), "1000".into()],
        ..machine()
    };
    let mut again = 0;
    let count = |event| {
        again +=
            u32::from(matches!(event, Event::Preparing(text) if text.starts_with("booting again")));
    };
    let error = lab(machine).run(&GuestJob::new("true"), count).expect_err("a hang");
    let LabError::TimedOut { phase, bound_ms, .. } = &error else { panic!("{error}") };
    assert_eq!((*phase, *bound_ms), (Phase::Booting, 8_000));
    assert_eq!(again, 2, "a boot that hangs is tried three times within the bound");
}

#[test]
fn want_of_memory_is_distinguished_from_other_deaths() {
    let machine = GuestMachine { fast_bytes: 256 * MIB, slow_bytes: 128 * MIB, ..machine() };
    let hungry = GuestJob::new("tail").args(["/dev/zero"]);
    let error = lab(machine.clone()).run(&hungry, |_| {}).expect_err("want of memory");
    assert!(matches!(&error, LabError::OutOfMemory { .. }), "{error}");
    let killed = error.console_tail().iter().any(|line| line.contains("Killed process"));
    assert!(killed, "{:#?}", error.console_tail());
    let killed = lab(machine).run(&GuestJob::shell("kill -KILL $$"), |_| {}).expect("an end");
    assert_eq!(killed.exit_code, 137);
}

#[test]
fn a_guest_that_switches_itself_off_is_distinguished_from_one_that_ended() {
    let error = run(&GuestJob::shell("poweroff -f; sleep 100")).expect_err("an early end");
    assert!(matches!(error, LabError::EndedEarly { phase: Phase::Running, .. }), "{error}");
}

#[test]
fn a_command_that_is_not_there_is_exit_code_127() {
    let result = expect(&GuestJob::new("no-such-command"));
    assert_eq!(result.exit_code, 127);
    assert!(String::from_utf8_lossy(&result.stderr).contains("no-such-command"));
}

#[test]
fn the_labs_own_places_are_refused() {
    for place in ["/init", "/.lab/command"] {
        let error = run(&GuestJob::new("true").bytes("x", place)).expect_err("a refusal");
        assert!(error.to_string().contains("the lab's own"), "{error}");
    }
}

#[test]
fn what_qemu_does_not_take_is_reported_in_its_words() {
    let machine = GuestMachine { extra_qemu_args: vec!["-no-such-option".into()], ..machine() };
    let error = lab(machine).run(&GuestJob::new("true"), |_| {}).expect_err("a refusal");
    assert!(matches!(error, LabError::Qemu { .. }), "{error}");
    assert!(error.to_string().contains("no-such-option"), "{error}");
}

#[test]
fn kvm_is_asked_once_and_software_takes_over_where_it_fails() {
    let user = Cache::of_user().expect("a cache");
    let kernel = Kernel::Debian.image(&user, &mut |_| {}).expect("a kernel");
    let cache = tempfile::tempdir().expect("a directory");
    let machine = GuestMachine { accel: Accel::Auto, kernel: Kernel::Path(kernel), ..machine() };
    let lab =
        Lab::new(LabConfig { machine, cache_dir: Some(cache.path().to_owned()) }).expect("the lab");
    let mut asked = 0;
    let mut choices = Vec::new();
    for _ in 0..2 {
        let result = lab
            .run(&GuestJob::new("true"), |event| {
                asked += i32::from(matches!(event, Event::Preparing(text) if text.contains("KVM")));
            })
            .expect("a guest, one way or the other");
        assert_eq!(result.exit_code, 0);
        choices.push(result.accel);
    }
    assert_eq!(choices[0], choices[1]);
    assert!(!choices[0].reason.is_empty());
    let there = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    assert_eq!(asked, i32::from(there), "{}", choices[0]);
}

/// Not a test by itself: the process that the next test kills.
#[test]
fn helper_that_is_killed() {
    if std::env::var_os("TERRACE_LAB_HELPER").is_some() {
        let _ = lab(machine()).run(&GuestJob::shell("echo up; sleep 1000"), |event| {
            if let Event::Stdout(line) = event {
                println!("guest: {line}");
            }
        });
    }
}

#[test]
fn qemu_and_files_go_when_the_host_process_is_killed() {
    use std::io::BufRead;
    let temp = tempfile::tempdir().expect("a directory");
    for signal in ["TERM", "INT", "KILL"] {
        let mut helper = Command::new(std::env::current_exe().expect("this test's program"))
            .args(["--exact", "helper_that_is_killed", "--nocapture"])
            .env("TERRACE_LAB_HELPER", "1")
            .env("TMPDIR", temp.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a helper");
        let output = std::io::BufReader::new(helper.stdout.take().expect("its output"));
        let up = output.lines().map_while(Result::ok).any(|line| line.contains("guest: up"));
        assert!(up, "the helper's guest did not come up");
        let children = children_of(helper.id());
        let qemu = children
            .iter()
            .find(|pid| {
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                name.starts_with("qemu-system")
            })
            .copied()
            .expect("a QEMU among the helper's children");
        let status = Command::new("kill")
            .args(["-s", signal, &helper.id().to_string()])
            .status()
            .expect("kill");
        assert!(status.success());
        helper.wait().expect("the helper's end");
        // The kernel sends the signal at once; QEMU needs a moment to give its memory back.
        let bound = Instant::now() + Duration::from_secs(10);
        let alive = || {
            fs::read_to_string(format!("/proc/{qemu}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z ") && stat.contains("qemu"))
        };
        while alive() {
            assert!(Instant::now() < bound, "QEMU {qemu} outlived SIG{signal}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let left: Vec<_> = fs::read_dir(temp.path()).expect("a directory").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Writes `BYTES` bytes of memory bound to a node word by word, and reads them; then the same on
/// the other node. Counts are printed before and after each.
const TWO_NODES: &str = r#"
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#define WORDS (BYTES / 8)
#define PERIOD __asm__ volatile(".byte 0x0f,0x1f,0x84,0,2,0x54,0x45,0x52" ::: "memory")
static void work(unsigned long node) {
    unsigned long nodes = 1ul << node;
    volatile unsigned long *words =
        mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED || syscall(SYS_mbind, words, BYTES, 2, &nodes, 64, 0)) _exit(2);
    PERIOD;
    for (long i = 0; i < WORDS; i++) words[i] = i;
    PERIOD;
    for (long i = 0; i < WORDS; i++) words[i];
    PERIOD;
}
int main(int count, char **given) {
    // With the compatible layout, as by `setarch -L`, which takes effect when a program is started.
    if (count == 1 && !syscall(SYS_personality, 0x200000))
        execl("/proc/self/exe", given[0], "apart", (char *)0);
    work(0);
    work(1);
}
"#;

#[test]
fn what_goes_to_each_node_is_counted_exactly() {
    const BYTES: u64 = 16 * MIB;
    let host = tempfile::tempdir().expect("a directory");
    let (source, program) = (host.path().join("p.c"), host.path().join("two-nodes"));
    fs::write(&source, TWO_NODES).expect("a file");
    let gcc = Command::new("gcc")
        .args(["-O1", "-static", &format!("-DBYTES={BYTES}L"), "-o"])
        .args([&program, &source])
        .status();
    assert!(gcc.expect("gcc; apt-get install gcc libc6-dev").success());
    let shape = |size_bytes, ways| CacheShape { size_bytes, ways };
    let caches =
        CountedCaches { l1: shape(32 << 10, 8), l2: shape(256 << 10, 16), llc: shape(1 << 20, 16) };
    let machine = GuestMachine {
        fast_bytes: 512 * MIB,
        slow_bytes: 256 * MIB,
        count_accesses: Some(caches),
        count_pages: Some(host.path().join("pages")),
        count_apart: Some(host.path().join("apart")),
        timeout: Duration::from_secs(480),
        ..machine()
    };
    let job = GuestJob::new("two-nodes").program(Program::host(&program));
    let result = lab(machine).run(&job, |_| {}).expect("a guest");
    assert_eq!(result.exit_code, 0, "{}", String::from_utf8_lossy(&result.stderr));
    let counts = result.accesses.expect("counts");
    assert!(counts.complete && counts.periods.len() == 7, "{counts:#?}");
    let (words, lines, pages) = (BYTES / 8, BYTES / 64, BYTES / 4096);
    // No other program of the guest runs, and the program's stack and code are in fast memory: of
    // slow memory it uses what it bound, to the word; of fast memory a little more.
    let few = 1..=words / 1000;
    for (first, bound, other) in [(1, 0, 1), (4, 1, 0)] {
        let (write, read) = (&counts.periods[first], &counts.periods[first + 1]);
        let more = |n: u64, least: u64| {
            if bound == 1 { n == least } else { (least..=least + few.end()).contains(&n) }
        };
        let rest = |n: u64| if other == 1 { n == 0 } else { few.contains(&n) || n == 0 };
        for (window, stores, loads) in [(write, words, 0), (read, 0, words)] {
            let (on, off) = (&window.user[bound], &window.user[other]);
            assert!(more(on.stores, stores) && more(on.loads, loads), "{window:#?}");
            assert!(rest(off.stores) && rest(off.loads), "{window:#?}");
            assert_eq!(window.apart[bound], stores + loads, "to the word: {window:#?}");
            assert_eq!(window.apart[1 - bound], 0, "{window:#?}");
            assert!(on.touched_4k.is_some_and(|n| more(n, pages)), "{window:#?}");
            assert_eq!(window.user[2].loads + window.user[2].stores, 0, "{window:#?}");
        }
        // Each line is read from memory once, for sixteen times the last level is between.
        let reads = read.user[bound].memory_loads;
        assert!((lines..=lines + lines / 50).contains(&reads), "{read:#?}");
        // The kernel clears the pages before the program has them.
        assert!(write.kernel[bound].stores >= words, "{write:#?}");
        let both = [&write.user, &write.kernel, &read.user, &read.kernel];
        let written: u64 = both.iter().map(|side| side[bound].write_backs).sum();
        assert!((lines..=lines * 9 / 4).contains(&written), "{written} of {lines}");
    }
    let share = counts.fast_share.accesses.expect("a share");
    assert!((0.49..0.52).contains(&share), "{share}");
    base_pages_add_up(&host.path().join("apart"), &counts, pages);
    huge_pages_add_up(&host.path().join("pages"), &counts);
}

/// Of the program with the compatible layout; it touches so many pages in a window, word by word.
fn base_pages_add_up(file: &Path, counts: &AccessCounts, pages: u64) {
    // Accesses of the program with the compatible layout by base page: a line a mark, the first
    // without pages.
    let apart = fs::read_to_string(file).expect("counts of a program's pages");
    let apart: Vec<Vec<[u64; 3]>> = serde_json::Deserializer::from_str(&apart)
        .into_iter()
        .map(|line| line.expect("a list of pages"))
        .collect();
    assert_eq!(apart.len(), 1 + counts.periods.len());
    for (window, of_pages) in counts.periods.iter().zip(&apart[1..]) {
        let sum = |node: usize| of_pages.iter().map(|page| page[1 + node]).sum::<u64>();
        assert_eq!([sum(0), sum(1)], window.apart);
    }
    let touched = apart[2].iter().filter(|page| page[1] == 512).count() as u64;
    assert_eq!(touched, pages, "each word of each page once");
}

/// Of all programs, on nodes of 512 and 256 MiB.
fn huge_pages_add_up(file: &Path, counts: &AccessCounts) {
    // A line a mark, the first without pages.
    let pages = fs::read_to_string(file).expect("counts of pages");
    let pages: Vec<[Vec<u64>; 2]> = serde_json::Deserializer::from_str(&pages)
        .into_iter()
        .map(|line| line.expect("two lists"))
        .collect();
    assert_eq!(pages.len(), 1 + counts.periods.len());
    for (window, nodes) in counts.periods.iter().zip(&pages[1..]) {
        for (node, bytes) in [(0, 512 * MIB), (1, 256 * MIB)] {
            assert_eq!(nodes[node].len() as u64, bytes / (2 * MIB));
            let all = window.user[node].loads + window.user[node].stores;
            assert_eq!(nodes[node].iter().sum::<u64>(), all, "node {node}");
            let touched = nodes[node].iter().filter(|n| **n > 0).count() as u64;
            assert_eq!(Some(touched), window.user[node].touched_2m, "node {node}");
        }
    }
}
