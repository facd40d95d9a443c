//! A Chromium without a window, driven by its own driver over HTTP (`WebDriver`).

use crate::fixture::{LIMIT, until};
use leasehold_testkit::{ReservedPort, Worker};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The key under which the protocol sends the number of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one page. Dropping it ends the browser and its driver.
pub(crate) struct Browser {
    driver: Worker,
    port: ReservedPort,
    session: String,
    _profile: TempDir,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let port = ReservedPort::new().expect("a port is free");
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", port.number()));
        let started = Worker::of_command(command).start();
        let mut driver = started.expect("chromedriver starts: install Debian's chromium and chromium-driver");
        driver.expect("ChromeDriver was started successfully on port", LIMIT).expect("it listens");
        let profile =
            TempDir::with_prefix("leasehold-browser-").expect("there is a directory for temporary files");
        let directory = format!("--user-data-dir={}", profile.path().display());
        let arguments = json!([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--force-device-scale-factor=1",
            directory,
        ]);
        let capabilities = json!({ "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } });
        let mut browser = Self { driver, port, session: String::new(), _profile: profile };
        let made = browser.call("POST", "/session", &json!({ "capabilities": capabilities }));
        made["sessionId"].as_str().expect("a session").clone_into(&mut browser.session);
        browser
    }

    pub(crate) fn goto(&self, url: &str) {
        self.command("POST", "/url", &json!({ "url": url }));
    }

    pub(crate) fn url(&self) -> String {
        self.command("GET", "/url", &Value::Null).as_str().expect("a URL").to_owned()
    }

    /// The value of an expression in the page.
    pub(crate) fn eval(&self, expression: &str) -> Value {
        let script = format!("return {expression};");
        self.command("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// The text of an element that is shown; empty if it is not.
    pub(crate) fn text(&self, selector: &str) -> String {
        let selector = json!(selector);
        let text = self.eval(&format!(
            "(node => node && node.getClientRects().length ? node.innerText.trim() : '')(document.querySelector({selector}))"
        ));
        text.as_str().expect("a text").to_owned()
    }

    /// Waits until an element is shown with such a text.
    #[track_caller]
    pub(crate) fn until_text(&self, selector: &str, holds: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        until(&format!("the text of {selector}"), || {
            last = self.text(selector);
            holds(&last)
        });
        last
    }

    /// Clicks where the element is, as a user does.
    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.command("POST", &format!("/element/{element}/click"), &json!({}));
    }

    /// Presses keys in the element that has the focus.
    pub(crate) fn press(&self, keys: &str) {
        let element = self.command("GET", "/element/active", &Value::Null);
        let element = element[ELEMENT].as_str().expect("an element");
        self.command("POST", &format!("/element/{element}/value"), &json!({ "text": keys }));
    }

    fn find(&self, selector: &str) -> String {
        let found = self.command("POST", "/element", &json!({ "using": "css selector", "value": selector }));
        found[ELEMENT].as_str().expect("an element").to_owned()
    }

    /// A command of Chromium's own protocol.
    pub(crate) fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// The size of the page in pixels, and whether it prefers dark colours.
    pub(crate) fn show_as(&self, width: u32, height: u32, is_dark: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// The errors and warnings that the page has logged.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.command("POST", "/se/log", &json!({ "type": "browser" }));
        let entries = log.as_array().into_iter().flatten();
        let grave = entries.filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING");
        grave.map(|entry| entry["message"].to_string()).collect()
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        self.call(method, &format!("/session/{}{path}", self.session), body)
    }

    /// One request to the driver. Its error fails the test.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.try_call(method, path, body).expect("the driver answers");
        let value = answer["value"].clone();
        assert!(value.get("error").is_none(), "{method} {path} {body}: {value}");
        value
    }

    fn try_call(&self, method: &str, path: &str, body: &Value) -> std::io::Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.number()))?;
        stream.set_read_timeout(Some(3 * LIMIT))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.port.number(),
            body.len()
        )?;
        // Its connection may stay open.
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            let read = stream.read(&mut buffer)?;
            bytes.extend_from_slice(&buffer[..read]);
            let text = String::from_utf8_lossy(&bytes);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
                });
                if read == 0 || length.is_some_and(|length| body.len() >= length) {
                    return Ok(serde_json::from_str(body)?);
                }
            } else if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends the browser, with all its processes; the driver alone would leave it.
        let _ = self.try_call("DELETE", &format!("/session/{}", self.session), &Value::Null);
        let _ = self.driver.kill();
        std::thread::sleep(Duration::from_millis(20));
    }
}
