//! A node's files and its Java.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::process::Process;
use super::super::{Tls, folders, names};
use super::VERSION;

/// 16 bytes in URL-safe base64, as Kafka wants it; each node has ports of its own, so all may share it.
const CLUSTER_ID: &str = "cG9zdGRhdGUtdGVzdHMtMQ";

/// Listeners that speak TLS, or whose clients log in.
#[derive(Debug, Default)]
pub(super) struct SecureListeners {
    /// `,TLS0://127.0.0.1:PORT` of each.
    addresses: String,
    /// `,TLS0:SSL` of each.
    protocols: String,
    /// Further lines.
    lines: String,
}

/// A listener for each certificate. All want certificates of their clients.
pub(super) fn secure_listeners(certificates: &[&Tls], ports: &[u16]) -> SecureListeners {
    let mut secure = SecureListeners::default();
    for (n, (tls, port)) in certificates.iter().zip(ports).enumerate() {
        let address = format!(",TLS{n}://127.0.0.1:{port}");
        secure.addresses += &address;
        let protocol = format!(",TLS{n}:SSL");
        secure.protocols += &protocol;
        let prefix = format!("listener.name.tls{n}.ssl");
        let lines = format!(
            "{prefix}.keystore.type=PEM\n{prefix}.keystore.location={}\n{prefix}.truststore.type=PEM\n\
             {prefix}.truststore.location={}\n{prefix}.client.auth=required\n",
            tls.key_store(),
            tls.authority()
        );
        secure.lines += &lines;
    }
    secure
}

/// A listener whose clients log in by SASL: with a password, or with an unsigned token of the scope `kafka`. A session
/// ends after `session_ms`, or with its token, unless its client logs in again by then.
pub(super) fn login_listener(port: u16, session_ms: u32) -> SecureListeners {
    let prefix = "listener.name.login";
    let kafka = "org.apache.kafka.common.security";
    let lines = format!(
        "{prefix}.sasl.enabled.mechanisms=SCRAM-SHA-512,OAUTHBEARER
{prefix}.connections.max.reauth.ms={session_ms}
{prefix}.scram-sha-512.sasl.jaas.config={kafka}.scram.ScramLoginModule required;
{prefix}.oauthbearer.sasl.jaas.config={kafka}.oauthbearer.OAuthBearerLoginModule required \
  unsecuredLoginStringClaim_sub=\"broker\" unsecuredValidatorRequiredScope=\"kafka\";
"
    );
    SecureListeners {
        addresses: format!(",LOGIN://127.0.0.1:{port}"),
        protocols: ",LOGIN:SASL_PLAINTEXT".to_owned(),
        lines,
    }
}

impl SecureListeners {
    /// The same, where whoever has a certificate may do nothing without a right.
    pub(super) fn with_rights(mut self) -> Self {
        self.lines += "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
                       super.users=User:ANONYMOUS\n";
        self
    }

    /// The properties of a node with these listeners.
    pub(super) fn added_to(&self, properties: &str) -> String {
        let added = properties.lines().map(|line| {
            let more = match line.split_once('=').map(|(name, _)| name) {
                Some("listeners" | "advertised.listeners") => self.addresses.as_str(),
                Some("listener.security.protocol.map") => self.protocols.as_str(),
                _ => "",
            };
            format!("{line}{more}\n")
        });
        added.collect::<String>() + &self.lines
    }
}

/// A killed broker is let in again only after its old session has timed out: 9 s unless we say less.
pub(super) fn properties(
    node: usize,
    controllers: &[u16],
    port: u16,
    behind: Option<(u16, u16)>,
    folder: &Path,
) -> String {
    let listener = |port| format!(",BEHIND://127.0.0.1:{port}");
    let (listens, advertised) = behind
        .map(|(listens, advertised)| (listener(listens), listener(advertised)))
        .unwrap_or_default();
    let id = node + 1;
    let controller = controllers[node];
    let copies = controllers.len();
    let voters: Vec<_> = controllers
        .iter()
        .enumerate()
        .map(|(n, port)| format!("{}@127.0.0.1:{port}", n + 1))
        .collect();
    let voters = voters.join(",");
    // A write on one of three is on a second one as well before it is acknowledged.
    let least = copies.div_ceil(2);
    format!(
        "process.roles=broker,controller
node.id={id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listens}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{advertised}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,BEHIND:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={}/data
min.insync.replicas={least}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={least}
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
log.segment.delete.delay.ms=1000
# Tests write records that claim to be old. A look at their age, every five minutes, would delete them unread.
log.retention.ms=-1
auto.create.topics.enable=false
# Kafka's own 100 KiB are less than two segments of the loopback interface: its sender then waits for windows.
socket.receive.buffer.bytes=-1
socket.send.buffer.bytes=-1
",
        folder.display()
    )
}

/// Formats the data folder: by Kafka's own tool the first time, from a copy of its work later, for that
/// takes a JVM and two seconds.
pub(super) async fn format(node: usize, folder: &Path) {
    let data = folder.join("data");
    let kept = folders::cache().join("kafka");
    let number = if node == 0 {
        String::new()
    } else {
        format!("-{}", node + 1)
    };
    let copy = kept.join(format!("{VERSION}-formatted{number}"));
    if copy.exists() {
        copy_files(&copy, &data);
    } else {
        let mut tool = java(
            "kafka-format",
            folder,
            &["-XX:TieredStopAtLevel=1", "-Xmx128m"],
            |command| {
                command.args([
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    CLUSTER_ID,
                    "-c",
                    "kafka.properties",
                ]);
            },
        );
        let done = tool.wait(Duration::from_secs(60)).await;
        assert!(
            done.is_some_and(|status| status.success()),
            "kafka format: {done:?}\n{}",
            tool.log_tail()
        );
        let part = kept.join(names::unique("part"));
        copy_files(&data, &part);
        // Another test process may have been faster: then its copy stands, and ours goes.
        if std::fs::rename(&part, &copy).is_err() {
            std::fs::remove_dir_all(&part).expect("our own copy");
        }
    }
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for file in std::fs::read_dir(from).expect("a folder") {
        let file = file.expect("an entry");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
}

/// Gives a user a password, in place of any former one.
pub(super) async fn set_password(bootstrap: &str, user: &str, password: &str) {
    let folder = folders::new("kafka-configs");
    let options = ["-XX:TieredStopAtLevel=1", "-Xmx128m"];
    let mut tool = java("kafka-configs", &folder, &options, |command| {
        command.args(["kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap]);
        command.args(["--alter", "--entity-type", "users", "--entity-name", user]);
        command.arg("--add-config");
        command.arg(format!(
            "SCRAM-SHA-512=[iterations=4096,password={password}]"
        ));
    });
    let done = tool.wait(Duration::from_secs(60)).await;
    assert!(
        done.is_some_and(|status| status.success()),
        "kafka-configs: {done:?}\n{}",
        tool.log_tail()
    );
}

/// Takes a broker out of its cluster, until it is started again.
pub(super) async fn unregister(bootstrap: &str, broker: i32) {
    let folder = folders::new("kafka-unregister");
    let options = ["-XX:TieredStopAtLevel=1", "-Xmx128m"];
    let mut tool = java("kafka-unregister", &folder, &options, |command| {
        command.arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/support/java/UnregisterBroker.java"
        ));
        command.args([bootstrap, &broker.to_string()]);
    });
    let done = tool.wait(Duration::from_secs(60)).await;
    assert!(
        done.is_some_and(|status| status.success()),
        "unregister broker {broker}: {done:?}\n{}",
        tool.log_tail()
    );
}

pub(super) fn run(folder: &Path, options: &[&str]) -> Process {
    // Kafka's classes as `scripts/setup --kafka-classes` has archived them: a JVM that can use them starts sooner.
    let classes = folders::cache()
        .join("kafka")
        .join(format!("{VERSION}.jsa"));
    let archive = classes
        .exists()
        .then(|| format!("-XX:SharedArchiveFile={}", classes.display()));
    java("kafka", folder, options, |command| {
        command
            .args(archive)
            .args(["kafka.Kafka", "kafka.properties"]);
    })
}

/// Java, with the options of all of them.
fn java(
    name: &str,
    folder: &Path,
    options: &[&str],
    main: impl FnOnce(&mut std::process::Command),
) -> Process {
    Process::start(name, folder, "java", |command| {
        command
            .args(["-XX:+UseSerialGC", "-Xshare:auto"])
            .args(options);
        command.arg("-cp").arg(jars().join("*"));
        main(command);
    })
}

/// Where `scripts/setup` puts the jars.
pub(super) fn jars() -> PathBuf {
    folders::cache().join("kafka").join(VERSION)
}
