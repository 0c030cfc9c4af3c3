//! More clients than places: silent, unread, slow, or no HTTP at all. Probes answer beside them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::super::connection::ConnectionBounds;
use super::super::start;
use super::super::testing::{InjectBehaviour, READ_TOKEN, TestServer, WRITE_TOKEN, config, state};
use super::problem;
use crate::lifecycle::{Shutdown, Tasks};
use crate::telemetry::logging::testing::capture;

/// Longest time that a probe may take beside a crowd: less than the time after which an idle connection is closed by
/// itself, so that no probe has waited for that.
const PROBE_LIMIT: Duration = Duration::from_secs(8);
/// Probes beside each crowd.
const PROBES: usize = 20;
/// Probes in a row that may fail: half of those after which Kubernetes kills. A probe from the address of a crowd shares
/// its places, and may be the connection that makes way.
const MAX_FAILED_PROBES: usize = 3;
/// Attackers of one kind at once.
const ATTACKERS: usize = ConnectionBounds::ADMIN.places + 44;
/// Pause of an attacker whose connection was closed.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// What an attacker does with a connection.
#[derive(Clone, Copy, Debug)]
enum Attack {
    Silence,
    /// A probe each six seconds, within the deadline for an idle connection.
    EverySixSeconds,
    NeverRead,
    TlsHello,
    Http2Preface,
    Binary,
    HalfAHead,
    PipelinedMetrics,
}

impl Attack {
    const ALL: [Self; 8] = [
        Self::Silence,
        Self::EverySixSeconds,
        Self::NeverRead,
        Self::TlsHello,
        Self::Http2Preface,
        Self::Binary,
        Self::HalfAHead,
        Self::PipelinedMetrics,
    ];

    /// Bytes to send at once.
    fn bytes(self) -> Vec<u8> {
        let asked = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        match self {
            Self::Silence => Vec::new(),
            Self::EverySixSeconds => asked("/livez").into_bytes(),
            Self::NeverRead => asked("/api/v1/openapi.json").repeat(100).into_bytes(),
            Self::TlsHello => [
                &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
                &[0x5a; 512],
            ]
            .concat(),
            Self::Http2Preface => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
            Self::Binary => (0..=u8::MAX).cycle().take(4096).collect(),
            Self::HalfAHead => [&b"GET /livez HTTP/1.1\r\nx: "[..], &vec![b'x'; 900_000]].concat(),
            Self::PipelinedMetrics => asked("/metrics").repeat(100).into_bytes(),
        }
    }
}

/// Connects from an address of this machine.
async fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// Attacks for ever, with a new connection whenever the last one was closed.
async fn attack(attack: Attack, from: Ipv4Addr, to: SocketAddr) {
    let bytes = attack.bytes();
    loop {
        if let Ok(mut stream) = connect(from, to).await {
            let mut buffer = [0; 1024];
            // The server may close at any byte: then the attacker connects anew.
            let mut open = stream.write_all(&bytes).await.is_ok();
            while open {
                open = match attack {
                    Attack::EverySixSeconds => {
                        let read = stream.read(&mut buffer).await.is_ok_and(|read| read > 0);
                        tokio::time::sleep(Duration::from_secs(6)).await;
                        read && stream.write_all(&bytes).await.is_ok()
                    }
                    Attack::NeverRead => {
                        // Writes block once the buffers are full.
                        stream.write_all(&bytes).await.is_ok()
                    }
                    _ => stream.read(&mut buffer).await.is_ok_and(|read| read > 0),
                };
            }
        }
        if matches!(attack, Attack::NeverRead | Attack::PipelinedMetrics) {
            // Work without end for the server is another attack: these take places.
            return std::future::pending().await;
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// Asks once, on a connection of its own.
async fn probe(to: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(to).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_answer_beside_every_crowd() {
    let tasks = Tasks::default();
    let shutdown = Shutdown::default();
    let (state, _recorder) = state();
    let listening = start(&config(&[READ_TOKEN], &[]), state, &tasks, shutdown.clone()).await;
    let address = listening.expect("started").admin;
    for kind in Attack::ALL {
        // From one address, and from as many as there are attackers.
        for one in [true, false] {
            let attackers = Tasks::default();
            let end = Shutdown::default();
            for n in 0..ATTACKERS {
                let from = if one {
                    Ipv4Addr::LOCALHOST
                } else {
                    Ipv4Addr::from_bits(0x7f01_0000 + n as u32)
                };
                let ended = end.clone();
                attackers.spawn("attacker", async move {
                    tokio::select! {
                        () = attack(kind, from, address) => {}
                        () = ended.draining() => {}
                    }
                });
            }
            let mut failed = Vec::new();
            for _ in 0..PROBES {
                match tokio::time::timeout(PROBE_LIMIT, probe(address, "/livez")).await {
                    Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200") => failed.clear(),
                    Ok(Ok(answer)) => failed.push(answer),
                    Ok(Err(error)) => failed.push(error.to_string()),
                    Err(_) => failed.push("no answer".to_owned()),
                }
                assert!(
                    failed.len() <= MAX_FAILED_PROBES,
                    "{kind:?}, one address {one}: {failed:?}"
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            end.begin();
            assert_eq!(attackers.ended(Duration::from_secs(30)).await, Ok(()));
        }
    }
    shutdown.begin();
    assert_eq!(tasks.ended(Duration::from_secs(30)).await, Ok(()));
}

#[test]
fn probes_answer_while_every_worker_of_the_relay_is_blocked() {
    const WORKERS: usize = 2;
    let relay = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build();
    let relay = relay.expect("a runtime");
    let tasks = Tasks::default().on(relay.handle());
    let shutdown = Shutdown::default();
    let (state, _recorder) = state();
    state.health.part("redis", true).up();
    let listening = relay.block_on(start(&config(&[], &[]), state, &tasks, shutdown.clone()));
    let address = listening.expect("started").admin;
    let (blocked, begun) = std::sync::mpsc::channel();
    let mut releases = Vec::new();
    for _ in 0..WORKERS {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let blocked = blocked.clone();
        tasks.spawn("blocker", async move {
            blocked.send(()).expect("the test waits");
            released.recv().expect_err("released by its drop");
        });
        releases.push(release);
    }
    for _ in 0..WORKERS {
        begun
            .recv_timeout(Duration::from_secs(30))
            .expect("a worker is blocked");
    }
    for path in ["/livez", "/readyz", "/metrics", "/api/v1/routes"] {
        let mut stream = std::net::TcpStream::connect(address).expect("connected");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a deadline");
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("written");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    drop(releases);
    shutdown.begin();
    assert_eq!(relay.block_on(tasks.ended(Duration::from_secs(30))), Ok(()));
}

/// Opens a call from this address that the ingress holds.
async fn held_call(server: &TestServer, from: Ipv4Addr) -> TcpStream {
    let mut stream = connect(from, server.address).await.expect("connected");
    let request = format!(
        "POST /api/v1/routes/orders/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {WRITE_TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).await.expect("written");
    server.recorder.arrived.notified().await;
    stream
}

#[tokio::test]
async fn an_address_with_too_many_calls_under_way_gets_probes_and_others_get_everything() {
    let server = TestServer::start().await;
    *server.recorder.behaviour.lock() = InjectBehaviour::Hold;
    let mut held = Vec::new();
    // Half of the places are anybody's.
    for _ in 0..=ConnectionBounds::ADMIN.places / 2 {
        held.push(held_call(&server, Ipv4Addr::LOCALHOST).await);
    }
    for path in ["/livez", "/metrics"] {
        assert_eq!(
            server.call("GET", path, None, "").await.status,
            200,
            "{path}"
        );
    }
    problem(
        &server
            .call("GET", "/api/v1/routes", Some(READ_TOKEN), "")
            .await,
        429,
    );
    let other = Ipv4Addr::new(127, 0, 0, 2);
    for _ in 0..ConnectionBounds::ADMIN.of_one_network {
        held.push(held_call(&server, other).await);
    }
    let metrics = server.call("GET", "/metrics", None, "").await.body;
    assert!(
        metrics.contains("postdate_admin_refused_total{reason=\"address\"} 1\n"),
        "{metrics}"
    );
    for _ in &held {
        server.recorder.release.notify_one();
        tokio::task::yield_now().await;
    }
    drop(held);
    server.shutdown.force();
    assert_eq!(server.tasks.ended(Duration::from_secs(30)).await, Ok(()));
}

#[tokio::test]
async fn refused_calls_are_counted_and_told_in_one_line() {
    let (lines, _guard) = capture();
    let server = TestServer::start().await;
    for _ in 0..7 {
        problem(
            &server
                .call("GET", "/api/v1/routes", Some("wrong"), "")
                .await,
            401,
        );
    }
    for _ in 0..3 {
        problem(
            &server
                .call("DELETE", "/api/v1/routes", Some(READ_TOKEN), "")
                .await,
            403,
        );
    }
    let metrics = server.call("GET", "/metrics", None, "").await.body;
    for (reason, count) in [("unauthorized", 7), ("forbidden", 3)] {
        let sample = format!("postdate_admin_refused_total{{reason=\"{reason}\"}} {count}\n");
        assert!(metrics.contains(&sample), "{sample} in {metrics}");
    }
    let text = lines.text();
    let told: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("admin refused a caller"))
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].contains("reason=\"unauthorized\" from=127.0.0.1"),
        "{told:?}"
    );
    server.end().await;
}

#[tokio::test]
async fn the_probes_have_an_address_of_their_own_if_one_is_configured() {
    let probes = super::super::Config {
        probe_listen: Some(([127, 0, 0, 1], 0).into()),
        ..config(&[], &[])
    };
    let server = TestServer::with(probes).await;
    let address = server.addresses.probes.expect("configured");
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(address).await.expect("connected"));
    }
    for (path, status) in [
        ("/livez", 200),
        ("/readyz", 200),
        ("/metrics", 404),
        ("/api/v1/routes", 404),
        ("/api/v1/openapi.json", 404),
    ] {
        let answer = tokio::time::timeout(Duration::from_secs(5), probe(address, path)).await;
        let answer = answer.expect("in time").expect("answered");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{path}: {answer}"
        );
    }
    server.end().await;
}

#[tokio::test]
async fn an_answer_is_under_way_until_its_last_byte_is_written() {
    let server = TestServer::start().await;
    let mut kept = TcpStream::connect(server.address).await.expect("connected");
    kept.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .expect("written");
    let mut answer = [0; 256];
    assert!(kept.read(&mut answer).await.expect("answered") > 0);
    assert_eq!(server.connections.responding(), [false]);
    let mut unread = connect(Ipv4Addr::LOCALHOST, server.address)
        .await
        .expect("connected");
    unread
        .write_all(&Attack::NeverRead.bytes())
        .await
        .expect("written");
    let under_way = async {
        while server.connections.responding() != [false, true] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), under_way)
        .await
        .expect("the buffers fill up");
    drop((kept, unread));
    server.end().await;
}
