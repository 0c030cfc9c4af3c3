//! More clients than places, none of which reads or writes.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use super::super::server::MAX_CONNECTIONS;
use super::super::testing::TestServer;

/// A client that sends many requests and reads none of the answers.
async fn unread_client(server: &TestServer) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut stream = socket.connect(server.address).await.expect("connected");
    let request = "GET /api/v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    stream.write_all(request.as_bytes()).await.expect("written");
    stream
}

#[tokio::test]
async fn probes_answer_beside_clients_that_do_not_read_and_clients_that_say_nothing() {
    let server = TestServer::start().await;
    let mut open = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        open.push(unread_client(&server).await);
    }
    for _ in 0..MAX_CONNECTIONS {
        open.push(TcpStream::connect(server.address).await.expect("connected"));
    }
    for _ in 0..3 {
        let probe = server.call("GET", "/livez", None, "");
        let answer =
            tokio::time::timeout(Duration::from_secs(5), probe).await.expect("a probe has its answer");
        assert_eq!(answer.status, 200);
    }
    drop(open);
    server.end().await;
}
