//! A connection to a Redis server with a bound on every wait.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::ClientError;
use super::resp::{Parsed, Reply, argument, command, parse};

/// The address where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

impl FromStr for Address {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let bad = || ClientError::BadAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Address::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        if host.is_empty() || port.parse::<u16>().map_or(true, |p| p == 0) {
            return Err(bad());
        }
        Ok(Address::Tcp(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => f.write_str(address),
        }
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// One connection: commands are queued in [`Connection::out`], sent together, and answered in
/// order.
pub struct Connection {
    server: Address,
    stream: Box<dyn Stream>,
    /// Commands not yet sent.
    pub out: Vec<u8>,
    input: Vec<u8>,
    /// The part of `input` that holds bytes not yet consumed.
    filled: std::ops::Range<usize>,
    replies: u64,
}

impl Connection {
    /// Connects. No single read or write will wait longer than `timeout`.
    pub fn open(server: &Address, timeout: Duration) -> Result<Connection, ClientError> {
        let failed = |source| ClientError::Connect { server: server.to_string(), source };
        let stream: Box<dyn Stream> = match server {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(failed)?;
                stream.set_read_timeout(Some(timeout)).map_err(failed)?;
                stream.set_write_timeout(Some(timeout)).map_err(failed)?;
                Box::new(stream)
            }
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                stream.set_read_timeout(Some(timeout)).map_err(failed)?;
                stream.set_write_timeout(Some(timeout)).map_err(failed)?;
                Box::new(stream)
            }
        };
        Ok(Connection {
            server: server.clone(),
            stream,
            out: Vec::new(),
            input: vec![0; 256 << 10],
            filled: 0..0,
            replies: 0,
        })
    }

    /// The server's address.
    pub fn server(&self) -> &Address {
        &self.server
    }

    /// Sends all queued commands.
    pub fn send(&mut self) -> Result<(), ClientError> {
        let sent = self.stream.write_all(&self.out);
        self.out.clear();
        sent.map_err(|e| self.lost(e))
    }

    /// Waits for the next reply.
    pub fn reply(&mut self) -> Result<Reply<'_>, ClientError> {
        loop {
            match parse(&self.input[self.filled.clone()]) {
                Ok(Parsed::Complete(..)) => break,
                Ok(Parsed::Needs(bytes)) => self.fill(bytes)?,
                Err(what) => return Err(self.protocol(what)),
            }
        }
        self.replies += 1;
        let start = self.filled.start;
        // Read again rather than returned from the loop: the borrow would last through `fill`.
        match parse(&self.input[start..self.filled.end]) {
            Ok(Parsed::Complete(reply, used)) => {
                self.filled.start = start + used;
                Ok(reply)
            }
            _ => unreachable!("the same bytes were a complete reply above"),
        }
    }

    /// Sends one command that must succeed and returns its reply as text.
    pub fn ask(&mut self, name: &'static str, arguments: &[&str]) -> Result<String, ClientError> {
        command(&mut self.out, 1 + arguments.len());
        argument(&mut self.out, name.as_bytes());
        for a in arguments {
            argument(&mut self.out, a.as_bytes());
        }
        self.send()?;
        let server = self.server.to_string();
        match self.reply()? {
            Reply::Status(text) | Reply::Bulk(text) => Ok(String::from_utf8_lossy(text).into()),
            Reply::Integer(n) => Ok(n.to_string()),
            Reply::Nil => Ok(String::new()),
            Reply::Error(text) => Err(ClientError::Refused {
                server,
                command: name,
                answer: String::from_utf8_lossy(text).into(),
            }),
        }
    }

    /// Reads until the first unconsumed reply can have `bytes` bytes, at least once.
    fn fill(&mut self, bytes: usize) -> Result<(), ClientError> {
        if self.filled.start + bytes > self.input.len() || self.filled.is_empty() {
            self.input.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
            if bytes > self.input.len() {
                self.input.resize(bytes.next_power_of_two(), 0);
            }
        }
        match self.stream.read(&mut self.input[self.filled.end..]) {
            Ok(0) => Err(self.lost(ErrorKind::UnexpectedEof.into())),
            Ok(n) => {
                self.filled.end += n;
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(self.lost(e)),
        }
    }

    fn lost(&self, error: std::io::Error) -> ClientError {
        let what = match error.kind() {
            ErrorKind::UnexpectedEof
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted => "closed the connection".to_owned(),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                "did not answer within the time limit".to_owned()
            }
            _ => format!("could not be reached any more ({error})"),
        };
        ClientError::Lost { server: self.server.to_string(), what, operations: self.replies }
    }

    fn protocol(&self, what: String) -> ClientError {
        ClientError::Protocol { server: self.server.to_string(), what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn addresses_are_a_path_or_a_host_with_a_port() {
        assert_eq!("unix:/a b".parse::<Address>().unwrap(), Address::Unix("/a b".into()));
        assert_eq!("[::1]:6379".parse::<Address>().unwrap().to_string(), "[::1]:6379");
        for bad in ["", "unix:", "/run/redis.sock", "host", "host:", ":1", "host:0", "host:99999"] {
            assert!(bad.parse::<Address>().unwrap_err().to_string().contains("expected"), "{bad}");
        }
    }

    /// A server that sends these pieces, one write each, then closes.
    fn replies_of(pieces: Vec<Vec<u8>>) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for piece in pieces {
                stream.write_all(&piece).unwrap();
                stream.flush().unwrap();
            }
        });
        Connection::open(&address.parse().unwrap(), Duration::from_secs(10)).unwrap()
    }

    #[test]
    fn replies_split_anywhere_and_larger_than_the_buffer_come_out_whole() {
        let big = vec![b'x'; 700_000];
        let mut all = b"+OK\r\n$700000\r\n".to_vec();
        all.extend(&big);
        all.extend(b"\r\n:5\r\n");
        let mut connection = replies_of(all.chunks(4099).map(<[u8]>::to_vec).collect());
        assert_eq!(connection.reply().unwrap(), Reply::Status(b"OK"));
        assert_eq!(connection.reply().unwrap(), Reply::Bulk(&big));
        assert_eq!(connection.reply().unwrap(), Reply::Integer(5));
        let error = connection.reply().unwrap_err().to_string();
        assert!(error.contains("closed the connection after 3 operations"), "{error}");
    }

    #[test]
    fn something_that_is_not_redis_is_reported_as_such() {
        let error = replies_of(vec![b"HTTP/1.1 400 Bad Request\r\n".to_vec()]).reply().unwrap_err();
        assert!(error.to_string().contains("HTTP/1.1 400"), "{error}");
    }

    #[test]
    fn a_silent_server_ends_at_the_time_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let mut connection = Connection::open(&address, Duration::from_millis(20)).unwrap();
        let error = connection.reply().unwrap_err().to_string();
        assert!(error.contains("within the time limit"), "{error}");
    }
}
