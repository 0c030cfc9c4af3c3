//! Access: roles, refusals, and that no secret leaves.

use std::net::SocketAddr;

use super::super::testing::{InjectBehaviour, READ_TOKEN, TestServer, WRITE_TOKEN, config, state};
use super::super::{Config, InjectError, ListenError, start};
use super::{agreement, problem};
use crate::lifecycle::{Shutdown, Tasks};
use crate::telemetry::logging::testing::capture;

const MESSAGES: &str = "/api/v1/routes/orders/messages";

#[tokio::test]
async fn the_token_is_judged_before_anything_else() {
    let server = TestServer::start().await;
    // A path that is not there, a method that is not for it, a body that is no JSON: 401, then 403.
    let bad = [
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/api/v1/routes/nothing", 404),
        ("GET", "/api/v1/routes/%00", 404),
        ("GET", "/api", 404),
        ("GET", "/api/v2/routes", 404),
        ("DELETE", "/api/v1/routes", 405),
        ("PUT", "/api/v1/nothing", 404),
        ("POST", "/api/v1/routes/nothing/messages", 404),
        ("POST", MESSAGES, 400),
    ];
    for (method, path, status) in bad {
        for token in [
            None,
            Some("wrong"),
            Some(""),
            Some(&WRITE_TOKEN[1..]),
            Some("canary-write-Pa55x"),
        ] {
            let answer = server.call(method, path, token, "{").await;
            problem(&answer, 401);
            assert!(
                answer
                    .header("www-authenticate")
                    .is_some_and(|h| h.starts_with("Bearer")),
                "{answer:?}"
            );
        }
        if method != "GET" {
            problem(&server.call(method, path, Some(READ_TOKEN), "{").await, 403);
        }
        problem(
            &server.call(method, path, Some(WRITE_TOKEN), "{").await,
            status,
        );
    }
    assert!(
        server.recorder.injected.lock().is_empty(),
        "something was sent"
    );
    server.end().await;
}

#[tokio::test]
async fn a_malformed_authorization_is_no_authorization() {
    let server = TestServer::start().await;
    let malformed = [
        format!("authorization: {WRITE_TOKEN}\r\n"),
        format!("authorization: Basic {WRITE_TOKEN}\r\n"),
        format!("authorization: Bearer  {WRITE_TOKEN}\r\n"),
        format!("authorization: Bearer{WRITE_TOKEN}\r\n"),
        "authorization: Bearer\r\n".to_owned(),
        "authorization: \r\n".to_owned(),
        format!("authorization: Bearer {WRITE_TOKEN}\r\nauthorization: Bearer {WRITE_TOKEN}\r\n"),
        format!("x-authorization: Bearer {WRITE_TOKEN}\r\n"),
    ];
    for header in malformed {
        let request =
            format!("GET /api/v1/routes HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}\r\n");
        problem(&server.raw(request).await, 401);
    }
    let request = format!(
        "GET /api/v1/routes HTTP/1.1\r\nhost: x\r\nconnection: close\r\nAuthorization: bEARER {WRITE_TOKEN}\r\n\r\n"
    );
    assert_eq!(server.raw(request).await.status, 200);
    server.end().await;
}

#[tokio::test]
async fn several_tokens_hold_at_once_for_rotation() {
    let server = TestServer::with(config(&["old-r", "new-r"], &["old-w", "new-w"])).await;
    for (token, read, write) in [
        ("old-r", 200, 403),
        ("new-r", 200, 403),
        ("old-w", 200, 202),
        ("new-w", 200, 202),
        ("r", 401, 401),
    ] {
        assert_eq!(
            server
                .call("GET", "/api/v1/routes", Some(token), "")
                .await
                .status,
            read,
            "{token}"
        );
        assert_eq!(
            server
                .call("POST", MESSAGES, Some(token), "{}")
                .await
                .status,
            write,
            "{token}"
        );
    }
    server.end().await;
    // Either kind alone closes the API too.
    for config in [config(&["r"], &[]), config(&[], &["w"])] {
        let server = TestServer::with(config).await;
        problem(&server.call("GET", "/api/v1/routes", None, "").await, 401);
        server.end().await;
    }
}

#[tokio::test]
async fn without_tokens_it_is_open_to_this_machine_and_to_no_web_page() {
    let server = TestServer::with(config(&[], &[])).await;
    for row in agreement::table() {
        let answer = server
            .call(row.method, &row.concrete(), None, &row.body())
            .await;
        assert!(row.is_answered(answer.status), "{answer:?}");
    }
    for (host, status) in [
        ("localhost:8025", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8025", 200),
        ("rebound.example:8025", 403),
        ("localhost.example", 403),
        ("127.0.0.1.example", 403),
        ("?", 403),
    ] {
        let request =
            format!("GET /api/v1/routes HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        assert_eq!(server.raw(request).await.status, status, "{host}");
    }
    // A request that a page of another origin may post without asking first.
    let request = format!(
        "POST {MESSAGES} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: text/plain\r\n\
         content-length: 2\r\n\r\n{{}}"
    );
    let sent = server.recorder.injected.lock().len();
    problem(&server.raw(request).await, 415);
    assert_eq!(server.recorder.injected.lock().len(), sent);
    server.end().await;
}

#[tokio::test]
async fn off_loopback_it_does_not_start_without_a_token() {
    let listen: SocketAddr = "0.0.0.0:0".parse().expect("an address");
    let tasks = Tasks::default();
    let shutdown = Shutdown::default();
    let open = Config {
        listen,
        ..config(&[], &[])
    };
    let error = start(&open, state().0, &tasks, shutdown.clone())
        .await
        .expect_err("refused");
    assert!(matches!(error, ListenError::Unprotected(_)), "{error}");
    for closed in [config(&[READ_TOKEN], &[]), config(&[], &[WRITE_TOKEN])] {
        let closed = Config { listen, ..closed };
        start(&closed, state().0, &tasks, shutdown.clone())
            .await
            .expect("started");
    }
    shutdown.begin();
    assert_eq!(
        tasks.ended(std::time::Duration::from_secs(30)).await,
        Ok(())
    );
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let server = TestServer::start().await;
    let taken = Config {
        listen: server.address,
        ..config(&[], &[])
    };
    let error = start(&taken, state().0, &Tasks::default(), Shutdown::default())
        .await
        .expect_err("refused");
    let text = error.to_string();
    assert!(
        text.contains(&server.address.to_string()) && text.contains("admin.listen"),
        "{text}"
    );
    server.end().await;
}

#[tokio::test]
async fn every_error_is_a_problem() {
    let server = TestServer::start().await;
    for path in ["/nothing", "/livez/"] {
        problem(&server.call("GET", path, Some(READ_TOKEN), "").await, 404);
    }
    let answer = server.call("POST", "/livez", Some(WRITE_TOKEN), "").await;
    problem(&answer, 405);
    assert_eq!(answer.header("allow"), Some("GET,HEAD"));
    let detail = problem(
        &server
            .call(
                "POST",
                "/api/v1/routes/no%0aroute/messages",
                Some(WRITE_TOKEN),
                "{}",
            )
            .await,
        404,
    );
    assert!(detail.contains(r"`no\nroute`"), "{detail}");
    for (body, part) in [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "invalid"),
        ("null", "invalid"),
        (r#"{"dealy":"2s"}"#, "unknown field `dealy`"),
        (r#"{"delay":1.5}"#, "whole number of milliseconds"),
        (r#"{"delay":-1}"#, "whole number of milliseconds"),
        (r#"{"wait":"yes"}"#, "wait"),
        (r#"{"headers":{"a":1}}"#, "headers"),
        (r#"{"id":"a","id":"b"}"#, "duplicate field `id`"),
        (r#"{"body":"a"} x"#, "trailing"),
    ] {
        let detail = problem(
            &server.call("POST", MESSAGES, Some(WRITE_TOKEN), body).await,
            400,
        );
        assert!(detail.contains(part), "{body}: {detail}");
    }
    let large = format!(r#"{{"body":"{}"}}"#, "x".repeat(2 * 1024 * 1024));
    problem(
        &server
            .call("POST", MESSAGES, Some(WRITE_TOKEN), &large)
            .await,
        413,
    );
    assert!(
        server.recorder.injected.lock().is_empty(),
        "something was sent"
    );
    server.end().await;
}

#[tokio::test]
async fn a_panic_in_a_call_is_a_500_and_the_process_goes_on() {
    let server = TestServer::start().await;
    *server.recorder.behaviour.lock() = InjectBehaviour::Panic;
    problem(
        &server.call("POST", MESSAGES, Some(WRITE_TOKEN), "{}").await,
        500,
    );
    *server.recorder.behaviour.lock() = InjectBehaviour::Confirm;
    assert_eq!(
        server
            .call("POST", MESSAGES, Some(WRITE_TOKEN), "{}")
            .await
            .status,
        202
    );
    server.end().await;
}

#[tokio::test]
async fn what_is_not_named_as_open_is_closed_and_leaves_no_entry() {
    let (lines, _guard) = capture();
    let server = TestServer::start().await;
    let listed = agreement::table();
    let mut paths: Vec<String> = listed.iter().map(agreement::TableRow::concrete).collect();
    paths.extend(
        [
            "/",
            "/main.js",
            "/x",
            "//api/v1/routes/orders/purge",
            "/api",
            "/metrics/",
            "/%6divez",
            "/../livez",
        ]
        .map(str::to_owned),
    );
    let open = [
        "/livez",
        "/readyz",
        "/metrics",
        "/api/v1/openapi.json",
        "/",
        "/main.js",
    ];
    for path in &paths {
        for method in [
            "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE",
        ] {
            let answer = server.call(method, path, None, "{}").await;
            let is_open = method == "GET" && open.contains(&path.as_str());
            assert_eq!(answer.status != 401, is_open, "{method} {path}: {answer:?}");
        }
    }
    // A page of another site, with and without a token.
    for (mode, path, method, status) in [
        ("cors", "/metrics", "GET", 403),
        ("no-cors", "/livez", "GET", 403),
        ("no-cors", "/x", "POST", 403),
        ("navigate", "/", "GET", 200),
        ("navigate", "/", "POST", 403),
        ("navigate", "/api/v1/routes", "GET", 403),
    ] {
        for token in ["", &format!("authorization: Bearer {WRITE_TOKEN}\r\n")] {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nsec-fetch-site: cross-site\r\n\
                 sec-fetch-mode: {mode}\r\n{token}content-length: 0\r\n\r\n"
            );
            assert_eq!(
                server.raw(request).await.status,
                status,
                "{mode} {method} {path}"
            );
        }
    }
    let audited = || lines.text().matches("a call of the admin API").count();
    assert_eq!(audited(), 0, "{}", lines.text());
    // Who is known leaves an entry, also of what was refused.
    let path = "/api/v1/dead/drop";
    problem(
        &server.call("POST", path, Some(READ_TOKEN), "{}").await,
        403,
    );
    assert_eq!(audited(), 1, "{}", lines.text());
    let text = lines.text();
    assert!(
        text.contains("looker") && text.contains("status=\"403\""),
        "{text}"
    );
    server.end().await;
}

#[tokio::test]
async fn what_messages_say_is_for_write_tokens() {
    let (lines, _guard) = capture();
    let server = TestServer::start().await;
    let paths = [
        "/api/v1/dead?body=true",
        "/api/v1/dead?contains=secret",
        "/api/v1/messages?contains=secret",
        "/api/v1/dead/orders.attempts.0.n.z?body=true",
        "/api/v1/routes/orders/messages/a/body",
    ];
    for path in paths {
        problem(&server.call("GET", path, Some(READ_TOKEN), "").await, 403);
        problem(&server.call("GET", path, Some(WRITE_TOKEN), "").await, 503);
    }
    server.end().await;
    let lines = lines.text();
    for path in paths {
        let told = |line: &&str| line.contains(path) && line.contains("status=\"403\"");
        assert_eq!(lines.lines().filter(told).count(), 1, "{path}: {lines}");
    }
}

/// Whatever went wrong, the audit has what a call was about.
#[tokio::test]
async fn a_call_that_fails_is_audited_with_what_it_was_about() {
    let (lines, _guard) = capture();
    let server = TestServer::start().await;
    for (path, body, subject) in [
        ("dead/redrive", r#"{"ids":["a","b"]}"#, "a b"),
        ("dead/drop", r#"{"ids":["c"]}"#, "c"),
        (
            "dead/drop",
            r#"{"filter":{"reason":"attempts"}}"#,
            "attempts",
        ),
        (
            "routes/orders/messages/cancel",
            r#"{"ids":["d","e"]}"#,
            "d e",
        ),
        ("routes/orders/purge", r#"{"id_prefix":"f"}"#, "id_prefix=f"),
    ] {
        let path = format!("/api/v1/{path}");
        problem(
            &server.call("POST", &path, Some(WRITE_TOKEN), body).await,
            503,
        );
        let text = lines.text();
        let last = text
            .lines()
            .rfind(|line| line.contains("a call of the admin API"));
        let last = last.unwrap_or_default();
        assert!(
            last.contains(&path) && last.contains(subject),
            "{subject}: {last}"
        );
    }
    server.end().await;
}

#[tokio::test]
async fn no_token_stands_in_any_answer_or_log_line() {
    let (lines, _guard) = capture();
    let server = TestServer::start().await;
    let mut said = format!("{:?}", config(&[READ_TOKEN], &[WRITE_TOKEN]));
    for behaviour in [
        InjectBehaviour::Confirm,
        InjectBehaviour::Panic,
        InjectBehaviour::Fail(InjectError::Refused("no such topic".to_owned())),
    ] {
        *server.recorder.behaviour.lock() = behaviour;
        for token in [
            None,
            Some(READ_TOKEN),
            Some(WRITE_TOKEN),
            Some("canary-wrong-Pa55"),
            Some("canary-\u{e9}-Pa55"),
        ] {
            for row in agreement::table() {
                for method in [row.method, "DELETE"] {
                    let answer = server.call(method, &row.concrete(), token, "{}").await;
                    said += &[answer.head, answer.body].join("\n");
                }
            }
            let request = format!(
                "GET /\u{1} HTTP/1.1\r\nauthorization: Bearer {}\r\n\r\n",
                token.unwrap_or("-")
            );
            said += &server.raw(request).await.head;
        }
    }
    server.end().await;
    assert!(
        lines.text().contains("admin listens"),
        "the log was not captured"
    );
    assert!(
        lines.text().contains("panicked"),
        "the log was not captured"
    );
    said += &lines.text();
    for secret in [READ_TOKEN, WRITE_TOKEN, "Pa55"] {
        let at = said.find(secret);
        assert_eq!(
            at,
            None,
            "{secret} in {}",
            &said[at.unwrap_or(0).saturating_sub(200)..]
        );
    }
}
