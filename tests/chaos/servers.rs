//! The brokers that all rows share, each with a proxy before it. A row that ends or fills a broker starts one
//! of its own.

use tokio::sync::OnceCell;

use crate::support::{Kafka, Proxy, Rabbitmq, ports};

/// A broker, and the way to it that a row may hurt.
#[derive(Debug)]
pub(crate) struct Behind<T> {
    pub(crate) server: T,
    pub(crate) proxy: Proxy,
}

static KAFKA: OnceCell<Behind<Kafka>> = OnceCell::const_new();
static RABBITMQ: OnceCell<Behind<Rabbitmq>> = OnceCell::const_new();

/// The Kafka of all rows. Clients that come by the proxy are told to stay behind it.
pub(crate) async fn kafka() -> &'static Behind<Kafka> {
    KAFKA.get_or_init(own_kafka).await
}

/// The RabbitMQ of all rows.
pub(crate) async fn rabbitmq() -> &'static Behind<Rabbitmq> {
    RABBITMQ.get_or_init(own_rabbitmq).await
}

/// A Kafka of a row's own.
pub(crate) async fn own_kafka() -> Behind<Kafka> {
    let listens = ports::free();
    let proxy = Proxy::before(listens).await;
    Behind {
        server: Kafka::start_behind(listens, proxy.port()).await,
        proxy,
    }
}

/// Three Kafka brokers of a row's own; the proxy leads to the first and is of no use.
pub(crate) async fn three_kafkas() -> Behind<Kafka> {
    let server = Kafka::start_three().await;
    let proxy = Proxy::before(server.port()).await;
    Behind { server, proxy }
}

/// Three RabbitMQ nodes of a row's own; the proxy leads to the first, where clients come.
pub(crate) async fn three_rabbitmqs() -> Behind<Rabbitmq> {
    let server = Rabbitmq::start_three().await;
    let proxy = Proxy::before(server.port()).await;
    Behind { server, proxy }
}

/// A RabbitMQ of a row's own.
pub(crate) async fn own_rabbitmq() -> Behind<Rabbitmq> {
    let server = Rabbitmq::start().await;
    let proxy = Proxy::before(server.port()).await;
    Behind { server, proxy }
}
