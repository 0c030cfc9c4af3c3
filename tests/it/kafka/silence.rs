//! A group's coordinator that does not answer a request to join.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use postdate::health::PartState;
use postdate::ingress::{READ_BYTES, ReadBudget};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{IngressFixture, RecordingSink, connection, produce};
use crate::support::{Kafka, eventually, names, ports};

/// Kafka's number for a request to join a group.
const JOIN_GROUP: [u8; 2] = [0, 11];

/// Relays connections to a broker, but for the first request to join a group, which never arrives.
struct JoinSwallower {
    port: u16,
    has_swallowed: Arc<AtomicBool>,
}

impl JoinSwallower {
    async fn before(broker: u16) -> Self {
        let port = ports::free();
        let listener = TcpListener::bind(("127.0.0.1", port))
            .await
            .expect("a free port");
        let has_swallowed = Arc::new(AtomicBool::new(false));
        let shared = has_swallowed.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", broker)).await else {
                    continue;
                };
                let (from_client, mut to_client) = client.into_split();
                let (mut from_server, to_server) = server.into_split();
                tokio::spawn(relay_requests(from_client, to_server, shared.clone()));
                tokio::spawn(
                    async move { tokio::io::copy(&mut from_server, &mut to_client).await },
                );
            }
        });
        Self {
            port,
            has_swallowed,
        }
    }
}

async fn relay_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    has_swallowed: Arc<AtomicBool>,
) {
    while let Ok(len) = from.read_u32().await {
        let mut request = vec![0; len as usize];
        if from.read_exact(&mut request).await.is_err() {
            return;
        }
        if request.starts_with(&JOIN_GROUP) && !has_swallowed.swap(true, Ordering::SeqCst) {
            continue;
        }
        let sent = async {
            to.write_u32(len).await?;
            to.write_all(&request).await
        };
        if sent.await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_that_is_never_answered_is_tried_again_by_another_consumer() {
    let listens = ports::free();
    let silence = JoinSwallower::before(listens).await;
    let kafka = Kafka::start_behind(listens, silence.port).await;
    let topic = kafka.unique_topic("silent", 1).await;
    produce(&kafka, &topic, "m", 0..10);
    let memory = Arc::new(RecordingSink::default());
    let group = names::unique("g");
    let mut behind = connection(&kafka);
    behind.brokers = format!("127.0.0.1:{}", silence.port);
    let budget = Arc::new(ReadBudget::new(READ_BYTES));
    let reader = IngressFixture::start_at(&behind, &group, &[&topic], &memory, &budget);
    eventually("the request to join", async || {
        let has_swallowed = silence.has_swallowed.load(Ordering::SeqCst);
        if has_swallowed {
            Ok(())
        } else {
            Err("not asked yet")
        }
    })
    .await;
    eventually("it says what it waits for", async || {
        match reader.health.parts().remove(0).1 {
            PartState::Waiting(why) | PartState::Degraded(why)
                if why.contains("no partitions yet") =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    memory.has("m", 10).await;
    eventually("it is up", async || {
        match reader.health.parts().remove(0).1 {
            PartState::Up => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    reader.stop().await;
}
