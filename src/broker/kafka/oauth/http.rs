//! One request to an issuer of tokens or credentials. Its answer is bounded, and no redirect is followed: it would take a
//! secret to another place.

use std::io::Read;

use ureq::Agent;
use ureq::http::{Request, Response};

use super::{MAX_ANSWER_BYTES, REQUEST_DEADLINE};
use crate::tls::ClientFiles;

/// Status and body of an answer.
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

/// A request. Without a body it has none.
pub(super) struct HttpRequest<'a> {
    pub(super) method: &'static str,
    pub(super) url: &'a str,
    pub(super) headers: &'a [(&'static str, &'a str)],
    pub(super) body: Option<&'a str>,
}

impl HttpRequest<'_> {
    /// Sends the request, over `https:` to a server that these files prove. Blocks for at most [`REQUEST_DEADLINE`].
    pub(super) fn send(&self, tls: &ClientFiles) -> Result<HttpAnswer, String> {
        let mut config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("postdate/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(REQUEST_DEADLINE));
        if self.url.starts_with("https:") {
            config = config.tls_config(tls.http_config()?);
        }
        let agent = config.build().new_agent();
        let mut request = Request::builder().method(self.method).uri(self.url);
        for (name, value) in self.headers {
            request = request.header(*name, *value);
        }
        // Neither of the two errors shows the request.
        let sent = match self.body {
            Some(body) => request.body(body).map(|request| agent.run(request)),
            None => request.body(()).map(|request| agent.run(request)),
        };
        let answer =
            sent.map_err(|_| "the request has a character that none may have".to_owned())?;
        read(answer.map_err(|error| error.to_string())?)
    }
}

fn read(answer: Response<ureq::Body>) -> Result<HttpAnswer, String> {
    let status = answer.status().as_u16();
    let mut body = Vec::new();
    let mut reader = answer.into_body().into_reader().take(MAX_ANSWER_BYTES + 1);
    reader
        .read_to_end(&mut body)
        .map_err(|error| format!("the answer cannot be read: {error}"))?;
    if body.len() as u64 > MAX_ANSWER_BYTES {
        return Err(format!("the answer is over {MAX_ANSWER_BYTES} bytes"));
    }
    Ok(HttpAnswer { status, body })
}

#[cfg(test)]
mod tests {
    use super::super::testing::Issuer;
    use super::*;

    #[test]
    fn no_redirect_is_followed_and_no_answer_is_too_large() {
        let size = MAX_ANSWER_BYTES as usize;
        let issuer = Issuer::start(vec![
            ("POST /moved ", 307, "location: /secret\r\n", String::new()),
            ("POST /fits ", 200, "", "x".repeat(size)),
            ("POST /large ", 200, "", "x".repeat(size + 1)),
        ]);
        let ask = |path: &str| {
            let request = HttpRequest {
                method: "POST",
                url: &format!("{}{path}", issuer.url),
                headers: &[("authorization", "hunter2")],
                body: Some("grant_type=x"),
            };
            request.send(&ClientFiles::default())
        };
        assert_eq!(ask("/moved").expect("an answer").status, 307);
        assert_eq!(ask("/fits").expect("an answer").body.len(), size);
        let why = ask("/large").err().expect("too large");
        assert_eq!(why, "the answer is over 65536 bytes");
        assert_eq!(issuer.asked.lock().len(), 3, "nobody asked for /secret");
    }
}
