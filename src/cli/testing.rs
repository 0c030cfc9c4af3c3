//! For tests: a double of the API, whose answers are ready before it is asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

/// A double of the API.
pub(super) struct ApiDouble {
    pub(super) url: String,
    /// The bodies of the requests so far; null where a request had none.
    pub(super) bodies: Arc<Mutex<Vec<Value>>>,
}

impl ApiDouble {
    /// Gives these answers, a status and a body each, to one request after the other. After the last it cannot be reached.
    pub(super) fn start(answers: Vec<(u16, Value)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&bodies);
        std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().expect("accepted");
                seen.lock().push(request_body(&mut stream));
                let body = body.to_string();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).expect("answered");
            }
        });
        Self { url, bodies }
    }
}

/// Reads one request, head and body. Answers its body.
fn request_body(stream: &mut TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let read = reader.read_line(&mut head).expect("a head");
        assert!(read > 0, "half a request: {head}");
    }
    let head = head.to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).expect("a body");
    serde_json::from_slice(&body).unwrap_or_default()
}
