//! The service manager's notifications (`sd_notify(3)`): the daemon is ready, is alive, is ending.
//!
//! Sent by the service's own loop, so that a loop that hangs is noticed: systemd ends a service
//! whose `WATCHDOG=1` stays out for `WatchdogSec`, the guard puts the settings back, and the
//! daemon is started again. The protocol is a datagram of `KEY=value` lines to the Unix socket
//! that `NOTIFY_SOCKET` names; without that variable nothing is sent.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::{Duration, Instant};

/// Sends notifications.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    /// Interval of notifications that the daemon is alive; `None` if the manager does not ask for
    /// them.
    every: Option<Duration>,
    next: Option<Instant>,
}

impl Notifier {
    /// As the environment of this process requests.
    pub fn from_environment() -> io::Result<Self> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(Self::default()) };
        let text = |key| std::env::var(key).ok();
        let usec = watchdog(
            text("WATCHDOG_USEC").as_deref(),
            text("WATCHDOG_PID").as_deref(),
            std::process::id(),
        );
        let name = name.as_encoded_bytes();
        let address =
            match name.strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(Path::new(std::str::from_utf8(name).map_err(
                    |_| io::Error::new(io::ErrorKind::InvalidInput, "NOTIFY_SOCKET is not UTF-8"),
                )?))?,
            };
        Self::to(&address, usec)
    }

    /// To this socket; `watchdog` is the time after which a silent daemon counts as hung.
    pub fn to(address: &SocketAddr, watchdog: Option<Duration>) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(address)?;
        // A manager that does not read must not block the loop that it watches.
        socket.set_nonblocking(true)?;
        // Three times in that time: a late or lost notification does no harm.
        Ok(Notifier { socket: Some(socket), every: watchdog.map(|w| w / 3), next: None })
    }

    /// Reports that the daemon works.
    pub fn ready(&self) {
        self.send("READY=1\n");
    }

    /// Reports that the daemon is alive, if that is due.
    pub fn alive(&mut self) {
        let Some(every) = self.every else { return };
        let now = Instant::now();
        if self.next.is_none_or(|next| now >= next) {
            self.next = Some(now + every);
            self.send("WATCHDOG=1\n");
        }
    }

    /// Reports that the daemon ends in order.
    pub fn stopping(&self) {
        self.send("STOPPING=1\n");
    }

    fn send(&self, text: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(text.as_bytes())
        {
            tracing::warn!(%error, text, "the service manager was not notified");
        }
    }
}

/// The time of the watchdog, if one is requested for this process.
fn watchdog(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let usec = usec?.parse().ok().filter(|usec| *usec > 0)?;
    Some(Duration::from_micros(usec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_that_is_meant_is_watched() {
        let ms = |n| Some(Duration::from_millis(n));
        assert_eq!(watchdog(Some("30000000"), None, 7), ms(30_000));
        assert_eq!(watchdog(Some("1000"), Some("7"), 7), ms(1));
        assert_eq!(watchdog(Some("1000"), Some("8"), 7), None);
        assert_eq!(watchdog(Some("0"), None, 7), None);
        assert_eq!(watchdog(Some("soon"), None, 7), None);
        assert_eq!(watchdog(None, None, 7), None);
    }

    #[test]
    fn a_manager_that_does_not_read_holds_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let _manager = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_pathname(&path).unwrap();
        let notifier = Notifier::to(&address, None).unwrap();
        let begin = Instant::now();
        (0..10_000).for_each(|_| notifier.ready());
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}
