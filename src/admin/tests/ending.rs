//! The end of the listener: open requests end, idle connections close, nothing hangs.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::DRAIN_GRACE;
use super::super::testing::{InjectBehaviour, TestServer, WRITE_TOKEN};
use super::problem;

const CONNECTION: &str = "admin:connection";
/// The whole server, which ends with its last connection.
const SERVER: &str = "admin";
const ENDED: Result<(), Vec<String>> = Ok(());

#[tokio::test]
async fn an_open_request_is_answered_and_an_idle_connection_closes() {
    let server = TestServer::start().await;
    *server.recorder.behaviour.lock() = InjectBehaviour::Hold;
    let mut idle = TcpStream::connect(server.address).await.expect("connected");
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .expect("written");
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.expect("answered");
    assert_eq!(&first, b"HTTP/1.1 200");
    let end = async {
        server.recorder.arrived.notified().await;
        server.shutdown.begin();
        let mut rest = Vec::new();
        idle.read_to_end(&mut rest).await.expect("closed in order");
        assert!(
            TcpStream::connect(server.address).await.is_err(),
            "it still listens"
        );
        server.recorder.release.notify_one();
    };
    let (answer, ()) = tokio::join!(server.send("orders", json!({})), end);
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(server.tasks.ended(Duration::from_secs(30)).await, ENDED);
}

#[tokio::test]
async fn a_waiting_send_is_answered_when_draining_begins() {
    let server = TestServer::start().await;
    let end = async {
        server.recorder.arrived.notified().await;
        server.shutdown.begin();
    };
    let (answer, ()) = tokio::join!(
        server.send(
            "orders",
            json!({ "id": "a", "delay": 60_000, "wait": true })
        ),
        end
    );
    let detail = problem(&answer, 503);
    assert!(detail.contains("was sent"), "{detail}");
    assert_eq!(answer.json()["id"], "a");
    assert_eq!(server.tasks.ended(Duration::from_secs(30)).await, ENDED);
}

/// Opens a request that the ingress holds for ever.
async fn held(server: &TestServer) -> TcpStream {
    *server.recorder.behaviour.lock() = InjectBehaviour::Hold;
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    let request = format!(
        "POST /api/v1/routes/orders/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {WRITE_TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).await.expect("written");
    server.recorder.arrived.notified().await;
    stream
}

#[tokio::test(start_paused = true)]
async fn the_grace_of_an_open_request_ends() {
    let server = TestServer::start().await;
    let _stream = held(&server).await;
    server.shutdown.begin();
    assert_eq!(
        server.tasks.ended(DRAIN_GRACE / 2).await,
        Err(vec![SERVER.to_owned(), CONNECTION.to_owned()])
    );
    assert_eq!(server.tasks.ended(DRAIN_GRACE).await, ENDED);
}

#[tokio::test(start_paused = true)]
async fn force_cuts_what_is_still_open() {
    let server = TestServer::start().await;
    let _stream = held(&server).await;
    server.shutdown.force();
    assert_eq!(server.tasks.ended(Duration::from_secs(1)).await, ENDED);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_head_does_not_come_is_cut() {
    let server = TestServer::start().await;
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    stream
        .write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .expect("written");
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.expect("answered");
    stream.write_all(b"GET /livez HT").await.expect("written");
    let mut rest = Vec::new();
    let cut = tokio::time::timeout(Duration::from_secs(3600), stream.read_to_end(&mut rest)).await;
    assert!(cut.is_ok(), "the connection stays open");
}
