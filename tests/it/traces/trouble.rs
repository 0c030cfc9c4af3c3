//! Collectors in trouble: hung, away, busy, refusing, rejecting.

use std::time::Duration;

use axum::http::StatusCode;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use prost::Message as _;
use tokio::net::{TcpListener, TcpSocket};

use super::collector::{Collector, section, text};
use super::delayed;
use crate::flow::fixture::{FlowFixture, Path, Side, config};
use crate::support::run::now_ms;
use crate::support::{Relay, eventually};

/// Lateness of a message beside a collector that is in trouble, at most: half of the time that a request to it takes.
const LATE_MS: i64 = 10_000;
/// Time of a stop beside a collector that is in trouble, at most.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// Wait that the collector asks for.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_in_trouble_loses_spans_and_delays_nothing() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("traced", Side::Classic, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    // Takes connections, and says nothing.
    let hung = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = hung.local_addr().expect("bound");
    let section = format!("[traces]\nendpoint = \"http://{address}/v1/traces\"\ntimeout = \"20s\"");
    let mut relay = Relay::start(&path.configure(config(&fixture).section(&section), "")).await;
    let cases: Vec<String> = (0..20).map(|n| format!("message-{n}")).collect();
    for case in &cases {
        fixture
            .send(&path, &[(delayed(path.from, case, "01"), now_ms())])
            .await;
    }
    fixture.await_cases(&cases).await;
    let arrived = fixture.arrived();
    for case in &cases {
        let arrival = arrived[case][0].clone();
        let due_ms = arrival.wire.take_stamp().0.due_ms.expect("stamped");
        assert!(
            arrival.received_ms - due_ms < LATE_MS,
            "{case} came {} ms late",
            arrival.received_ms - due_ms
        );
    }
    // The request that waits for its answer began a second after the first span.
    let began = std::time::Instant::now();
    let ended = relay.terminate().await;
    assert!(ended.success() || ended.code() == Some(143), "{ended:?}");
    assert!(
        began.elapsed() < STOP_LIMIT,
        "it took {:?}",
        began.elapsed()
    );
    assert!(
        relay
            .log()
            .contains("the collector of traces did not take the last spans in time")
    );
}

/// Waits until so many spans are lost, all of them by this cause.
async fn await_lost(relay: &Relay, cause: &str, expected: f64) {
    eventually("lost spans are counted", async || {
        let lost = relay
            .metrics()
            .await?
            .sum("postdate_spans_lost_total", &[("cause", cause)]);
        if (lost - expected).abs() < 0.5 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{lost} lost"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_back_soon_gets_all_spans_and_what_it_refuses_or_rejects_is_counted() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("traced", Side::Classic, Side::Classic);
    fixture.open(std::slice::from_ref(&path)).await;
    // Refuses connections until it listens.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind("127.0.0.1:0".parse().expect("an address"))
        .expect("a port");
    let endpoint = format!("http://{}/v1/traces", socket.local_addr().expect("bound"));
    let relay =
        Relay::start(&path.configure(config(&fixture).section(&section(&endpoint)), "")).await;
    let send = async |case: &str| {
        fixture
            .send(&path, &[(delayed(path.from, case, "01"), now_ms())])
            .await;
        fixture.await_cases(&[case.to_owned()]).await;
    };
    send("away").await;
    let logged = async |words: &str| {
        eventually(words, async || {
            if relay.log().contains(words) {
                Ok(())
            } else {
                Err("not logged")
            }
        })
        .await;
    };
    logged("spans cannot be exported; what is not taken soon is lost").await;
    let collector = Collector::default();
    collector.serve(socket.listen(64).expect("listening"));
    collector
        .refuse(StatusCode::SERVICE_UNAVAILABLE, Vec::new(), 2)
        .await;
    let [first, second, ..] = collector.requests()[..] else {
        panic!("two requests")
    };
    assert!(
        second - first >= RETRY_AFTER,
        "it is left alone for as long as it asks"
    );
    collector
        .refuse(StatusCode::TOO_MANY_REQUESTS, Vec::new(), 1)
        .await;
    collector.accept();
    let (admission, deliveries) = collector.spans_of("away", 1).await;
    assert_eq!(text(&admission, "messaging.destination.name"), path.ingress);
    assert_eq!(
        text(&deliveries[0], "messaging.destination.name"),
        path.target
    );
    logged("the collector of traces takes spans again").await;
    assert!(relay.total("postdate_spans_lost_total", &[]).await < 0.5);

    let refusing = collector.refuse(StatusCode::BAD_REQUEST, Vec::new(), 1);
    tokio::join!(send("refused"), refusing);
    await_lost(&relay, "refused", 2.0).await;
    let partial_success = Some(ExportTracePartialSuccess {
        rejected_spans: 10,
        error_message: "no".into(),
    });
    let body = ExportTraceServiceResponse { partial_success }.encode_to_vec();
    let rejecting = collector.refuse(StatusCode::OK, body, 1);
    tokio::join!(send("rejected"), rejecting);
    await_lost(&relay, "rejected", 2.0).await;
    logged("the collector of traces rejected some spans").await;
}
