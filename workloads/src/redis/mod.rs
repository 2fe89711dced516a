//! A load for Redis: Zipfian reads and writes beside a batch scan, every value checked.
//!
//! Own client, because what counts here is not in a general one: values are made in and checked
//! from the socket buffers without a copy, which keeps the client cheap where processors are
//! emulated, and the sequence of operations is a pure function of the seed.
//!
//! - [`resp`]: the protocol; [`connection`]: sockets with bounds;
//! - [`value`]: values that prove themselves; [`popularity`]: which key when;
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
    /// Nobody answers there.
    #[error("cannot connect to {server}: {source}; is redis-server running and listening there?")]
    Connect {
        /// The address.
        server: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The server went away or stopped answering.
    #[error("{server} {what} after {operations} operations; see the server's log")]
    Lost {
        /// The address.
        server: String,
        /// What happened, as a verb.
        what: String,
        /// Operations that were answered by then.
        operations: u64,
    },
    /// What came is not the Redis protocol.
    #[error("{server} sent {what}; expected a reply in the Redis protocol (RESP 2)")]
    Protocol {
        /// The address.
        server: String,
        /// What came.
        what: String,
    },
    /// The server refused a command that must not fail.
    #[error("{server} answered '{answer}' to {command}")]
    Refused {
        /// The address.
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
        /// The file.
        path: std::path::PathBuf,
        /// What went wrong.
        what: String,
    },
}
