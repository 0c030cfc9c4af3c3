//! A page with what it says to type, and the terminal where it is typed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::process::Process;
use crate::support::relay::binary;
use crate::support::{Relay, folders, names, ports};

/// A block of code.
#[derive(Debug, PartialEq, Eq)]
struct CodeBlock {
    /// Word behind the fence: `toml` becomes `postdate.toml`, `sh` is typed line by line, `sh run` starts the relay. Any
    /// other is only read.
    language: String,
    text: String,
}

fn blocks(page: &str) -> Vec<CodeBlock> {
    let parts = page.split("```").skip(1).step_by(2);
    let blocks = parts.map(|part| {
        let (language, text) = part.split_once('\n').expect("a fence stands alone");
        CodeBlock {
            language: language.to_owned(),
            text: text.to_owned(),
        }
    });
    blocks.collect()
}

/// A terminal in a folder of its own, with the project's program in the path.
pub(super) struct TypedTerminal {
    folder: PathBuf,
    environment: Vec<(String, String)>,
    /// Names and addresses of the page, and those of the test's servers.
    replaced: Vec<(String, String)>,
    address: String,
    relay: Option<Relay>,
    /// Everything that the commands have printed.
    said: String,
}

impl TypedTerminal {
    /// A terminal for this page. Its relay has a store of its own.
    pub(super) fn new(name: &str, replaced: &[(&str, String)]) -> Self {
        let folder = folders::new(name);
        let address = format!("127.0.0.1:{}", ports::free());
        let program = binary();
        let programs = program.parent().expect("a folder").display().to_string();
        let path = std::env::var("PATH").expect("a path");
        let variables = [
            ("PATH", format!("{programs}:{path}")),
            ("HOME", folder.display().to_string()),
            ("POSTDATE_URL", format!("http://{address}")),
            ("POSTDATE_ADMIN__LISTEN", address.clone()),
            ("POSTDATE_REDIS__PREFIX", names::unique(name)),
        ];
        Self {
            folder,
            environment: variables
                .map(|(name, value)| (name.to_owned(), value))
                .to_vec(),
            replaced: replaced
                .iter()
                .map(|(from, to)| ((*from).to_owned(), to.clone()))
                .collect(),
            address,
            relay: None,
            said: String::new(),
        }
    }

    /// Everything that the commands have printed.
    pub(super) fn said(&self) -> &str {
        &self.said
    }

    /// The folder where it stands.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file into the terminal's folder.
    pub(super) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.folder.join(file), text).expect("written");
    }

    fn replaced(&self, text: &str) -> String {
        self.replaced
            .iter()
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// Output of a line, or its complaint.
    pub(super) async fn types(&self, line: &str) -> Result<String, String> {
        let mut command = Command::new("bash");
        command
            .args(["-ec", line])
            .current_dir(&self.folder)
            .envs(self.environment.iter().cloned());
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("no panic");
        let output = output.expect("bash");
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(said(&output.stdout))
        } else {
            Err(said(&output.stderr))
        }
    }

    /// Types a line that must succeed.
    async fn done(&mut self, line: &str) {
        let line = self.replaced(line);
        let said = match self.types(&line).await {
            Ok(said) => said,
            Err(said) => panic!("{line}: {said}"),
        };
        self.said.push_str(&said);
        // A command may have written the configuration.
        let configuration = self.folder.join("postdate.toml");
        if let Ok(text) = std::fs::read_to_string(&configuration) {
            std::fs::write(&configuration, self.replaced(&text)).expect("written");
        }
    }

    async fn run_relay(&mut self) {
        let process = Process::start("postdate", &self.folder, "bash", |command| {
            command
                .args(["-ec", "exec postdate run"])
                .envs(self.environment.iter().cloned());
        });
        let mut relay = Relay::adopt(process, &self.address);
        relay.ready().await;
        self.relay = Some(relay);
    }

    /// Does all that a text says.
    pub(super) async fn play(&mut self, text: &str) {
        for block in blocks(text) {
            match block.language.as_str() {
                "toml" => self.write("postdate.toml", &self.replaced(&block.text)),
                "sh run" => {
                    assert_eq!(block.text, "postdate run\n");
                    self.run_relay().await;
                }
                "sh" => {
                    for line in block.text.lines() {
                        self.done(line).await;
                    }
                }
                "text" | "java" | "sql" | "properties" => {}
                other => panic!("a block of {other}"),
            }
        }
    }

    /// Ends the relay, which must not fail.
    pub(super) async fn end(self) {
        let mut relay = self.relay.expect("the page says to run it");
        assert!(relay.terminate().await.success());
    }
}

/// A page of the documents.
pub(super) fn page(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The parts of a page before and from this heading on.
pub(super) fn split_page<'a>(page: &'a str, heading: &str) -> (&'a str, &'a str) {
    let at = page
        .find(&format!("{heading}\n"))
        .unwrap_or_else(|| panic!("no {heading}"));
    page.split_at(at)
}
