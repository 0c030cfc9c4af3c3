//! The grant of client credentials (RFC 6749, section 4.4).
//!
//! The answer comes from another system: its size, its time and its values are bounded, no redirect is followed, and of a
//! refusal only the code is shown.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::http::{HttpAnswer, HttpRequest};
use super::{IssuedToken, MIN_LIFE};
use crate::credential::Credential;
use crate::domain::{Secret, percent_encoded};
use crate::tls::ClientFiles;

/// Life of a token whose issuer does not tell it.
const UNTOLD_LIFE: Duration = Duration::from_secs(5 * 60);
/// Most characters of a code of an error.
const MAX_CODE_CHARS: usize = 40;

/// A client of an OAuth 2 server.
#[derive(Clone, Debug)]
pub struct ClientCredentials {
    /// Address of the token endpoint.
    pub token_url: String,
    /// Name of the client.
    pub client_id: String,
    /// Its secret, read again for each token.
    pub client_secret: Credential,
    /// Scopes that are asked for, separated by spaces.
    pub scope: Option<String>,
    /// Authorities of the server's certificate.
    pub tls: ClientFiles,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<Value>,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    error: String,
}

impl ClientCredentials {
    /// Asks for a token. Blocks.
    pub(super) fn issue(&self) -> Result<IssuedToken, String> {
        let secret = self.client_secret.current()?;
        // The two are encoded first (RFC 6749, section 2.3.1), so that an id may have a colon.
        let login = format!(
            "{}:{}",
            percent_encoded(&self.client_id),
            percent_encoded(secret.expose())
        );
        let mut form = "grant_type=client_credentials".to_owned();
        if let Some(scope) = &self.scope {
            form += "&scope=";
            form += &percent_encoded(scope);
        }
        let authorization = format!("Basic {}", STANDARD.encode(login));
        let request = HttpRequest {
            method: "POST",
            url: &self.token_url,
            headers: &[
                ("authorization", &authorization),
                ("content-type", "application/x-www-form-urlencoded"),
                ("accept", "application/json"),
            ],
            body: Some(&form),
        };
        let answer = request
            .send(&self.tls)
            .map_err(|why| format!("the issuer of tokens cannot be asked: {why}"))?;
        read(&answer, &secret)
    }
}

/// Reads an answer. The error shows nothing of it but the code of an error.
fn read(answer: &HttpAnswer, secret: &Secret) -> Result<IssuedToken, String> {
    if answer.status != 200 {
        let code = serde_json::from_slice::<ErrorAnswer>(&answer.body).ok();
        let code = code
            .map(|answer| answer.error)
            .filter(|code| is_code(code) && !code.contains(secret.expose()));
        let code = code.map(|code| format!(", {code}")).unwrap_or_default();
        return Err(format!(
            "the issuer of tokens refuses: it answered {}{code}",
            answer.status
        ));
    }
    let wrong = |why: &str| format!("the issuer of tokens answered {why}");
    let answer: TokenAnswer =
        serde_json::from_slice(&answer.body).map_err(|_| wrong("no JSON with an access_token"))?;
    if !is_token(&answer.access_token) {
        return Err(wrong("a token with other characters than one may have"));
    }
    let kind = answer.token_type.as_deref().unwrap_or("Bearer");
    if !kind.eq_ignore_ascii_case("Bearer") {
        return Err(wrong("a token that is no bearer token"));
    }
    // Some issuers write the number as a text.
    let seconds = match &answer.expires_in {
        None | Some(Value::Null) => Some(UNTOLD_LIFE.as_secs()),
        Some(Value::String(text)) => text.parse().ok(),
        Some(number) => number.as_u64(),
    };
    let life = seconds.map(Duration::from_secs);
    let Some(life) = life.filter(|life| *life >= MIN_LIFE) else {
        return Err(wrong(&format!(
            "a token that does not live for {} s",
            MIN_LIFE.as_secs()
        )));
    };
    Ok(IssuedToken {
        text: Secret::new(answer.access_token),
        life,
    })
}

/// Reports whether a text has the characters of a bearer token (RFC 6750). Others could end its field in the login.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte))
}

fn is_code(text: &str) -> bool {
    text.len() <= MAX_CODE_CHARS
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, body: &str) -> Result<IssuedToken, String> {
        let answer = HttpAnswer {
            status,
            body: body.as_bytes().to_vec(),
        };
        read(&answer, &Secret::new("hunter2"))
    }

    #[test]
    fn a_token_lives_as_long_as_its_issuer_says_within_bounds() {
        for (expires_in, seconds) in [
            (r#","expires_in":3600"#, Some(3600)),
            (r#","expires_in":"3599""#, Some(3599)),
            ("", Some(300)),
            (r#","expires_in":null"#, Some(300)),
            (r#","expires_in":5"#, Some(5)),
            (r#","expires_in":18446744073709551615"#, Some(u64::MAX)),
            (r#","expires_in":4"#, None),
            (r#","expires_in":0"#, None),
            (r#","expires_in":-1"#, None),
            (r#","expires_in":1e300"#, None),
            (r#","expires_in":"soon""#, None),
            (r#","expires_in":[3600]"#, None),
        ] {
            let body = format!(r#"{{"access_token":"a.b-c","token_type":"bearer"{expires_in}}}"#);
            let life = answered(200, &body).ok().map(|token| token.life.as_secs());
            assert_eq!(life, seconds, "{expires_in}");
        }
    }

    #[test]
    fn an_answer_that_is_no_token_is_refused_and_not_shown() {
        for body in [
            "",
            "<html>hunter2</html>",
            r#"{"access_token":""}"#,
            r#"{"access_token":"hunter2\u0001auth=x"}"#,
            r#"{"access_token":"hunter2 x"}"#,
            r#"{"access_token":"hunter2","token_type":"mac"}"#,
            r#"{"error":"hunter2"}"#,
        ] {
            let why = answered(200, body).expect_err(body);
            assert!(!why.contains("hunter2"), "{why}");
        }
        for (status, body, told) in [
            (
                401,
                r#"{"error":"invalid_client"}"#,
                "it answered 401, invalid_client",
            ),
            (400, r#"{"error":"hunter2"}"#, "it answered 400"),
            (400, r#"{"error":"no\nline"}"#, "it answered 400"),
            (302, "", "it answered 302"),
            (
                500,
                r#"{"access_token":"a","expires_in":60}"#,
                "it answered 500",
            ),
        ] {
            let why = answered(status, body).expect_err(body);
            assert_eq!(why, format!("the issuer of tokens refuses: {told}"));
        }
    }
}
