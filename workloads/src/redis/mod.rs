//! A load for Redis: Zipfian reads and writes beside a batch scan, every value checked.
//!
//! Own client, because a general one lacks two properties: values are made in and checked from the
//! socket buffers without a copy, which keeps the client cheap where processors are emulated, and
//! the sequence of operations is a pure function of the seed.
//!
//! - [`resp`]: the protocol; [`connection`]: sockets with bounds;
//! - [`value`]: self-checking values; [`popularity`]: which key when;
//! - [`load`], [`run`], [`verify`]: the three phases.

pub mod connection;
pub mod load;
pub mod popularity;
pub mod resp;
pub mod run;
pub mod value;
pub mod verify;

/// Why a phase gave up.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is neither a path nor a host with a port.
    #[error("server '{0}': expected 'unix:/path/of/socket' or 'host:port'")]
    BadAddress(String),
    /// No server answers there.
    #[error("cannot connect to {server}: {source}; is redis-server running and listening there?")]
    Connect {
        /// The server's address.
        server: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The server went away or stopped answering.
    #[error("{server} {what} after {operations} operations; see the server's log")]
    Lost {
        /// The server's address.
        server: String,
        /// The event, as a verb.
        what: String,
        /// Operations that were answered by then.
        operations: u64,
    },
    /// The data received is not the Redis protocol.
    #[error("{server} sent {what}; expected a reply in the Redis protocol (RESP 2)")]
    Protocol {
        /// The server's address.
        server: String,
        /// The data received.
        what: String,
    },
    /// The server rejected a command that must not fail.
    #[error("{server} answered '{answer}' to {command}")]
    Refused {
        /// The server's address.
        server: String,
        /// The command.
        command: &'static str,
        /// The error reply.
        answer: String,
    },
    /// An impossible parameter.
    #[error("{0}")]
    BadParameter(String),
    /// The versions file could not be written or read.
    #[error("versions file {path}: {what}")]
    Versions {
        /// Path of the file.
        path: std::path::PathBuf,
        /// The problem.
        what: String,
    },
}
