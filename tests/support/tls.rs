//! An authority of a test's own, and certificates of it for servers on 127.0.0.1 and for clients, made by `openssl`.

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
             [server]\nbasicConstraints = CA:FALSE\nsubjectAltName = {alternatives}\n\
             [client]\nbasicConstraints = CA:FALSE\nextendedKeyUsage = clientAuth\n\
             [ca]\ndefault_ca = dated\n\
             [dated]\ndatabase = index.txt\nserial = serial.txt\nnew_certs_dir = .\ndefault_md = sha256\npolicy = any\n\
             [any]\ncommonName = supplied\n"
        );
        std::fs::write(folder.join("openssl.cnf"), text).expect("written");
        let tls = Self { folder };
        // Authorities of one name would be told apart by their signatures only.
        let name = names::unique("authority");
        let authority = "req -x509 -newkey ec -keyout ca.key -out ca.crt -extensions authority";
        tls.openssl(&format!("{authority} -subj /CN={name}"));
        tls.openssl("req -new -newkey ec -keyout server.key -out server.csr -subj /CN=redis");
        tls.sign("server");
        tls.openssl("req -new -newkey ec -keyout client.key -out client.csr -subj /CN=postdate");
        tls.sign("client");
        tls
    }

    /// The same as [`Tls::named`] with a server's certificate that was valid on the first day of 2020 alone.
    pub fn expired(alternatives: &str) -> Self {
        let tls = Self::named(alternatives);
        std::fs::write(tls.folder.join("index.txt"), "").expect("written");
        std::fs::write(tls.folder.join("serial.txt"), "01\n").expect("written");
        let sign = "ca -batch -notext -config openssl.cnf -cert ca.crt -keyfile ca.key";
        let dates = "-startdate 20200101000000Z -enddate 20200102000000Z";
        tls.openssl(&format!(
            "{sign} {dates} -in server.csr -out server.crt -extensions server"
        ));
        tls
    }

    /// Signs a request by the authority.
    fn sign(&self, name: &str) {
        let sign = "x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -extfile openssl.cnf";
        self.openssl(&format!(
            "{sign} -in {name}.csr -out {name}.crt -extensions {name}"
        ));
    }

    fn openssl(&self, args: &str) {
        let mut command = Command::new("openssl");
        command
            .args(args.split(' '))
            .args(["-days", "2"])
            .current_dir(&self.folder);
        if args.starts_with("req") {
            command.args([
                "-config",
                "openssl.cnf",
                "-nodes",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ]);
        }
        let made = command.output().expect("openssl");
        assert!(
            made.status.success(),
            "{args}: {}",
            String::from_utf8_lossy(&made.stderr)
        );
    }

    fn path(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }

    /// The authority's certificate, for `SSL_CERT_FILE`.
    pub fn authority(&self) -> String {
        self.path("ca.crt")
    }

    /// The server's certificate and its key.
    pub fn server(&self) -> (String, String) {
        (self.path("server.crt"), self.path("server.key"))
    }

    /// A client's certificate and its key.
    pub fn client(&self) -> (String, String) {
        (self.path("client.crt"), self.path("client.key"))
    }

    /// The server's key and certificate in one file, as Kafka wants them.
    pub fn key_store(&self) -> String {
        let (certificate, key) = self.server();
        let read = |path: &str| std::fs::read_to_string(path).expect("a file of PEM");
        let both = read(&key) + &read(&certificate);
        std::fs::write(self.folder.join("server.pem"), both).expect("written");
        self.path("server.pem")
    }

    /// Options of a redis-server or sentinel that speaks TLS only, with clients, replicas and other nodes; it asks no
    /// certificate of its clients.
    pub fn options(&self) -> Vec<String> {
        let authority = self.authority();
        let words = [
            "--tls-ca-cert-file",
            &authority,
            "--tls-replication",
            "yes",
            "--tls-cluster",
            "yes",
        ];
        let words = words.into_iter().map(str::to_owned);
        self.beside().into_iter().chain(words).collect()
    }

    /// Options of a redis-server that is to speak TLS with clients on a further port, `--tls-port`.
    pub fn beside(&self) -> Vec<String> {
        let certificate = self.path("server.crt");
        let key = self.path("server.key");
        let words = [
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-auth-clients",
            "no",
        ];
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
