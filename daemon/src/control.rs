//! The control socket: a request and an answer, one line of JSON each.
//!
//! Who can open the socket may read: its file belongs to root and the group that the configuration
//! names, and others have no rights to it. Only root (and the user that the daemon runs as) may
//! change anything: the kernel identifies the peer (`SO_PEERCRED`). Requests, answers, connections
//! and the time for each are bounded.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::board::Board;
use crate::explain::explain;

/// Largest request.
const MOST_REQUEST_BYTES: usize = 4 << 10;
/// Largest answer that a client reads.
const MOST_ANSWER_BYTES: u64 = 64 << 20;
/// Connections that are answered at the same time.
const MOST_CONNECTIONS: usize = 16;
/// Time for a request to arrive and its answer to be sent.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for the service to carry out a change.
const CHANGE_PATIENCE: Duration = Duration::from_secs(30);

/// Requests of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The whole status.
    Status {},
    /// Why pages of a group are where they are.
    Explain {
        /// Its name.
        group: String,
        /// An address of one of its processes, for that page alone.
        #[serde(default)]
        address: Option<u64>,
    },
    /// Accesses of a group by address and period.
    Heat {
        /// Its name.
        group: String,
    },
    /// Read the configuration again.
    Reload {},
    /// Write histories to disk now.
    Save {},
    /// End the daemon.
    Stop {},
}

impl Request {
    /// Whether it changes something.
    pub fn changes(&self) -> bool {
        matches!(self, Request::Reload {} | Request::Save {} | Request::Stop {})
    }
}

/// A request for a change, with the channel of its answer.
pub struct Order {
    /// The request.
    pub request: Request,
    /// Channel of the answer.
    pub answer: Sender<Result<Value, String>>,
}

/// A bin of a heat map in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SentBin {
    /// Address space: the process.
    pub space: u32,
    /// First address.
    pub address: u64,
    /// Length.
    pub size_bytes: u64,
    /// First period.
    pub period: u64,
    /// Number of periods.
    pub periods: u64,
    /// Accessed share of its pages and periods.
    pub accessed_share: f64,
    /// Share of its pages in fast memory.
    pub fast_share: f64,
}

/// Why the socket could not be created.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SocketError(pub String);

/// Creates the socket: readable by root and this group (name or number; root alone if empty).
pub fn bind(path: &Path, group: &str) -> Result<UnixListener, SocketError> {
    let error = |what: &dyn std::fmt::Display| SocketError(format!("{}: {what}", path.display()));
    let gid = group_of(Path::new(GROUPS), group).map_err(SocketError)?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| error(&e))?;
    }
    // A socket without a listener is left over from a daemon that was killed.
    if let Ok(found) = std::fs::symlink_metadata(path) {
        use std::os::unix::fs::FileTypeExt;
        if !found.file_type().is_socket() {
            return Err(error(&"is no socket; expected a free name: correct daemon.control"));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(error(&"another terraced listens there; stop it first"));
        }
        std::fs::remove_file(path).map_err(|e| error(&e))?;
    }
    // Created under another name and without rights for others, so that nobody can open it
    // meanwhile.
    let beside = path.with_extension(format!("new{}", std::process::id()));
    let _ = std::fs::remove_file(&beside);
    let listener = UnixListener::bind(&beside).map_err(|e| error(&e))?;
    let ready = || -> std::io::Result<()> {
        std::fs::set_permissions(&beside, PermissionsExt::from_mode(0o600))?;
        if let Some(gid) = gid {
            std::os::unix::fs::chown(&beside, None, Some(gid))?;
            std::fs::set_permissions(&beside, PermissionsExt::from_mode(0o660))?;
        }
        std::fs::rename(&beside, path)
    };
    ready().map_err(|e| {
        let _ = std::fs::remove_file(&beside);
        error(&e)
    })?;
    Ok(listener)
}

/// The file of groups of this system.
pub const GROUPS: &str = "/etc/group";

/// The number of the group `control_group`, by this file; `None` if the name is empty.
pub fn group_of(file: &Path, name: &str) -> Result<Option<u32>, String> {
    if name.is_empty() {
        return Ok(None);
    }
    group_id(file, name)
        .map(Some)
        .ok_or_else(|| format!("control_group = '{name}': expected a group of {}", file.display()))
}

/// The number of a group.
fn group_id(file: &Path, name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Answers requests until `stop` is set.
pub fn serve(
    listener: UnixListener,
    board: Arc<Board>,
    orders: Sender<Order>,
    stop: Arc<AtomicBool>,
) {
    if let Err(error) = listener.set_nonblocking(true) {
        tracing::error!(%error, "the control socket");
        return;
    }
    let open = Arc::new(AtomicUsize::new(0));
    while !stop.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if open.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            open.fetch_sub(1, Ordering::Relaxed);
            let _ = send(stream, &Err("too many connections; try again".to_owned()));
            continue;
        }
        let (board, orders, count) = (Arc::clone(&board), orders.clone(), Arc::clone(&open));
        let started = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            let _ = converse(stream, &board, &orders);
            count.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn converse(stream: UnixStream, board: &Board, orders: &Sender<Order>) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    let own = rustix::process::geteuid();
    let may_change = peer.uid.is_root() || peer.uid == own;
    let answer = match read_request(&stream)? {
        Ok(request) => respond(request, may_change, board, orders),
        Err(e) => Err(e),
    };
    send(stream, &answer)
}

fn read_request(mut stream: &UnixStream) -> std::io::Result<Result<Request, String>> {
    let begin = Instant::now();
    let mut line = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let n = stream.read(&mut piece)?;
        line.extend_from_slice(&piece[..n]);
        if let Some(end) = line.iter().position(|b| *b == b'\n') {
            line.truncate(end);
            break;
        }
        if n == 0 || begin.elapsed() > PATIENCE {
            break;
        }
        if line.len() > MOST_REQUEST_BYTES {
            break;
        }
    }
    Ok(parse(&line))
}

/// Reads a request. The error is one line.
pub fn parse(line: &[u8]) -> Result<Request, String> {
    if line.len() > MOST_REQUEST_BYTES {
        return Err(format!("a request of more than {MOST_REQUEST_BYTES} bytes"));
    }
    serde_json::from_slice(line).map_err(|e| {
        let e = terrace_core::parameters::in_plain_words(&e.to_string());
        crate::discover::shown(&format!("not a request: {e}"))
    })
}

/// The answer to a request.
pub fn respond(
    request: Request,
    may_change: bool,
    board: &Board,
    orders: &Sender<Order>,
) -> Result<Value, String> {
    let as_json = |value: Result<Value, serde_json::Error>| value.map_err(|e| e.to_string());
    if request.changes() {
        if !may_change {
            return Err("only root may change anything; this user may read".to_owned());
        }
        let (answer, answered) = mpsc::channel();
        let gone = |_| "the daemon is ending".to_owned();
        orders.send(Order { request, answer }).map_err(gone)?;
        return answered
            .recv_timeout(CHANGE_PATIENCE)
            .map_err(|_| "the daemon did not answer; see its log".to_owned())?;
    }
    match request {
        Request::Explain { group, address } => {
            if address.is_some() && !may_change {
                return Err("only root may ask for an address; this user sees ranges".to_owned());
            }
            let group = board.group(&group)?;
            let mut answer = explain(&group.view(), address)?;
            if !may_change {
                answer.is_relative = true;
                let ranges = answer.ranges.iter_mut();
                make_relative(&mut ranges.map(|r| (r.pid, &mut r.address)).collect::<Vec<_>>());
            }
            as_json(serde_json::to_value(answer))
        }
        Request::Heat { group } => {
            let group = board.group(&group)?;
            let view = group.view();
            let heat = view.heat.as_ref().map(|h| h.lock().unwrap_or_else(PoisonError::into_inner));
            let mut bins: Vec<SentBin> = heat.iter().flat_map(|h| h.bins()).map(sent).collect();
            if !may_change {
                let bins = bins.iter_mut();
                make_relative(&mut bins.map(|b| (b.space, &mut b.address)).collect::<Vec<_>>());
            }
            Ok(json!({
                "group": view.status.name,
                "period_ms": view.status.period_ms,
                "bins": as_json(serde_json::to_value(bins))?,
            }))
        }
        _ => as_json(serde_json::to_value(board.status())),
    }
}

/// Makes addresses of each process relative to its lowest: where a program is mapped is its owner's
/// secret (address-space layout randomization), but readers may see what it uses.
fn make_relative(addresses: &mut [(u32, &mut u64)]) {
    let mut lowest: BTreeMap<u32, u64> = BTreeMap::new();
    for (space, address) in addresses.iter() {
        let least = lowest.entry(*space).or_insert(u64::MAX);
        *least = (*least).min(**address);
    }
    for (space, address) in addresses {
        **address -= lowest[space];
    }
}

fn sent(bin: terrace_core::heat::HeatBin) -> SentBin {
    SentBin {
        space: bin.space,
        address: bin.address,
        size_bytes: bin.size_bytes,
        period: bin.period,
        periods: bin.periods,
        accessed_share: bin.accessed_share,
        fast_share: bin.fast_share,
    }
}

fn send(mut stream: UnixStream, answer: &Result<Value, String>) -> std::io::Result<()> {
    let value = match answer {
        Ok(value) => json!({ "ok": value }),
        Err(error) => json!({ "error": error }),
    };
    let mut text = value.to_string();
    text.push('\n');
    stream.write_all(text.as_bytes())
}

/// Sends a request to a daemon. The error is one line with the remedy.
pub fn ask(socket: &Path, request: &Request) -> Result<Value, String> {
    let name = socket.display();
    let mut stream = UnixStream::connect(socket).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            format!("{name}: no terraced listens there; start it, or name its socket with --socket")
        }
        std::io::ErrorKind::PermissionDenied => {
            let group = std::fs::metadata(socket).map_or(0, |m| m.gid());
            format!("{name}: no right to ask; be root, or a member of group {group}")
        }
        _ => format!("{name}: {e}"),
    })?;
    let io = |e: std::io::Error| format!("{name}: {e}");
    stream.set_read_timeout(Some(CHANGE_PATIENCE + PATIENCE)).map_err(io)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
    let mut line = serde_json::to_string(request).map_err(|e| e.to_string())?;
    line.push('\n');
    match stream.write_all(line.as_bytes()) {
        // The daemon refused without reading, and has sent the reason.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
        written => written.map_err(io)?,
    }
    let mut text = String::new();
    // To the end of the line, not of the stream, which may end in a reset.
    BufReader::new(stream.take(MOST_ANSWER_BYTES)).read_line(&mut text).map_err(io)?;
    let answer: Value = serde_json::from_str(&text).map_err(|e| {
        format!("{name}: an answer that is none ({e}); is it a terraced of this version?")
    })?;
    match (answer.get("ok"), answer.get("error").and_then(Value::as_str)) {
        (Some(value), _) => Ok(value.clone()),
        (_, Some(error)) => Err(error.to_owned()),
        _ => Err(format!("{name}: an answer without 'ok' and 'error'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_relative_to_the_lowest_of_each_process() {
        let mut given =
            [(1, 0x7f00_0000_2000), (2, 0x5500_0000), (1, 0x7f00_0000_0000), (2, 0x5500_3000)];
        let mut all: Vec<(u32, &mut u64)> = given.iter_mut().map(|(s, a)| (*s, a)).collect();
        make_relative(&mut all);
        assert_eq!(given.map(|(_, address)| address), [0x2000, 0, 0, 0x3000]);
        make_relative(&mut []);
    }

    struct Server {
        folder: tempfile::TempDir,
        stop: Arc<AtomicBool>,
        orders: Option<mpsc::Receiver<Order>>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Server {
        fn start() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let listener = bind(&folder.path().join("s"), "").unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let (send, orders) = mpsc::channel();
            let theirs = Arc::clone(&stop);
            let board = Arc::new(Board::default());
            let thread = std::thread::spawn(move || serve(listener, board, send, theirs));
            Server { folder, stop, orders: Some(orders), thread: Some(thread) }
        }

        fn raw(&self, bytes: &[u8]) -> String {
            let mut stream = UnixStream::connect(self.folder.path().join("s")).unwrap();
            // The daemon may answer and hang up before it has read everything.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut text = String::new();
            let _ = stream.read_to_string(&mut text);
            text
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            let _ = self.thread.take().map(|t| t.join());
        }
    }

    #[test]
    fn status_comes_over_the_socket_and_changes_reach_the_service() {
        let mut server = Server::start();
        let socket = server.folder.path().join("s");
        let status = ask(&socket, &Request::Status {}).unwrap();
        assert_eq!(status["pid"], std::process::id());
        let orders = server.orders.take().unwrap();
        let service = std::thread::spawn(move || {
            let order = orders.recv().unwrap();
            order.answer.send(Ok(json!("done"))).unwrap();
            order.request
        });
        assert_eq!(ask(&socket, &Request::Reload {}).unwrap(), "done");
        assert_eq!(service.join().unwrap(), Request::Reload {});
        // The receiver is gone: an error at once, without waiting.
        assert!(ask(&socket, &Request::Save {}).unwrap_err().contains("ending"));
        let error = ask(&socket, &Request::Heat { group: "x".into() }).unwrap_err();
        assert!(error.contains("no group is named 'x'"), "{error}");
    }

    #[test]
    fn only_its_owner_can_open_the_socket_and_a_dead_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = bind(&path, "").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(bind(&path, "").unwrap_err().to_string().contains("another terraced"));
        drop(listener);
        drop(bind(&path, "").unwrap());
        let message = ask(&path, &Request::Status {}).unwrap_err();
        assert!(message.contains("no terraced listens"), "{message}");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(bind(&path, "").unwrap_err().to_string().contains("is no socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert!(bind(&folder.path().join("t"), "no such group").is_err());
    }

    #[test]
    fn groups_are_found_by_name_or_number() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("group");
        std::fs::write(&file, "root:x:0:\nadm:x:4:syslog\nbroken\nworse:x:no:\n").unwrap();
        assert_eq!(group_id(&file, "adm"), Some(4));
        assert_eq!(group_id(&file, "17"), Some(17));
        assert_eq!(group_id(&file, "broken"), None);
        assert_eq!(group_id(&file, "worse"), None);
    }

    #[test]
    fn who_may_only_read_changes_nothing() {
        let (send, orders) = mpsc::channel();
        let board = Board::default();
        for request in [Request::Reload {}, Request::Save {}, Request::Stop {}] {
            let error = respond(request, false, &board, &send).unwrap_err();
            assert!(error.contains("only root"), "{error}");
        }
        assert!(orders.try_recv().is_err());
        assert!(respond(Request::Status {}, false, &board, &send).is_ok());
        let request = Request::Explain { group: "g".to_owned(), address: Some(4096) };
        let error = respond(request, false, &board, &send).unwrap_err();
        assert!(error.contains("only root may ask for an address"), "{error}");
    }

    #[test]
    fn hostile_requests_are_answered_with_one_line_and_the_next_is_served() {
        let server = Server::start();
        let long = vec![b'x'; 10 * MOST_REQUEST_BYTES];
        let nested = [b'['; 3000];
        for bytes in
            [&b""[..], b"\n", b"{}\n", &long, &nested, b"\xff\xfe\n", b"{\"request\":\"no\"}\n"]
        {
            let text = server.raw(bytes);
            // Nothing may be left to read of a connection that was cut off while it was sending.
            if !text.is_empty() {
                assert_eq!(text.lines().count(), 1, "{text}");
                assert!(text.starts_with("{\"error\":"), "{text}");
            }
        }
        assert!(server.raw(b"{\"request\":\"status\"}\n").starts_with("{\"ok\":"));
    }

    #[test]
    fn connections_beyond_the_bound_are_refused_and_places_come_free() {
        let server = Server::start();
        let socket = server.folder.path().join("s");
        let held: Vec<_> =
            (0..MOST_CONNECTIONS).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        let error = ask(&socket, &Request::Status {}).unwrap_err();
        assert!(error.contains("too many connections"), "{error}");
        drop(held);
        let begin = Instant::now();
        while ask(&socket, &Request::Status {}).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    proptest! {
        #[test]
        fn any_line_is_a_request_or_one_line_of_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Err(e) = parse(&bytes) {
                prop_assert!(!e.contains('\n') && e.len() < 2000);
            }
        }

        #[test]
        fn damaged_requests_are_read_or_refused(at in 0usize..60, byte in any::<u8>(), cut in 0usize..60) {
            let mut line = br#"{"request":"explain","group":"redis","address":140000000000}"#.to_vec();
            line[at] = byte;
            line.truncate(60 - cut);
            let _ = parse(&line);
        }
    }
}
