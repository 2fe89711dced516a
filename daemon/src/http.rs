//! The HTTP endpoint of the metrics: `GET /metrics`, within bounds of size, time and connections.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::board::Board;
use crate::metrics;

/// Largest head of a request; hyper accepts no smaller bound.
const MOST_BYTES: usize = 8 << 10;
/// Time for the head of a request, and for a connection as a whole.
const HEAD_TIME: Duration = Duration::from_secs(2);
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Most connections at a time; others wait until one has ended.
const MOST_CONNECTIONS: usize = 64;
/// Interval of checks of the stop flag.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Answers scrapes until `stop` is set. Slow and silent clients do not delay others.
///
/// # Errors
/// When the runtime cannot be made or the socket cannot be used.
pub fn serve(listener: TcpListener, board: Arc<Board>, stop: Arc<AtomicBool>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::select! {
            () = accept(listener, board) => {}
            () = stopped(&stop) => {}
        }
        Ok(())
    })
}

async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

async fn accept(listener: tokio::net::TcpListener, board: Arc<Board>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // For example, no file descriptor is free: others may be closed meanwhile.
                tracing::debug!(%error, "a scrape");
                tokio::time::sleep(CHECK_EVERY).await;
                continue;
            }
        };
        let board = Arc::clone(&board);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let reply = reply(&request, &board);
                async { Ok::<_, Infallible>(reply) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(MOST_BYTES)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            match tokio::time::timeout(CONNECTION_TIME, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a scrape"),
                Err(_) => tracing::debug!("a scrape took longer than {CONNECTION_TIME:?}"),
            }
            drop(place);
        });
    }
}

fn reply(request: &Request<Incoming>, board: &Board) -> Response<String> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let (code, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let text = metrics::render(&board.status());
            (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
        }
        (&Method::GET, "/") => (StatusCode::OK, TEXT, "terraced: see /metrics\n".to_owned()),
        (&Method::GET, _) => (StatusCode::NOT_FOUND, TEXT, "expected /metrics\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "expected GET /metrics\n".to_owned()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    if code == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, hyper::header::HeaderValue::from_static("GET"));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::time::Instant;

    use super::*;

    /// A server that ends with the test.
    struct Server {
        address: SocketAddr,
        stop: Arc<AtomicBool>,
        thread: Option<std::thread::JoinHandle<io::Result<()>>>,
    }

    impl Server {
        fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let end = Arc::clone(&stop);
            let thread = std::thread::spawn(move || serve(listener, Arc::default(), end));
            Server { address, stop, thread: Some(thread) }
        }

        fn connect(&self) -> TcpStream {
            let stream = TcpStream::connect(self.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream
        }

        /// The answer until the server closes.
        fn answer(&self, request: &[u8]) -> String {
            let mut stream = self.connect();
            let _ = stream.write_all(request);
            let mut text = Vec::new();
            let _ = stream.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            self.thread.take().unwrap().join().unwrap().unwrap();
        }
    }

    #[test]
    fn scrapes_are_answered_and_other_requests_say_what_is_expected() {
        let server = Server::start();
        let scrape = server.answer(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(scrape.starts_with("HTTP/1.1 200 OK"), "{scrape}");
        assert!(scrape.contains("version=0.0.4") && scrape.contains("\nterrace_groups 0\n"));
        for (request, expected) in [
            ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", "200 OK"),
            ("GET /etc/passwd HTTP/1.1\r\nHost: h\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "405 Method"),
            ("\u{1}\u{2}nonsense\r\n\r\n", "400 Bad Request"),
        ] {
            let answer = server.answer(request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{request}: {answer}");
        }
        let large = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
        assert!(!server.answer(large.as_bytes()).contains("200 OK"));
    }

    #[test]
    fn silent_connections_delay_no_scrape_and_are_closed() {
        let server = Server::start();
        let mut silent: Vec<TcpStream> =
            (0..MOST_CONNECTIONS - 1).map(|_| server.connect()).collect();
        silent[0].write_all(b"GET /metr").unwrap();
        let begin = Instant::now();
        let scrape = server.answer(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(scrape.starts_with("HTTP/1.1 200 OK"), "{scrape}");
        // In sequence each would have had the time for a request's head.
        let one_by_one = HEAD_TIME * (silent.len() / 4) as u32;
        assert!(begin.elapsed() < one_by_one, "{:?}", begin.elapsed());
        for stream in &mut silent {
            let mut text = Vec::new();
            let closed = stream.read_to_end(&mut text);
            assert!(closed.is_ok() || closed.unwrap_err().kind() == io::ErrorKind::ConnectionReset);
        }
    }
}
