//! An authority of a test's own, and a certificate of it for servers on 127.0.0.1, made by `openssl`.

use std::path::PathBuf;
use std::process::Command;

use super::{folders, names};

/// The certificates; they end with it.
#[derive(Debug)]
pub struct Tls {
    folder: PathBuf,
}

impl Tls {
    /// An authority, and a certificate for 127.0.0.1 and localhost.
    pub fn new() -> Self {
        Self::named("IP:127.0.0.1,DNS:localhost")
    }

    /// The same with a certificate for other names: `DNS:redis.example`.
    pub fn named(alternatives: &str) -> Self {
        let folder = folders::new("tls");
        let text = format!(
            "[req]\ndistinguished_name = name\n[name]\n\
             [authority]\nbasicConstraints = critical, CA:TRUE\nkeyUsage = keyCertSign\n\
             [server]\nbasicConstraints = CA:FALSE\nsubjectAltName = {alternatives}\n"
        );
        std::fs::write(folder.join("openssl.cnf"), text).expect("written");
        let tls = Self { folder };
        // Authorities of one name would be told apart by their signatures only.
        let name = names::unique("authority");
        let authority = "req -x509 -newkey ec -keyout ca.key -out ca.crt -extensions authority";
        tls.openssl(&format!("{authority} -subj /CN={name}"));
        tls.openssl("req -new -newkey ec -keyout server.key -out server.csr -subj /CN=redis");
        let sign = "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt";
        tls.openssl(&format!("{sign} -extfile openssl.cnf -extensions server"));
        tls
    }

    fn openssl(&self, args: &str) {
        let mut command = Command::new("openssl");
        command.args(args.split(' ')).args(["-days", "2"]).current_dir(&self.folder);
        if args.starts_with("req") {
            command.args(["-config", "openssl.cnf", "-nodes", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        }
        let made = command.output().expect("openssl");
        assert!(made.status.success(), "{args}: {}", String::from_utf8_lossy(&made.stderr));
    }

    fn path(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }

    /// The authority's certificate, for `SSL_CERT_FILE`.
    pub fn authority(&self) -> String {
        self.path("ca.crt")
    }

    /// Options of a redis-server or sentinel that speaks TLS only, with clients, replicas and other nodes; it asks no
    /// certificate of its clients.
    pub fn options(&self) -> Vec<String> {
        let authority = self.authority();
        let words = ["--tls-ca-cert-file", &authority, "--tls-replication", "yes", "--tls-cluster", "yes"];
        let words = words.into_iter().map(str::to_owned);
        self.beside().into_iter().chain(words).collect()
    }

    /// Options of a redis-server that is to speak TLS with clients on a further port, `--tls-port`.
    pub fn beside(&self) -> Vec<String> {
        let certificate = self.path("server.crt");
        let key = self.path("server.key");
        let words = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-auth-clients", "no"];
        words.map(str::to_owned).to_vec()
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        folders::remove(&self.folder);
    }
}
