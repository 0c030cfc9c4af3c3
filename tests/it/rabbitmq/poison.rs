//! Deliveries that the client library cannot parse.

use postdate::lifecycle::readiness::ReadinessState;
use prometheus_client::encoding::text::encode;

use super::{DeliverySink, RabbitmqFixture, Submitter, bodies, message, resolve};
use crate::support::{QueueKind, Rabbitmq, eventually, names};

#[tokio::test(flavor = "multi_thread")]
async fn a_header_name_that_is_not_text_stops_its_own_route_only() {
    let server = Rabbitmq::start().await;
    let queues: Vec<_> = (0..3).map(|_| names::unique("q")).collect();
    for queue in &queues {
        server.declare_queue(queue, QueueKind::Classic).await;
    }
    let feeder = RabbitmqFixture::new(&server);
    let lanes = feeder.lanes();
    let lane = lanes.lane("");
    let mut submitter = Submitter::default();
    for ticket in 0..5 {
        submitter.submit(&*lane, ticket, &queues[1], message(format!("before {ticket}")), None);
    }
    submitter.collect(5).await;
    // No client of ours could send it: the broker publishes it itself.
    let poison = format!(
        "rabbit_basic:publish(rabbit_misc:r(<<\"/\">>, exchange, <<>>), <<\"{}\">>, \
         [{{headers, [{{<<255,254>>, longstr, <<\"x\">>}}]}}], <<\"poison\">>).",
        queues[1]
    );
    server.ctl(&["eval", &poison]).await;
    assert_eq!(server.queue_len(&queues[1]).await, 6);

    let fixture = RabbitmqFixture::new(&server);
    let sink = DeliverySink::default();
    let registry = fixture.consume(&queues.iter().map(String::as_str).collect::<Vec<_>>(), 100, &sink);
    let resolver = async {
        loop {
            for delivery in sink.catch(1).await {
                let seen = bodies(std::slice::from_ref(&delivery)).remove(0);
                delivery.receipt.resolve();
                if seen.starts_with("after") {
                    return;
                }
            }
        }
    };
    let metrics = || {
        let mut text = String::new();
        encode(&mut text, &registry).expect("metrics");
        text
    };
    let paused = async {
        eventually("the route stops", async || {
            let text = metrics();
            let line = "postdate_ingress_paused{route=\"r1\",reason=\"undecodable\"} 1";
            if text.contains(line) { Ok(()) } else { Err(text) }
        })
        .await;
        // All before the poison were stored and acknowledged on the way; it alone is left.
        eventually("only the poison is left", async || match server.queue_len(&queues[1]).await {
            1 => Ok(()),
            left => Err(left),
        })
        .await;
        submitter.submit(&*lane, 100, &queues[0], message("after 0"), None);
    };
    tokio::join!(paused, resolver);
    submitter.submit(&*lane, 101, &queues[2], message("after 2"), None);
    let last = sink.catch(1).await;
    assert_eq!(bodies(&last), ["after 2"]);
    resolve(last);
    submitter.collect(7).await;
    let text = metrics();
    assert!(!text.contains("route=\"r0\",reason=\"undecodable\""), "{text}");
    assert_eq!(fixture.readiness.parts(), [("rabbitmq:main".to_owned(), ReadinessState::Up)]);
    fixture.drain().await;
    feeder.drain().await;
}
