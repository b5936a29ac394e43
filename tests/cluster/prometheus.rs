//! A real Prometheus of a scenario's own, which reads the engines of its ready pods.
//!
//! Must read nothing else: what KEDA or the scaler ask of it is about engines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::engines::TARGETS;
use crate::ports;
use crate::process::Process;

/// A Prometheus, running or not.
#[derive(Debug)]
pub(crate) struct Prometheus {
    /// Where it is asked.
    pub(crate) url: String,
    dir: PathBuf,
    running: Option<Process>,
}

impl Prometheus {
    /// Starts it on the ready pods of a scenario; `None` where it is not installed.
    pub(crate) fn start(scene: &Path) -> Option<Prometheus> {
        Command::new("prometheus").arg("--version").output().ok()?;
        let dir = scene.join("prometheus");
        fs::create_dir(&dir).unwrap();
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
             scrape_configs: [{{job_name: engines, file_sd_configs: [{{files: [{}]}}]}}]\n",
            scene.join(TARGETS).display()
        );
        fs::write(dir.join("prometheus.yml"), config).unwrap();
        let [port] = ports::free();
        let mut prometheus =
            Prometheus { url: format!("http://127.0.0.1:{port}"), dir, running: None };
        prometheus.start_again();
        Some(prometheus)
    }

    /// Starts it after its end, with the same address and data.
    pub(crate) fn start_again(&mut self) {
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", self.dir.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", self.dir.join("data").display()));
        command.arg(format!("--web.listen-address={}", self.url.trim_start_matches("http://")));
        self.running = Some(Process::start(&mut command, &self.dir.join("log")));
    }

    /// Kills it, as a lost node does.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }
}
