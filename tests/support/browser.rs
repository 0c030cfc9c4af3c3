//! Headless Chromium as a child process of its driver, spoken to by the WebDriver protocol as a user would act: what it
//! clicks and types goes through the browser's own event handling.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};

use super::not_tested::not_tested;
use super::process::Process;
use super::{eventually, folders, ports};

/// Longest wait for an answer of the driver.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// Name under which WebDriver hands out elements.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one tab.
#[derive(Debug)]
pub struct Browser {
    /// Address of the session.
    session: String,
    _driver: Process,
    _chromium: Process,
}

/// An element of the page.
#[derive(Clone, Debug)]
pub struct Element(String);

/// Size and colours that a page is shown in.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Width of the page, CSS pixels.
    pub width: u32,
    /// Its height.
    pub height: u32,
    /// Dark instead of light.
    pub dark: bool,
}

/// A desktop.
pub const WIDE: Screen = Screen {
    width: 1440,
    height: 900,
    dark: false,
};
/// A phone.
pub const NARROW: Screen = Screen {
    width: 390,
    height: 844,
    dark: false,
};

/// Reports whether Chromium and its driver are there; if not, notes that this test did nothing.
pub fn available(test: &str) -> bool {
    let missing = ["chromium", "chromedriver"].into_iter().find(|program| {
        let tried = Command::new(program).arg("--version").output();
        !tried.is_ok_and(|output| output.status.success())
    });
    if let Some(program) = missing {
        not_tested(
            test,
            &format!("there is no {program} here (scripts/setup --browser)"),
        );
    }
    missing.is_none()
}

/// The checks of accessibility, as `scripts/setup --browser` has fetched them; `None` notes that they were not run.
pub fn axe_script(test: &str) -> Option<String> {
    let cache = std::env::var_os("POSTDATE_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache"));
    let script = std::fs::read_to_string(cache.join("axe/axe.min.js"));
    if script.is_err() {
        not_tested(test, "there is no axe-core here (scripts/setup --browser)");
    }
    script.ok()
}

impl Browser {
    /// Starts one.
    pub async fn start(screen: Screen) -> Self {
        let folder = folders::new("browser");
        let port = ports::free();
        // Started here and not by the driver, so that it ends with this process whatever becomes of the driver.
        let chromium = Process::start("chromium", &folder, "chromium", |command| {
            command.args([
                "--headless=new",
                "--no-sandbox",
                "--no-first-run",
                "--disable-gpu",
                "--disable-quic",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
                "--lang=en-GB",
                "--user-data-dir=profile",
            ]);
            command
                .arg(format!("--remote-debugging-port={port}"))
                .arg("about:blank");
        });
        let debugger = format!("127.0.0.1:{port}");
        eventually("chromium is ready", async || {
            call("GET", &format!("http://{debugger}/json/version"), None)
                .await
                .map(drop)
        })
        .await;
        let port = ports::free();
        let driver = Process::start("chromedriver", &folder, "chromedriver", |command| {
            command.arg(format!("--port={port}"));
        });
        let address = format!("http://127.0.0.1:{port}");
        eventually("chromedriver is ready", async || {
            let status = call("GET", &format!("{address}/status"), None).await?;
            if status["ready"] == true {
                Ok(())
            } else {
                Err(anyhow!("{status}"))
            }
        })
        .await;
        let options = json!({ "debuggerAddress": debugger });
        let capabilities = json!({ "browserName": "chrome", "goog:chromeOptions": options });
        let wanted = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let begun = call("POST", &format!("{address}/session"), Some(wanted))
            .await
            .expect("a browser");
        let id = begun["sessionId"].as_str().expect("a session");
        let session = format!("{address}/session/{id}");
        let browser = Self {
            session,
            _driver: driver,
            _chromium: chromium,
        };
        // Nobody looks at its window, and yet pages get and lose the focus as if somebody did.
        browser
            .devtools(
                "Emulation.setFocusEmulationEnabled",
                json!({ "enabled": true }),
            )
            .await;
        browser.show_as(screen).await;
        browser
    }

    /// Shows pages as on this screen.
    pub async fn show_as(&self, screen: Screen) {
        let metrics = json!({
            "width": screen.width, "height": screen.height, "deviceScaleFactor": 1, "mobile": screen.width < 600,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)
            .await;
        let scheme = if screen.dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    async fn devtools(&self, command: &str, parameters: Value) {
        self.post(
            "goog/cdp/execute",
            json!({ "cmd": command, "params": parameters }),
        )
        .await;
    }

    /// Opens an address, and waits until it is loaded.
    pub async fn open(&self, url: &str) {
        self.post("url", json!({ "url": url })).await;
    }

    /// Runs a script in the page, and returns what it returns.
    pub async fn run(&self, script: &str, arguments: Value) -> Value {
        self.post(
            "execute/sync",
            json!({ "script": script, "args": arguments }),
        )
        .await
    }

    /// The element that a CSS selector finds, once it is there.
    pub async fn find(&self, selector: &str) -> Element {
        eventually(&format!("the page has `{selector}`"), async || {
            let query = json!({ "using": "css selector", "value": selector });
            let found = call("POST", &format!("{}/element", self.session), Some(query)).await?;
            let id = found[ELEMENT].as_str().context("an element")?;
            anyhow::Ok(Element(id.to_owned()))
        })
        .await
    }

    /// The button, link or field that a user knows by this name, once it is visible: by its label, or its text.
    pub async fn named(&self, name: &str) -> Element {
        const FIND: &str = "
            const [name] = arguments;
            const isNamed = (element) => {
                const labels = [...(element.labels ?? [])].flatMap((label) =>
                    [label.textContent, label.firstElementChild?.textContent]);
                const own = [element.getAttribute('aria-label'), element.textContent, ...labels];
                return own.some((text) => text?.trim().replace(/\\s+/g, ' ') === name);
            };
            const all = document.querySelectorAll('button, a, input, select, textarea, summary, [role=tab]');
            return [...all].find((element) => element.checkVisibility() && isNamed(element)) ?? null;";
        eventually(
            &format!("the page has something named `{name}`"),
            async || {
                let request = json!({ "script": FIND, "args": [name] });
                let found = call(
                    "POST",
                    &format!("{}/execute/sync", self.session),
                    Some(request),
                )
                .await?;
                match found[ELEMENT].as_str() {
                    Some(id) => Ok(Element(id.to_owned())),
                    None => Err(anyhow!("the page says: {}", self.text().await)),
                }
            },
        )
        .await
    }

    /// Clicks an element, as with a mouse.
    pub async fn click(&self, element: &Element) {
        self.post(&format!("element/{}/click", element.0), json!({}))
            .await;
    }

    /// Clicks what a user knows by this name.
    pub async fn press(&self, name: &str) {
        let element = self.named(name).await;
        self.click(&element).await;
    }

    /// Replaces the text of the field of this name by typing.
    pub async fn fill(&self, name: &str, text: &str) {
        let element = self.named(name).await;
        self.post(&format!("element/{}/clear", element.0), json!({}))
            .await;
        self.post(
            &format!("element/{}/value", element.0),
            json!({ "text": text }),
        )
        .await;
    }

    /// Types keys wherever the focus is: letters, or keys of WebDriver such as Tab (`\u{e004}`).
    pub async fn type_keys(&self, keys: &str) {
        let stroke = |key: char| {
            [
                json!({ "type": "keyDown", "value": key }),
                json!({ "type": "keyUp", "value": key }),
            ]
        };
        let strokes: Vec<Value> = keys.chars().flat_map(stroke).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.post("actions", json!({ "actions": [keyboard] })).await;
    }

    /// All text that the page shows.
    pub async fn text(&self) -> String {
        let text = self.run("return document.body.innerText", json!([])).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page shows this text.
    pub async fn sees(&self, text: &str) {
        eventually(&format!("the page shows `{text}`"), async || {
            let shown = self.text().await;
            if shown.contains(text) {
                Ok(())
            } else {
                Err(anyhow!("it shows: {shown}"))
            }
        })
        .await;
    }

    /// Waits until the page does not show this text any more.
    pub async fn sees_no(&self, text: &str) {
        eventually(&format!("the page shows no `{text}`"), async || {
            let shown = self.text().await;
            if shown.contains(text) {
                Err(anyhow!("it shows: {shown}"))
            } else {
                Ok(())
            }
        })
        .await;
    }

    /// A picture of what is visible, PNG.
    pub async fn screenshot(&self) -> Vec<u8> {
        use base64::Engine;
        let picture = call("GET", &format!("{}/screenshot", self.session), None)
            .await
            .expect("a picture");
        let picture = picture.as_str().expect("base64");
        base64::engine::general_purpose::STANDARD
            .decode(picture)
            .expect("base64")
    }

    /// Violations of the rules of accessibility on this page, in words.
    pub async fn violations(&self, axe: &str) -> Vec<String> {
        const RUN: &str = "
            const done = arguments[arguments.length - 1];
            axe.run(document).then((result) => done(result.violations.map((violation) =>
                `${violation.id}: ${violation.help}: ${violation.nodes.map((node) => node.html).join(' ')}`)),
                (error) => done([String(error)]));";
        self.run(&format!("{axe}; return null"), json!([])).await;
        let found = self
            .post("execute/async", json!({ "script": RUN, "args": [] }))
            .await;
        found
            .as_array()
            .expect("a list")
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let url = format!("{}/{path}", self.session);
        call("POST", &url, Some(body))
            .await
            .unwrap_or_else(|error| panic!("{path}: {error:#}"))
    }
}

/// A call of the driver: `value` of its answer.
async fn call(method: &'static str, url: &str, body: Option<Value>) -> anyhow::Result<Value> {
    let url = url.to_owned();
    let sent = tokio::task::spawn_blocking(move || {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_DEADLINE))
            .http_status_as_error(false)
            .build();
        let agent = ureq::Agent::new_with_config(config);
        let mut answer = match body {
            Some(body) => agent.post(&url).send_json(body)?,
            None => agent.get(&url).call()?,
        };
        anyhow::Ok((
            answer.status().as_u16(),
            answer
                .body_mut()
                .with_config()
                .limit(64 << 20)
                .read_json::<Value>()?,
        ))
    });
    let (status, mut answer) = sent
        .await?
        .with_context(|| format!("{method} to the driver"))?;
    let value = answer["value"].take();
    if status == 200 {
        return Ok(value);
    }
    Err(anyhow!(
        "{}: {}",
        value["error"],
        value["message"].as_str().unwrap_or_default()
    ))
}
