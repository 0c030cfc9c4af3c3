//! What systemd hears of a relay under `Type=notify`.

use std::time::Duration;

use tokio::net::UnixDatagram;

use crate::support::process::Signal;
use crate::support::{Config, Relay};

/// The next state that the relay tells.
async fn told(socket: &UnixDatagram) -> String {
    let mut buffer = vec![0; 1024];
    let received = tokio::time::timeout(Duration::from_secs(20), socket.recv(&mut buffer)).await;
    let len = received.expect("a state in time").expect("a datagram");
    String::from_utf8(buffer[..len].to_vec()).expect("UTF-8")
}

#[tokio::test]
async fn a_relay_says_that_it_runs_lives_and_stops_though_nothing_that_it_uses_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    let config = Config::stored("url = \"redis://127.0.0.1:1\"")
        .top("shutdown_timeout = \"70s\"")
        .section("[rabbitmq.main]\nurl = \"amqp://guest:guest@127.0.0.1:1\"")
        .route(
            "r",
            "{ rabbitmq = \"main\", queue = \"q\" }",
            "{ rabbitmq = \"main\", exchange = \"\", routing_key = \"t\" }",
            "",
        );
    let environment = [
        ("NOTIFY_SOCKET", path.to_str().expect("UTF-8")),
        ("WATCHDOG_USEC", "400000"),
    ];
    let mut relay = Relay::spawn(&config, &environment);
    relay.unobserved("nothing that it uses is there");
    assert_eq!(told(&socket).await.trim(), "READY=1");
    for _ in 0..3 {
        assert_eq!(told(&socket).await.trim(), "WATCHDOG=1");
    }
    relay.signal(Signal::TERM);
    let stopping = loop {
        let state = told(&socket).await;
        if state.trim() != "WATCHDOG=1" {
            break state;
        }
    };
    assert_eq!(stopping.trim(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=80000000");
    let ended = relay.wait(Duration::from_secs(60)).await;
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}
