//! An HTTP server for tests: it stands for issuers of tokens and credentials.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// A server on a port of its own, for the life of the test process.
pub(super) struct Issuer {
    /// Its address, without a slash at the end.
    pub(super) url: String,
    /// Requests as they came: the first line, the headers, an empty line, the body.
    pub(super) asked: Arc<Mutex<Vec<String>>>,
}

/// What is answered to a request that begins so: the status, further headers, and the body.
pub(super) type Answer = (&'static str, u16, &'static str, String);

impl Issuer {
    /// Starts one. A request that no answer is for gets a 404.
    pub(super) fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = asked.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.expect("a connection");
                let request = read(&connection);
                let found = answers
                    .iter()
                    .find(|(begin, ..)| request.starts_with(begin));
                noted.lock().push(request.clone());
                let (status, headers, body) = match found {
                    Some((_, status, headers, body)) => (*status, *headers, body.as_str()),
                    None => (404, "", ""),
                };
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}"
                );
                // A client may leave before it has all.
                drop(connection.write_all(answer.as_bytes()));
            }
        });
        Self { url, asked }
    }
}

fn read(connection: &TcpStream) -> String {
    let mut reader = BufReader::new(connection);
    let mut request = String::new();
    let mut length = 0;
    while !request.ends_with("\r\n\r\n") {
        let from = request.len();
        if reader.read_line(&mut request).expect("a line") == 0 {
            return request;
        }
        let line = request[from..].to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    request + &String::from_utf8(body).expect("a text")
}
