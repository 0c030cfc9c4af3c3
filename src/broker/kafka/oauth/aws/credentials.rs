//! Finds AWS credentials where AWS's own clients look for them, in the same order: environment variables, a web identity
//! (EKS service accounts), the shared file, a container's endpoint (EKS pod identity, ECS), the instance (EC2).
//!
//! The first place that is named is the one that counts: if it fails, no other is tried. All of it is looked up for each
//! token, because credentials are replaced every few hours.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Deserialize;

use super::super::http::HttpRequest;
use super::AwsEnvironment;
use crate::credential::read_secret;
use crate::domain::{Secret, UnixMs, percent_encoded};
use crate::tls::ClientFiles;

/// Address at which an EC2 instance tells about itself.
const INSTANCE: &str = "http://169.254.169.254";
/// Address at which ECS gives credentials to containers.
const CONTAINER: &str = "http://169.254.170.2";
/// Hosts from which credentials are taken without TLS: this machine, ECS, and EKS pod identity.
const LINK_LOCAL_HOSTS: [&str; 5] = [
    "127.0.0.1",
    "localhost",
    "169.254.170.2",
    "169.254.170.23",
    "[fd00:ec2::23]",
];
/// Most characters of an AWS error code that is shown.
const MAX_CODE_CHARS: usize = 60;

/// Credentials of AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AwsCredentials {
    pub(super) access_key_id: String,
    pub(super) secret_access_key: Secret,
    pub(super) session_token: Option<Secret>,
    /// The moment at which they end, if they do.
    pub(super) until: Option<UnixMs>,
}

/// What a place has: `None` if it is not named.
type Found = Result<Option<AwsCredentials>, String>;

/// Finds credentials. Blocks, within a deadline for each request. The error is a sentence without any secret.
pub(super) fn find(environment: &AwsEnvironment, region: &str) -> Result<AwsCredentials, String> {
    let found = match of_variables(environment)? {
        None => of_web_identity(environment, region)?,
        found => found,
    };
    let found = match found {
        None => of_shared_file(environment)?,
        found => found,
    };
    let found = match found {
        None => of_container(environment)?,
        found => found,
    };
    match found {
        None => of_instance(environment),
        Some(found) => Ok(found),
    }
}

fn of_variables(environment: &AwsEnvironment) -> Found {
    let Some(id) = environment.get("AWS_ACCESS_KEY_ID") else {
        return Ok(None);
    };
    let secret = environment
        .get("AWS_SECRET_ACCESS_KEY")
        .ok_or("AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY")?;
    Ok(Some(AwsCredentials {
        access_key_id: id.to_owned(),
        secret_access_key: Secret::new(secret),
        session_token: environment.get("AWS_SESSION_TOKEN").map(Secret::new),
        until: None,
    }))
}

/// Exchanges the token of a Kubernetes service account at AWS STS.
fn of_web_identity(environment: &AwsEnvironment, region: &str) -> Found {
    let Some(file) = environment.get("AWS_WEB_IDENTITY_TOKEN_FILE") else {
        return Ok(None);
    };
    let role = environment
        .get("AWS_ROLE_ARN")
        .ok_or("AWS_WEB_IDENTITY_TOKEN_FILE is set without AWS_ROLE_ARN")?;
    let identity = read_secret(Path::new(file))?;
    let domain = if region.starts_with("cn-") {
        "amazonaws.com.cn"
    } else {
        "amazonaws.com"
    };
    let url = match environment.get("AWS_ENDPOINT_URL_STS") {
        Some(url) => url.to_owned(),
        None => format!("https://sts.{region}.{domain}/"),
    };
    allow(&url)?;
    let session = environment
        .get("AWS_ROLE_SESSION_NAME")
        .unwrap_or("postdate");
    let form = format!(
        "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}&RoleSessionName={}&WebIdentityToken={}",
        percent_encoded(role),
        percent_encoded(session),
        percent_encoded(identity.trim())
    );
    let answer = ask(&HttpRequest {
        method: "POST",
        url: &url,
        headers: &[("content-type", "application/x-www-form-urlencoded")],
        body: Some(&form),
    })?;
    let field = |name: &str| {
        let (_, rest) = answer.split_once(&format!("<{name}>"))?;
        let (value, _) = rest.split_once(&format!("</{name}>"))?;
        Some(value.to_owned())
    };
    let credentials = CredentialAnswer {
        access_key_id: field("AccessKeyId"),
        secret_access_key: field("SecretAccessKey"),
        token: field("SessionToken"),
        expiration: field("Expiration"),
    };
    credentials.read("STS").map(Some)
}

/// The keys of a profile in the shared file.
fn of_shared_file(environment: &AwsEnvironment) -> Found {
    let wanted = environment.get("AWS_PROFILE");
    let named = environment
        .get("AWS_SHARED_CREDENTIALS_FILE")
        .map(PathBuf::from);
    let is_named = named.is_some() || wanted.is_some();
    let file = match (named, environment.get("HOME")) {
        (Some(named), _) => named,
        (None, Some(home)) => Path::new(home).join(".aws").join("credentials"),
        (None, None) => return Ok(None),
    };
    if !is_named && !file.exists() {
        return Ok(None);
    }
    let text = read_secret(&file)?;
    let profile = wanted.unwrap_or("default");
    let credentials = keys_of(&text, profile);
    if credentials.is_none() && is_named {
        return Err(format!(
            "{} has no keys of the profile {profile}",
            file.display()
        ));
    }
    Ok(credentials)
}

fn keys_of(text: &str, profile: &str) -> Option<AwsCredentials> {
    let mut id = None;
    let mut secret = None;
    let mut session = None;
    let mut is_within = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            is_within = name.trim() == profile;
        } else if is_within && let Some((key, value)) = line.split_once('=') {
            let value = value.trim().to_owned();
            match key.trim() {
                "aws_access_key_id" => id = Some(value),
                "aws_secret_access_key" => secret = Some(value),
                "aws_session_token" => session = Some(value),
                _ => {}
            }
        }
    }
    Some(AwsCredentials {
        access_key_id: id?,
        secret_access_key: Secret::new(secret?),
        session_token: session.map(Secret::new),
        until: None,
    })
}

/// Asks the endpoint that ECS or EKS gives a container.
fn of_container(environment: &AwsEnvironment) -> Found {
    let url = match (
        environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ) {
        (Some(path), _) => format!("{CONTAINER}{path}"),
        (None, Some(url)) => url.to_owned(),
        (None, None) => return Ok(None),
    };
    allow(&url)?;
    let token = match environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        Some(file) => Some(read_secret(Path::new(file))?),
        None => environment
            .get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
            .map(str::to_owned),
    };
    let headers: Vec<_> = token
        .iter()
        .map(|token| ("authorization", token.as_str()))
        .collect();
    let answer = ask(&HttpRequest {
        method: "GET",
        url: &url,
        headers: &headers,
        body: None,
    })?;
    CredentialAnswer::of_json(&answer)
        .read("the container's endpoint")
        .map(Some)
}

/// Asks the EC2 instance (IMDSv2).
fn of_instance(environment: &AwsEnvironment) -> Result<AwsCredentials, String> {
    let none = |why: &str| format!("no credentials of AWS are found: {why}");
    let is_off = environment.get("AWS_EC2_METADATA_DISABLED");
    if is_off.is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return Err(none("no variable and no file names any"));
    }
    let base = environment
        .get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        .unwrap_or(INSTANCE)
        .trim_end_matches('/');
    let get = |method, path: &str, headers: &[_]| {
        let request = HttpRequest {
            method,
            url: &format!("{base}/latest/{path}"),
            headers,
            body: None,
        };
        ask(&request).map_err(|why| none(&format!("the instance does not give any: {why}")))
    };
    let ttl = [("x-aws-ec2-metadata-token-ttl-seconds", "60")];
    let session = get("PUT", "api/token", &ttl)?;
    let session = [("x-aws-ec2-metadata-token", session.trim())];
    let roles = "meta-data/iam/security-credentials/";
    let role = get("GET", roles, &session)?;
    let role = role.lines().next().unwrap_or_default().trim();
    let path = format!("{roles}{}", percent_encoded(role));
    CredentialAnswer::of_json(&get("GET", &path, &session)?).read("the instance")
}

/// Refuses an address to which a secret would go readably, or from which anybody on the way could answer.
fn allow(url: &str) -> Result<(), String> {
    let parsed: Option<ureq::http::Uri> = url.parse().ok();
    let scheme = parsed.as_ref().and_then(|url| url.scheme_str());
    let host = parsed.as_ref().and_then(|url| url.host());
    match (scheme, host) {
        (Some("https"), Some(_)) => Ok(()),
        (Some("http"), Some(host)) if LINK_LOCAL_HOSTS.contains(&host) => Ok(()),
        _ => Err(
            "credentials of AWS are asked for by https: alone, or on this machine and at ECS's and EKS's addresses"
                .to_owned(),
        ),
    }
}

/// Sends a request. The error shows nothing of the answer but the code of an error.
fn ask(request: &HttpRequest<'_>) -> Result<String, String> {
    let answer = request.send(&ClientFiles::default())?;
    let text = String::from_utf8(answer.body).map_err(|_| "the answer is no text".to_owned())?;
    if answer.status == 200 {
        return Ok(text);
    }
    let code = text
        .split_once("<Code>")
        .and_then(|(_, rest)| Some(rest.split_once("</Code>")?.0))
        .filter(|code| {
            code.len() <= MAX_CODE_CHARS && code.bytes().all(|byte| byte.is_ascii_alphabetic())
        });
    let code = code.map(|code| format!(", {code}")).unwrap_or_default();
    Err(format!("it answered {}{code}", answer.status))
}

/// Credentials as AWS's endpoints write them.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CredentialAnswer {
    access_key_id: Option<String>,
    secret_access_key: Option<String>,
    token: Option<String>,
    expiration: Option<String>,
}

impl CredentialAnswer {
    fn of_json(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    fn read(self, who: &str) -> Result<AwsCredentials, String> {
        let wrong = || format!("{who} answered without credentials of AWS");
        let until: Timestamp = self
            .expiration
            .and_then(|text| text.parse().ok())
            .ok_or_else(wrong)?;
        Ok(AwsCredentials {
            access_key_id: self.access_key_id.ok_or_else(wrong)?,
            secret_access_key: self.secret_access_key.map(Secret::new).ok_or_else(wrong)?,
            session_token: Some(self.token.map(Secret::new).ok_or_else(wrong)?),
            until: Some(UnixMs(until.as_millisecond())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Issuer;
    use super::*;

    const JSON: &str = r#"{"Code":"Success","AccessKeyId":"AKID","SecretAccessKey":"hunter2","Token":"session",
                          "Expiration":"2026-11-26T23:00:09Z","RoleArn":"x"}"#;

    fn environment(set: &[(&str, &str)]) -> AwsEnvironment {
        AwsEnvironment::read(|name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn found(set: &[(&str, &str)]) -> Result<AwsCredentials, String> {
        find(&environment(set), "eu-west-1")
    }

    fn expected(until: Option<i64>) -> AwsCredentials {
        AwsCredentials {
            access_key_id: "AKID".to_owned(),
            secret_access_key: Secret::new("hunter2"),
            session_token: Some(Secret::new("session")),
            until: until.map(UnixMs),
        }
    }

    #[test]
    fn variables_come_first() {
        let all = [
            ("AWS_ACCESS_KEY_ID", "AKID"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
            ("AWS_SESSION_TOKEN", "session"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/none"),
        ];
        assert_eq!(found(&all), Ok(expected(None)));
        assert!(found(&all[..1]).is_err_and(|why| why.contains("AWS_SECRET_ACCESS_KEY")));
    }

    #[test]
    fn a_service_account_is_exchanged_at_sts() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        std::fs::write(&file, "an.identity\n").expect("written");
        let answer = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
                      <SessionToken>session</SessionToken><SecretAccessKey>hunter2</SecretAccessKey>\
                      <Expiration>2026-11-26T23:00:09Z</Expiration><AccessKeyId>AKID</AccessKeyId></Credentials>\
                      </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
        let refusal = "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>hunter2</Message></Error></ErrorResponse>";
        let sts = Issuer::start(vec![
            ("POST /good", 200, "", answer.to_owned()),
            ("POST /bad", 400, "", refusal.to_owned()),
        ]);
        let ask = |url: &str| {
            found(&[
                (
                    "AWS_WEB_IDENTITY_TOKEN_FILE",
                    file.to_str().expect("a path"),
                ),
                ("AWS_ROLE_ARN", "arn:aws:iam::1:role/relay"),
                ("AWS_ENDPOINT_URL_STS", url),
                ("HOME", "/none"),
            ])
        };
        let good = ask(&format!("{}/good", sts.url));
        assert_eq!(good, Ok(expected(Some(1_795_734_009_000))));
        let asked = sts.asked.lock().remove(0);
        assert!(
            asked.ends_with(
                "\r\n\r\nAction=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Frelay\
                 &RoleSessionName=postdate&WebIdentityToken=an.identity"
            ),
            "{asked}"
        );
        let bad = ask(&format!("{}/bad", sts.url)).expect_err("refused");
        assert_eq!(bad, "it answered 400, InvalidIdentityToken");
        let plain = ask("http://sts.example.com/").expect_err("readable on the way");
        assert!(plain.contains("https: alone"), "{plain}");
    }

    #[test]
    fn the_shared_file_has_keys_by_profile() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().to_str().expect("a path");
        std::fs::create_dir(folder.path().join(".aws")).expect("a folder");
        let file = folder.path().join(".aws/credentials");
        let text = "[other]\naws_access_key_id = X\n# a comment\n[default]\naws_access_key_id=AKID\n\
                    aws_secret_access_key = hunter2\naws_session_token = session\nregion = x\n";
        std::fs::write(&file, text).expect("written");
        assert_eq!(found(&[("HOME", home)]), Ok(expected(None)));
        let other = found(&[("HOME", home), ("AWS_PROFILE", "other")]);
        assert!(other.is_err_and(|why| why.ends_with("has no keys of the profile other")));
        let none = found(&[("HOME", "/none"), ("AWS_EC2_METADATA_DISABLED", "true")]);
        assert!(none.is_err_and(|why| why.contains("no variable and no file")));
    }

    #[test]
    fn a_container_has_an_endpoint_and_a_token_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        std::fs::write(&file, "a-token").expect("written");
        let agent = Issuer::start(vec![("GET /v1/credentials ", 200, "", JSON.to_owned())]);
        let ask = |url: &str| {
            found(&[
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url),
                (
                    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                    file.to_str().expect("a path"),
                ),
            ])
        };
        let good = ask(&format!("{}/v1/credentials", agent.url));
        assert_eq!(good, Ok(expected(Some(1_795_734_009_000))));
        let asked = agent.asked.lock().remove(0);
        assert!(asked.contains("authorization: a-token\r\n"), "{asked}");
        for (url, said) in [
            (format!("{}/other", agent.url), "it answered 404"),
            ("http://169.254.169.254/x".to_owned(), "https: alone"),
            ("ftp://127.0.0.1/x".to_owned(), "https: alone"),
        ] {
            assert!(ask(&url).is_err_and(|why| why.contains(said)), "{url}");
        }
    }

    #[test]
    fn an_instance_gives_the_credentials_of_its_role() {
        let instance = Issuer::start(vec![
            ("PUT /latest/api/token ", 200, "", "a-session".to_owned()),
            (
                "GET /latest/meta-data/iam/security-credentials/relay ",
                200,
                "",
                JSON.to_owned(),
            ),
            (
                "GET /latest/meta-data/iam/security-credentials/ ",
                200,
                "",
                "relay\n".to_owned(),
            ),
        ]);
        let set = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", instance.url.as_str())];
        assert_eq!(found(&set), Ok(expected(Some(1_795_734_009_000))));
        let asked = instance.asked.lock();
        assert!(asked[0].contains("x-aws-ec2-metadata-token-ttl-seconds: 60\r\n"));
        let session = "x-aws-ec2-metadata-token: a-session\r\n";
        assert!(asked[1..].iter().all(|asked| asked.contains(session)));
    }

    #[test]
    fn an_answer_without_credentials_is_refused_and_not_shown() {
        for text in ["", "hunter2", "{}", r#"{"AccessKeyId":"hunter2"}"#, "[]"] {
            let why = CredentialAnswer::of_json(text).read("it").expect_err(text);
            assert_eq!(why, "it answered without credentials of AWS");
        }
    }
}
