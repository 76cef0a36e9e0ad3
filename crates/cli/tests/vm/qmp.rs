//! QEMU's monitor: commands and events, a line of JSON each (QEMU `docs/interop/qmp-spec.txt`).

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
    /// Events that arrived before the answer to a command.
    events: Vec<Value>,
}

/// Longest time to an answer.
const ANSWER: Duration = Duration::from_secs(60);

impl Qmp {
    /// Connects as soon as QEMU listens.
    pub(crate) fn connect(path: &Path) -> Result<Qmp, String> {
        let by = Instant::now() + ANSWER;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(why) if Instant::now() > by => return Err(format!("{}: {why}", path.display())),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut qmp = Qmp { stream: BufReader::new(stream), events: Vec::new() };
        qmp.read(ANSWER)?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Executes a command; the error is QEMU's.
    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> Result<(), String> {
        let line = json!({"execute": command, "arguments": arguments});
        writeln!(self.stream.get_mut(), "{line}").map_err(|e| e.to_string())?;
        loop {
            let answer = self.read(ANSWER)?;
            match (answer.get("return"), answer.get("error")) {
                (Some(_), _) => return Ok(()),
                (_, Some(error)) => return Err(error["desc"].to_string()),
                (None, None) => self.events.push(answer),
            }
        }
    }

    pub(crate) fn forget_events(&mut self) {
        self.events.clear();
    }

    /// Waits for an event.
    pub(crate) fn wait(&mut self, longest: Duration, is_it: impl Fn(&Value) -> bool) -> Result<(), String> {
        let by = Instant::now() + longest;
        while !self.events.iter().any(&is_it) {
            let left = by.saturating_duration_since(Instant::now());
            let event = self.read(left.max(Duration::from_millis(1)))?;
            self.events.push(event);
        }
        Ok(())
    }

    fn read(&mut self, longest: Duration) -> Result<Value, String> {
        self.stream.get_ref().set_read_timeout(Some(longest)).map_err(|e| e.to_string())?;
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(|e| format!("QEMU's monitor: {e}"))?;
        serde_json::from_str(&line).map_err(|e| format!("QEMU's monitor: {e}: {line}"))
    }
}
