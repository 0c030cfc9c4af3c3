//! Tokens of AWS MSK: the address of a request that is signed with AWS credentials (Signature Version 4, in the query).
//! The broker has AWS judge it.

mod credentials;
mod environment;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::hmac;
use sha2::{Digest, Sha256};

use self::credentials::AwsCredentials;
pub use self::environment::AwsEnvironment;
use super::{IssuedToken, MIN_LIFE};
use crate::domain::{Secret, UnixMs, percent_encoded};

/// Time for which a signature holds, as AWS's own signers have it.
const SIGNATURE_LIFE: Duration = Duration::from_secs(15 * 60);
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "kafka-cluster";

/// The IAM principal of an MSK cluster's client. Its credentials are those of the process.
#[derive(Clone, Debug)]
pub struct AwsIam {
    /// The cluster's region.
    pub region: String,
    /// Where credentials are.
    pub environment: AwsEnvironment,
}

impl AwsIam {
    /// Gets credentials, and signs a token. Blocks.
    pub(super) fn issue(&self, now: UnixMs) -> Result<IssuedToken, String> {
        let credentials = credentials::find(&self.environment, &self.region)?;
        let mut life = SIGNATURE_LIFE;
        if let Some(until) = credentials.until {
            let left_ms = (until.0 - now.0).max(0);
            life = life.min(Duration::from_millis(left_ms.unsigned_abs()));
        }
        if life < MIN_LIFE {
            return Err("the credentials of AWS have ended".to_owned());
        }
        let text = token(&self.region, &credentials, now)?;
        Ok(IssuedToken { text, life })
    }
}

/// The token: a signed address in base64.
fn token(region: &str, credentials: &AwsCredentials, now: UnixMs) -> Result<Secret, String> {
    let moment = Timestamp::from_millisecond(now.0).map_err(|error| error.to_string())?;
    let date = moment.strftime("%Y%m%d").to_string();
    let time = moment.strftime("%Y%m%dT%H%M%SZ").to_string();
    let host = format!("kafka.{region}.amazonaws.com");
    let scope = format!("{date}/{region}/{SERVICE}/aws4_request");
    // In the order of their names, as they are signed.
    let mut query = vec![
        ("Action", "kafka-cluster:Connect".to_owned()),
        ("X-Amz-Algorithm", ALGORITHM.to_owned()),
        (
            "X-Amz-Credential",
            format!("{}/{scope}", credentials.access_key_id),
        ),
        ("X-Amz-Date", time.clone()),
        ("X-Amz-Expires", SIGNATURE_LIFE.as_secs().to_string()),
    ];
    if let Some(session) = &credentials.session_token {
        query.push(("X-Amz-Security-Token", session.expose().to_owned()));
    }
    query.push(("X-Amz-SignedHeaders", "host".to_owned()));
    let query: Vec<_> = query
        .iter()
        .map(|(name, value)| format!("{name}={}", percent_encoded(value)))
        .collect();
    let query = query.join("&");
    let body_digest = digest("");
    let request = format!("GET\n/\n{query}\nhost:{host}\n\nhost\n{body_digest}");
    let to_sign = format!("{ALGORITHM}\n{time}\n{scope}\n{}", digest(&request));
    let mut key = format!("AWS4{}", credentials.secret_access_key.expose()).into_bytes();
    for part in [date.as_str(), region, SERVICE, "aws4_request"] {
        key = signed(&key, part);
    }
    let signature = hex(&signed(&key, &to_sign));
    // The name of the client is not signed.
    let agent = concat!("postdate%2F", env!("CARGO_PKG_VERSION"));
    let url = format!("https://{host}/?{query}&X-Amz-Signature={signature}&User-Agent={agent}");
    Ok(Secret::new(URL_SAFE_NO_PAD.encode(url)))
}

fn signed(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or_default();
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signed by AWS's own signer (`aws-msk-iam-sasl-signer-python` 1.0.2) at the same moment.
    #[test]
    fn a_token_is_signed_as_by_the_signer_of_aws() {
        // 2026-11-26T23:00:09Z
        let now = UnixMs(1_795_734_009_000);
        let signature = |session: Option<&str>| {
            let credentials = AwsCredentials {
                access_key_id: "AKIDEXAMPLE".to_owned(),
                secret_access_key: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
                session_token: session.map(Secret::new),
                until: None,
            };
            let token = token("eu-west-1", &credentials, now).expect("signed");
            let url = URL_SAFE_NO_PAD.decode(token.expose()).expect("base64");
            let url = String::from_utf8(url).expect("a text");
            let (signed, agent) = url.split_once("&User-Agent=").expect("a client");
            assert_eq!(agent, concat!("postdate%2F", env!("CARGO_PKG_VERSION")));
            let (query, signature) = signed.split_once("&X-Amz-Signature=").expect("a signature");
            (query.to_owned(), signature.to_owned())
        };
        let (query, signed) = signature(None);
        assert_eq!(
            query,
            "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm=AWS4-HMAC-SHA256\
             &X-Amz-Credential=AKIDEXAMPLE%2F20261126%2Feu-west-1%2Fkafka-cluster%2Faws4_request\
             &X-Amz-Date=20261126T230009Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host"
        );
        assert_eq!(
            signed,
            "b1fc51cad624596efbadd9d71d118034a0084125164086eda2abd17b4cf119d9"
        );
        let (query, signed) = signature(Some("FwoGZXIvYXdzEBYaDH+/session=="));
        let session = "&X-Amz-Security-Token=FwoGZXIvYXdzEBYaDH%2B%2Fsession%3D%3D&";
        assert!(query.contains(session), "{query}");
        assert_eq!(
            signed,
            "e76069185b2be2e72f9383ba199af13f7f278906ecaab965fa7b9af8c8143ae1"
        );
    }
}
