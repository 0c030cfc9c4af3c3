// [test]
//! Sends delayed messages through RabbitMQ with lapin: what `docs/producers.md` shows.
#![allow(
    clippy::disallowed_methods,
    reason = "reads clocks and the environment as its users do"
)]
#![allow(clippy::print_stdout, reason = "says what was returned")]

// [/test]
use std::env;
use std::error::Error;
use std::time::{Duration, SystemTime};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::time::timeout;

/// Returns when the queue has the message on disk.
async fn send(
    channel: &Channel,
    routing_key: &str,
    body: &str,
    headers: &[(&str, AMQPValue)],
) -> Result<(), Box<dyn Error>> {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_headers(table);
    let options = BasicPublishOptions {
        mandatory: true,
        ..Default::default()
    };
    let published = async {
        let publish = channel.basic_publish(
            "mail.in".into(),
            routing_key.into(),
            options,
            body.as_bytes(),
            properties,
        );
        publish.await?.await
    };
    match timeout(Duration::from_secs(30), published).await?? {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(returned)) => {
            Err(format!("returned: {}", returned.reply_text).into())
        }
        other => Err(format!("refused: {other:?}").into()),
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn ms(value: i64) -> AMQPValue {
    AMQPValue::LongLongInt(value)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("AMQP_URL")?;
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;

    send(
        &channel,
        "mail.welcome",
        "in two seconds",
        &[("x-delay", ms(2000))],
    )
    .await?;
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let moment = i64::try_from((since_1970 + Duration::from_secs(2)).as_millis())?;
    let timed = [
        ("x-deliver-at", ms(moment)),
        ("x-delay-expires", text("30s")),
    ];
    send(&channel, "mail.welcome", "at a moment", &timed).await?;

    let named = [("x-delay", ms(3000)), ("x-delay-id", text("order-7"))];
    send(&channel, "mail.welcome", "never", &named).await?;
    let cancel = [
        ("x-delay-op", text("cancel")),
        ("x-delay-id", text("order-7")),
    ];
    send(&channel, "mail.welcome", "", &cancel).await?;

    let named = [("x-delay", text("1h")), ("x-delay-id", text("order-8"))];
    send(&channel, "mail.welcome", "sooner", &named).await?;
    let reschedule = [
        ("x-delay-op", text("reschedule")),
        ("x-delay-id", text("order-8")),
        ("x-delay", ms(3000)),
    ];
    send(&channel, "mail.welcome", "", &reschedule).await?;

    let named = [("x-delay", text("1h")), ("x-delay-id", text("order-11"))];
    send(&channel, "mail.welcome", "the old text", &named).await?;
    let replace = [
        ("x-delay-op", text("replace")),
        ("x-delay-id", text("order-11")),
        ("x-delay", ms(3000)),
    ];
    send(&channel, "mail.welcome", "the new text", &replace).await?;
    // [test]
    send(
        &channel,
        "mail.welcome",
        "not a delay",
        &[("x-delay", text("2 seconds"))],
    )
    .await?;
    if let Err(error) = send(&channel, "nobody", "nowhere", &[("x-delay", ms(2000))]).await {
        println!("{error}");
    }
    // [/test]
    connection.close(200, "done".into()).await?;
    Ok(())
}
