//! A real Prometheus of a scenario's own, which finds the pods of its namespace as any other does.
//!
//! Must not be told which pods there are.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::engines::PORT;
use crate::ports;
use crate::process::Process;

/// A Prometheus, running or not.
#[derive(Debug)]
pub(crate) struct Prometheus {
    /// Where it is asked.
    pub(crate) url: String,
    dir: std::path::PathBuf,
    running: Option<Process>,
}

impl Prometheus {
    /// Starts it on the ready pods of a namespace; `None` where it is not installed.
    pub(crate) fn start(dir: &Path, kubeconfig: &Path, namespace: &str) -> Option<Prometheus> {
        Command::new("prometheus").arg("--version").output().ok()?;
        let dir = dir.join("prometheus");
        fs::create_dir(&dir).unwrap();
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
             scrape_configs:\n\
             - job_name: engines\n\
             \x20 kubernetes_sd_configs:\n\
             \x20 - {{role: pod, kubeconfig_file: {}, namespaces: {{names: [{namespace}]}}}}\n\
             \x20 relabel_configs:\n\
             \x20 - {{source_labels: [__meta_kubernetes_pod_ready], regex: 'true', action: keep}}\n\
             \x20 - {{source_labels: [__meta_kubernetes_pod_ip], regex: '(.+)', target_label: __address__, replacement: '$1:{PORT}'}}\n\
             \x20 - {{source_labels: [__meta_kubernetes_namespace], target_label: namespace}}\n\
             \x20 - {{source_labels: [__meta_kubernetes_pod_name], target_label: pod}}\n",
            kubeconfig.display()
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
