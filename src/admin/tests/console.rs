//! The console's files, who the caller is, and pages of other sites.

use super::super::testing::{READ_TOKEN, TestServer, WRITE_TOKEN};
use super::problem;

#[tokio::test]
async fn the_console_is_open_whole_and_under_strict_rules() {
    let server = TestServer::start().await;
    let page = server.call("GET", "/", None, "").await;
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, Some("text/html; charset=utf-8")),
        "{page:?}"
    );
    let policy = page.header("content-security-policy").expect("a policy");
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
    ] {
        assert_eq!(page.header(name), Some(value), "{name}");
    }
    let tag = page.header("etag").expect("a tag").to_owned();
    let again = server
        .call_with("GET", "/", &[("if-none-match", &tag)], "")
        .await;
    assert_eq!((again.status, again.body.len()), (304, 0), "{again:?}");

    // Every file that the page names is there, and none of another host.
    let is_file = |text: &&str| matches!(text.rsplit('.').next(), Some("js" | "css" | "svg"));
    let named: Vec<&str> = page.body.split('"').filter(is_file).collect();
    for kind in ["js", "css"] {
        assert!(
            named
                .iter()
                .any(|name| name.rsplit('.').next() == Some(kind)),
            "{kind}: {named:?}"
        );
    }
    for name in named {
        let file = server.call("GET", &format!("/{name}"), None, "").await;
        assert_eq!(file.status, 200, "{name}");
        assert_eq!(
            file.header("content-security-policy"),
            Some(policy),
            "{name}"
        );
    }
    assert!(
        !page.body.contains("http://") && !page.body.contains("https://"),
        "{}",
        page.body
    );

    let token = Some(WRITE_TOKEN);
    problem(&server.call("POST", "/", token, "{}").await, 405);
    for nothing in [
        "/nothing",
        "/../Cargo.toml",
        "/..%2fmod.rs",
        "/console/index.html",
    ] {
        problem(&server.call("GET", nothing, token, "").await, 404);
    }
    server.end().await;
}

#[tokio::test]
async fn a_session_tells_the_caller_what_it_may_do() {
    let server = TestServer::start().await;
    for (token, role, who) in [
        (READ_TOKEN, "read", "looker"),
        (WRITE_TOKEN, "write", "actor"),
    ] {
        let answer = server.call("GET", "/api/v1/session", Some(token), "").await;
        let session = answer.json();
        assert_eq!(
            (answer.status, &session["role"], &session["tokens"]),
            (200, &role.into(), &true.into())
        );
        assert!(
            session["who"]
                .as_str()
                .is_some_and(|name| name.starts_with(who)),
            "{session}"
        );
    }
    server.end().await;
}

#[tokio::test]
async fn a_page_of_another_site_may_call_nothing_whatever_token_it_has() {
    let server = TestServer::start().await;
    let token = format!("Bearer {WRITE_TOKEN}");
    for (site, status) in [
        ("cross-site", 403),
        ("same-site", 403),
        ("same-origin", 200),
        ("none", 200),
    ] {
        let headers = [("authorization", token.as_str()), ("sec-fetch-site", site)];
        let answer = server
            .call_with("GET", "/api/v1/session", &headers, "")
            .await;
        assert_eq!(answer.status, status, "{site}: {answer:?}");
    }
    server.end().await;
}
