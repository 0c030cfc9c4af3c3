//! `send`, and the client of the API, against the real server.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::admin::InjectError;
use crate::admin::testing::{InjectBehaviour, READ_TOKEN, TestServer, WRITE_TOKEN, text};
use crate::domain::{Secret, UnixMs};
use crate::telemetry::MessageEnd;

/// Runs `send` beside the server, which lives on this thread's runtime.
async fn run(
    url: String,
    token: Option<&str>,
    (route, request): (&'static str, SendRequest),
    json: bool,
) -> (String, Result<(), ClientError>) {
    let token = token.map(Secret::new);
    let sent = tokio::task::spawn_blocking(move || {
        let mut out = Vec::new();
        let result = ApiClient::new(&url, token, None)
            .and_then(|client| send(&client, route, &request, json, &mut Printer(&mut out)));
        (String::from_utf8(out).expect("UTF-8"), result)
    });
    sent.await.expect("no panic")
}

fn message_to(route: &'static str) -> (&'static str, SendRequest) {
    let request = SendRequest {
        id: Some("a".to_owned()),
        ..SendRequest::default()
    };
    (route, request)
}

/// A message with this content for the route `orders`.
fn order(content: SendRequest) -> (&'static str, SendRequest) {
    let (route, request) = message_to("orders");
    (
        route,
        SendRequest {
            id: request.id,
            ..content
        },
    )
}

fn refused(result: Result<(), ClientError>, exit: u8, part: &str) {
    let error = result.expect_err("refused");
    assert_eq!(error.exit_code(), exit, "{error}");
    assert!(error.to_string().contains(part), "{error}");
    assert!(!error.to_string().contains("Pa55"), "{error}");
}

#[tokio::test]
async fn it_sends_what_it_was_given_and_prints_the_id() {
    let server = TestServer::start().await;
    let url = format!("http://{}/", server.address);
    let given = order(SendRequest {
        delay: Some(Timestamp::Text("1500".to_owned())),
        key: Some("k".to_owned()),
        headers: [("h".to_owned(), "v".to_owned())].into(),
        body_base64: Some("/wA=".to_owned()),
        ..SendRequest::default()
    });
    let (out, result) = run(url.clone(), Some(WRITE_TOKEN), given, false).await;
    result.expect("sent");
    assert_eq!(out, "a\n");
    let (_, message) = server.recorder.injected.lock().pop().expect("sent");
    assert_eq!(
        (message.key.as_deref(), message.body.as_deref()),
        (Some(&b"k"[..]), Some(&[0xff, 0][..]))
    );
    for (name, value) in [("h", "v"), ("x-delay", "1500"), ("x-delay-id", "a")] {
        assert_eq!(text(&message.headers, name).as_deref(), Some(value));
    }
    let at = order(SendRequest {
        at: Some(Timestamp::Text("1800000000000".to_owned())),
        body: Some("text".to_owned()),
        ..SendRequest::default()
    });
    let (out, result) = run(url, Some(WRITE_TOKEN), at, true).await;
    result.expect("sent");
    assert_eq!(out, "{\"id\":\"a\",\"route\":\"orders\"}\n");
    let (_, message) = server.recorder.injected.lock().pop().expect("sent");
    assert_eq!(message.body.as_deref(), Some(&b"text"[..]));
    server.end().await;
}

#[tokio::test]
async fn waiting_prints_the_lateness_or_fails_with_the_reason() {
    let server = TestServer::start().await;
    let url = format!("http://{}", server.address);
    let orders = RouteName::new("orders").expect("a name");
    let published = MessageEnd::Published {
        published_at: UnixMs(1_800_000_000_002),
        due: UnixMs(1_800_000_000_000),
        lateness_ms: 1.75,
        attempt: 1,
    };
    let dead = MessageEnd::Dead {
        reason: "unroutable".to_owned(),
    };
    for (outcome, json) in [
        (published.clone(), false),
        (published, true),
        (dead.clone(), false),
        (dead.clone(), true),
    ] {
        let report = async {
            server.recorder.arrived.notified().await;
            server.watch.report(&orders, "a", || outcome.clone());
        };
        let given = order(SendRequest {
            wait: true,
            ..SendRequest::default()
        });
        let ((out, result), ()) =
            tokio::join!(run(url.clone(), Some(WRITE_TOKEN), given, json), report);
        if outcome == dead {
            refused(result, 1, "the message a was not published: unroutable");
        } else {
            result.expect("published");
        }
        if json {
            let body: serde_json::Value = serde_json::from_str(&out).expect("the API's body");
            assert_eq!(body["id"], "a");
        } else if outcome == dead {
            assert_eq!(out, "a\n");
        } else {
            let at = precise_moment(1_800_000_000_002);
            let told = format!("a\npublished at {at}, 1.8 ms late, attempt 1\n");
            assert_eq!(out, told);
        }
    }
    server.end().await;
}

#[tokio::test]
async fn what_the_api_refuses_is_said_in_a_sentence() {
    let server = TestServer::start().await;
    let url = format!("http://{}", server.address);
    refused(
        run(url.clone(), None, message_to("orders"), false).await.1,
        1,
        "POSTDATE_TOKEN_FILE (401)",
    );
    refused(
        run(url.clone(), Some("wrong-Pa55"), message_to("orders"), false)
            .await
            .1,
        1,
        "POSTDATE_TOKEN_FILE (401)",
    );
    refused(
        run(url.clone(), Some(READ_TOKEN), message_to("orders"), false)
            .await
            .1,
        1,
        "write token (403)",
    );
    refused(
        run(url.clone(), Some(WRITE_TOKEN), message_to("nope"), false)
            .await
            .1,
        1,
        "there is no route `nope` (404)",
    );
    let bad = order(SendRequest {
        delay: Some(Timestamp::Text("abc".to_owned())),
        ..SendRequest::default()
    });
    let (out, result) = run(url.clone(), Some(WRITE_TOKEN), bad, true).await;
    refused(result, 1, "not a delay (400)");
    assert!(out.contains("\"reason\":\"bad_delay\""), "{out}");
    *server.recorder.behaviour.lock() =
        InjectBehaviour::Fail(InjectError::Refused("no such topic".to_owned()));
    refused(
        run(url.clone(), Some(WRITE_TOKEN), message_to("orders"), false)
            .await
            .1,
        1,
        "no such topic (502)",
    );
    refused(
        run(url, Some(WRITE_TOKEN), message_to("No Route"), false)
            .await
            .1,
        64,
        "`No Route`",
    );
    server.end().await;
}

#[tokio::test]
async fn a_wrong_address_is_named_without_its_password() {
    let free = TcpListener::bind("127.0.0.1:0")
        .expect("bound")
        .local_addr()
        .expect("an address");
    let url = format!("http://{free}");
    refused(
        run(url, None, message_to("orders"), false).await.1,
        1,
        &format!("http://{free} cannot be reached"),
    );
    for wrong in [
        "",
        "127.0.0.1:8025",
        "localhost",
        "http://",
        "ftp://x",
        "http://x/?a",
        "http://a b",
        "http://u:Pa55@x",
    ] {
        refused(
            run(wrong.to_owned(), None, message_to("orders"), false)
                .await
                .1,
            64,
            "POSTDATE_URL",
        );
    }
    refused(
        run(
            "http://x".to_owned(),
            Some("Pa55\n"),
            message_to("orders"),
            false,
        )
        .await
        .1,
        64,
        "line end",
    );
}

/// Answers one request with these bytes.
fn foreign_server(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepted");
        let mut request = [0; 4096];
        let read = stream.read(&mut request).expect("a request");
        stream.write_all(answer.as_bytes()).expect("answered");
        String::from_utf8_lossy(&request[..read]).into_owned()
    });
    (url, thread)
}

#[tokio::test]
async fn another_server_is_told_from_the_api_and_no_redirect_is_followed() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
    ] {
        let (url, thread) = foreign_server(answer);
        let (_, result) = run(url, Some("Pa55"), message_to("orders"), false).await;
        refused(result, 1, "does not answer as postdate's API does");
        let request = thread.join().expect("no panic").to_ascii_lowercase();
        assert!(
            request.contains("authorization: bearer pa55\r\n"),
            "{request}"
        );
    }
}
