//! Clients that log in at Kafka by tokens. The issuer of tokens is played; what judges them is Kafka.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::login::{LoginPlay, says};
use crate::support::{Relay, eventually, folders, relay};

/// Life of a token where renewals are waited for. Kafka ends a session with its token.
const SHORT_LIFE: Duration = Duration::from_secs(10);
const LONG_LIFE: Duration = Duration::from_secs(60 * 60);
/// Sessions end with their tokens alone.
const SESSION_MS: u32 = 3_600_000;
const SECRET: &str = "the-secret-of-the-relay";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IssuerMode {
    Issues,
    /// Takes requests and never answers.
    Hangs,
    /// Issues tokens of another scope than Kafka wants.
    OtherScope,
}

/// An issuer of tokens on this machine.
#[derive(Debug)]
struct Issuer {
    port: u16,
    life: Duration,
    mode: Mutex<IssuerMode>,
    issued: AtomicU32,
}

impl Issuer {
    async fn start(life: Duration, mode: IssuerMode) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let issuer = Arc::new(Self {
            port: listener.local_addr().expect("an address").port(),
            life,
            mode: Mutex::new(mode),
            issued: AtomicU32::new(0),
        });
        let serving = issuer.clone();
        tokio::spawn(async move {
            loop {
                let (connection, _) = listener.accept().await.expect("a connection");
                let serving = serving.clone();
                tokio::spawn(async move { serving.answer(connection).await });
            }
        });
        issuer
    }

    fn turn(&self, mode: IssuerMode) {
        *self.mode.lock().expect("whole") = mode;
    }

    fn issued(&self) -> u32 {
        self.issued.load(Ordering::SeqCst)
    }

    async fn answer(&self, mut connection: TcpStream) {
        let mut request = Vec::new();
        let end = b"grant_type=client_credentials&scope=kafka";
        while !request.ends_with(end) {
            let mut part = [0; 4096];
            match connection.read(&mut part).await {
                Ok(len @ 1..) => request.extend_from_slice(&part[..len]),
                _ => return,
            }
        }
        let request = String::from_utf8(request).expect("a text");
        let mode = *self.mode.lock().expect("whole");
        let scope = match mode {
            IssuerMode::Issues => "kafka",
            IssuerMode::OtherScope => "other",
            IssuerMode::Hangs => return std::future::pending().await,
        };
        let login = STANDARD.encode(format!("relay:{SECRET}"));
        let (status, body) = if request.contains(&format!("authorization: Basic {login}\r\n")) {
            self.issued.fetch_add(1, Ordering::SeqCst);
            let life = self.life.as_secs();
            let token = token(scope, self.life);
            let body = format!(
                r#"{{"access_token":"{token}","token_type":"Bearer","expires_in":{life}}}"#
            );
            (200, body)
        } else {
            (401, r#"{"error":"invalid_client"}"#.to_owned())
        };
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        connection
            .write_all(answer.as_bytes())
            .await
            .expect("written");
    }
}

/// A token without a signature.
fn token(scope: &str, life: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("time");
    let until = (now + life).as_secs();
    let claims = format!(
        r#"{{"sub":"relay","iat":{},"exp":{until},"scope":"{scope}"}}"#,
        now.as_secs()
    );
    format!(
        "{}.{}.",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#),
        URL_SAFE_NO_PAD.encode(claims)
    )
}

/// How the relay logs in.
fn login(issuer: &Issuer, secret: &Path) -> String {
    format!(
        "properties = {{ \"security.protocol\" = \"SASL_PLAINTEXT\", \"sasl.mechanism\" = \"OAUTHBEARER\" }}\n\
         oauth = {{ token_url = \"http://127.0.0.1:{}/token\", client_id = \"relay\", client_secret_file = \"{}\", \
         scope = \"kafka\" }}",
        issuer.port,
        secret.display()
    )
}

/// Waits until every part of `/readyz` is up, or until one is down for a reason with these words.
async fn is_ready(relay: &Relay, trouble: Option<&str>) {
    eventually(&format!("ready, but for {trouble:?}"), async || {
        let (status, body) = relay.get("/readyz").await?;
        let as_expected = match trouble {
            None => status == 200,
            Some(words) => body.contains(words),
        };
        anyhow::ensure!(as_expected, "{status}: {body}\n{}", relay.log());
        anyhow::Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_fetched_and_renewed_and_their_issuer_may_be_away() {
    let issuing = Issuer::start(SHORT_LIFE, IssuerMode::Issues);
    let (play, issuer) = tokio::join!(LoginPlay::start(SESSION_MS), issuing);
    let folder = folders::new("tokens");
    let secret = folder.join("secret");
    std::fs::write(&secret, "another-secret\n").expect("written");
    let config = play.config(&login(&issuer, &secret));
    let relay = Relay::spawn(&config, &[]);
    says(&relay, "it answered 401, invalid_client").await;
    is_ready(&relay, Some("it answered 401, invalid_client")).await;

    std::fs::write(&secret, SECRET).expect("written");
    play.delivers(&relay, 1).await;
    is_ready(&relay, None).await;

    // Kafka has ended the sessions of the first tokens by then.
    let first = issuer.issued();
    eventually("the first token is long past", async || {
        let issued = issuer.issued();
        anyhow::ensure!(issued >= first + 4, "{issued} issued, {first} at first");
        anyhow::Ok(())
    })
    .await;
    play.delivers(&relay, 2).await;

    // A present token is used while no other comes.
    issuer.turn(IssuerMode::Hangs);
    play.delivers(&relay, 3).await;
    is_ready(&relay, Some("the issuer of tokens cannot be asked")).await;
    issuer.turn(IssuerMode::Issues);
    play.delivers(&relay, 4).await;
    is_ready(&relay, None).await;

    issuer.turn(IssuerMode::OtherScope);
    is_ready(&relay, Some("SASL")).await;
    issuer.turn(IssuerMode::Issues);
    play.delivers(&relay, 5).await;

    let log = relay.log();
    for secret in [SECRET, "another-secret", &token("kafka", SHORT_LIFE)[..20]] {
        assert!(!log.contains(secret), "{log}");
    }
    assert_eq!(play.arrived(), 5, "nothing arrives twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_kafka_refuses_is_replaced_long_before_its_end() {
    let issuing = Issuer::start(LONG_LIFE, IssuerMode::OtherScope);
    let (play, issuer) = tokio::join!(LoginPlay::start(SESSION_MS), issuing);
    let folder = folders::new("tokens");
    let secret = folder.join("secret");
    std::fs::write(&secret, SECRET).expect("written");
    let relay = Relay::spawn(&play.config(&login(&issuer, &secret)), &[]);
    is_ready(&relay, Some("SASL")).await;
    issuer.turn(IssuerMode::Issues);
    play.delivers(&relay, 1).await;
    is_ready(&relay, None).await;

    // The command connects by tokens too.
    let checked = command(&relay, &["check", "--connect"]);
    assert!(checked.contains("can read"), "{checked}");
    let shown = command(&relay, &["check", "--print"]);
    let address = format!("token_url = \"http://127.0.0.1:{}/token\"", issuer.port);
    assert!(shown.contains(&address), "{shown}");
    assert!(!shown.contains(SECRET) && !checked.contains(SECRET));
}

/// What a command says about the configuration of a relay.
fn command(relay: &Relay, arguments: &[&str]) -> String {
    let output = Command::new(relay::binary())
        .args(arguments)
        .arg("--config")
        .arg(relay.config_file())
        .env_clear()
        .output()
        .expect("the binary runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).expect("a text");
    assert!(output.status.success(), "{said}");
    said
}
