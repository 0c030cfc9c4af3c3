//! The API over TLS, by the real binary: the command line as its client, new certificates and tokens while it runs, and
//! a client without TLS.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{
    Config, QueueKind, Rabbitmq, Redis, Relay, Tls, eventually, folders, names, relay,
};

const FIRST_TOKEN: &str = "the-first-of-two";
const SECOND_TOKEN: &str = "the-second-of-two";

/// A relay whose API speaks TLS, and the files that it reads again.
struct SecureRelay {
    relay: Relay,
    address: String,
    folder: PathBuf,
}

impl SecureRelay {
    async fn start(first: &Tls) -> Self {
        let rabbitmq = Rabbitmq::shared().await;
        let from = names::unique("from");
        let to = names::unique("to");
        for queue in [&from, &to] {
            rabbitmq.declare_queue(queue, QueueKind::Classic).await;
        }
        let config = Config::new(Redis::shared().await)
            .rabbitmq("main", rabbitmq)
            .route(
                "one",
                &format!(r#"{{ rabbitmq = "main", queue = "{from}" }}"#),
                &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{to}" }}"#),
                "",
            );
        let folder = folders::new("admin-tls");
        let [certificate, key, tokens] =
            ["certificate", "key", "tokens"].map(|name| folder.join(name).display().to_string());
        std::fs::copy(first.server().0, &certificate).expect("copied");
        std::fs::copy(first.server().1, &key).expect("copied");
        std::fs::write(&tokens, format!("{FIRST_TOKEN}\n")).expect("written");
        let environment = [
            ("POSTDATE_ADMIN__TLS__CERTIFICATE", certificate.as_str()),
            ("POSTDATE_ADMIN__TLS__KEY", key.as_str()),
            ("POSTDATE_ADMIN__WRITE_TOKENS_FILE", tokens.as_str()),
        ];
        let relay = Relay::spawn(&config, &environment);
        relay.unobserved("its API speaks TLS");
        let address = relay.url().replace("http://", "");
        Self {
            relay,
            address,
            folder,
        }
    }

    /// Replaces a file of the certificate at once, as one of a Kubernetes secret is.
    fn replace(&self, name: &str, by: impl AsRef<Path>) {
        let new = self.folder.join("new");
        std::fs::copy(by, &new).expect("copied");
        std::fs::rename(&new, self.folder.join(name)).expect("renamed");
    }

    /// `postdate status` at this scheme.
    async fn status(&self, scheme: &str, authority: &str, token: &str) -> Output {
        let mut command = Command::new(relay::binary());
        command.args(["status", "--ca", authority]).env_clear();
        command
            .env("POSTDATE_URL", format!("{scheme}://{}", self.address))
            .env("POSTDATE_TOKEN", token);
        tokio::task::spawn_blocking(move || command.output().expect("the binary runs"))
            .await
            .expect("no panic")
    }

    /// `Err` with what `status` says if it fails over TLS.
    async fn is_well(&self, authority: &str, token: &str) -> Result<(), String> {
        let output = self.status("https", authority, token).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(())
        } else {
            Err(said)
        }
    }

    async fn connect(&self, authority: &str) -> HeldConnection {
        let pem = std::fs::read(authority).expect("the authority's certificate");
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&pem).expect("a certificate"))
            .expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(&self.address).await.expect("connected");
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        HeldConnection(
            TlsConnector::from(Arc::new(config))
                .connect(name, stream)
                .await
                .expect("a handshake"),
        )
    }
}

/// A connection that stays open.
struct HeldConnection(TlsStream<TcpStream>);

impl HeldConnection {
    /// Asks `/livez`, and leaves the connection open.
    async fn ask(&mut self) {
        let Self(stream) = self;
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .expect("written");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("the connection is open"));
        }
        let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.expect("a length")];
        stream.read_exact(&mut body).await.expect("a body");
    }
}

#[tokio::test]
async fn certificates_and_tokens_are_renewed_while_a_connection_stays() {
    let first = Tls::named("IP:127.0.0.1");
    let second = Tls::named("IP:127.0.0.1");
    let mut secure = SecureRelay::start(&first).await;
    let [old, new] = [first.authority(), second.authority()];
    eventually("the API answers over TLS", async || {
        secure.is_well(&old, FIRST_TOKEN).await
    })
    .await;
    let mut held = secure.connect(&old).await;
    held.ask().await;

    // Half of a new pair is no pair.
    secure.replace("certificate", second.server().0);
    eventually("the wrong pair is told", async || {
        held.ask().await;
        let told = secure
            .relay
            .log()
            .contains("a new admin certificate cannot be used; the one before stays");
        if told { Ok(()) } else { Err("not yet") }
    })
    .await;
    assert_eq!(secure.is_well(&old, FIRST_TOKEN).await, Ok(()));

    secure.replace("key", second.server().1);
    eventually("the new certificate is shown", async || {
        held.ask().await;
        secure.is_well(&new, FIRST_TOKEN).await
    })
    .await;
    let refused = secure
        .is_well(&old, FIRST_TOKEN)
        .await
        .expect_err("another authority");
    assert!(
        refused.contains("its certificate is not from an authority that is trusted here"),
        "{refused}"
    );
    assert!(
        refused.contains("`--ca`") && !refused.contains("does postdate run there"),
        "{refused}"
    );

    std::fs::write(secure.folder.join("tokens"), format!("{SECOND_TOKEN}\n")).expect("written");
    eventually("the new token counts", async || {
        held.ask().await;
        secure.is_well(&new, SECOND_TOKEN).await
    })
    .await;
    let refused = secure
        .is_well(&new, FIRST_TOKEN)
        .await
        .expect_err("an old token");
    assert!(refused.contains("wants a valid token"), "{refused}");
    held.ask().await;

    let log = secure.relay.log();
    for secret in [FIRST_TOKEN, SECOND_TOKEN, "PRIVATE KEY"] {
        assert!(!log.contains(secret), "{log}");
    }
    assert_eq!(secure.relay.terminate().await.code(), Some(0));
}

#[tokio::test]
async fn a_client_without_tls_is_told_so_and_counted() {
    let tls = Tls::named("IP:127.0.0.1");
    let mut secure = SecureRelay::start(&tls).await;
    let authority = tls.authority();
    eventually("the API answers over TLS", async || {
        secure.is_well(&authority, FIRST_TOKEN).await
    })
    .await;

    let mut stream = TcpStream::connect(&secure.address)
        .await
        .expect("connected");
    let large = "x".repeat(8 << 10);
    let request = format!("GET /livez HTTP/1.1\r\nhost: x\r\nx-large: {large}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("an answer, and an end in order");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("this address speaks TLS"), "{answer}");

    let output = secure.status("http", &authority, FIRST_TOKEN).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("this address speaks TLS; take https:// instead of http://"),
        "{said}"
    );

    let mut held = secure.connect(&authority).await;
    held.0
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .expect("written");
    let mut metrics = String::new();
    held.0.read_to_string(&mut metrics).await.expect("metrics");
    // The observer of relays asks without TLS as well.
    let counted = metrics.lines().find_map(|line| {
        line.strip_prefix("postdate_admin_refused_total{reason=\"tls\"} ")?
            .parse::<f64>()
            .ok()
    });
    assert!(counted.is_some_and(|counted| counted >= 2.0), "{metrics}");
    assert_eq!(secure.relay.terminate().await.code(), Some(0));
}
