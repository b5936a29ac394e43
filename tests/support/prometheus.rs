//! A real Prometheus of the system's package, on a free port with a directory of its own.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ghostscaler::source::config::PrometheusConfig;
use tempfile::TempDir;

use super::ports;

/// How to run it.
#[derive(Debug, Default)]
pub(crate) struct Setup {
    jobs: Vec<String>,
    rest: String,
    tls: bool,
    past: Option<String>,
}

impl Setup {
    /// Scrapes each second, and takes the page's labels as they are.
    pub(crate) fn scrape(self, target: SocketAddr) -> Setup {
        self.job(&format!("honor_labels: true\n  static_configs: [{{targets: ['{target}']}}]"))
    }

    /// Scrapes each second as pods of this namespace: the page's own word becomes
    /// `exported_namespace`.
    pub(crate) fn scrape_in_namespace(self, target: SocketAddr, namespace: &str) -> Setup {
        let labels = format!("labels: {{namespace: {namespace}}}");
        self.job(&format!("static_configs: [{{targets: ['{target}'], {labels}}}]"))
    }

    /// Scrapes each second, and names the page's pod as Kubernetes's service discovery does.
    pub(crate) fn scrape_pod(self, target: SocketAddr, namespace: &str, pod: &str) -> Setup {
        let labels = format!("labels: {{namespace: {namespace}, pod: {pod}}}");
        self.job(&format!("static_configs: [{{targets: ['{target}'], {labels}}}]"))
    }

    fn job(mut self, how: &str) -> Setup {
        let n = self.jobs.len();
        self.jobs.push(format!("- job_name: job-{n}\n  {how}\n"));
        self
    }

    /// Also reads from another store, which is not there.
    pub(crate) fn remote_store(mut self, at: SocketAddr) -> Setup {
        self.rest = format!("remote_read: [{{url: 'http://{at}/read', read_recent: true}}]\n");
        self
    }

    /// Has these samples (OpenMetrics with timestamps) when it starts.
    pub(crate) fn past(mut self, openmetrics: String) -> Setup {
        self.past = Some(openmetrics);
        self
    }

    /// Serves https with the test certificate, for `localhost`.
    pub(crate) fn tls(mut self) -> Setup {
        self.tls = true;
        self
    }

    /// Starts it; `None`, with a line that says so, where it is not installed.
    pub(crate) fn start(self) -> Option<Prometheus> {
        let installed = Command::new("prometheus").arg("--version").output();
        if !installed.is_ok_and(|output| output.status.success()) {
            println!("skipped: no `prometheus` on the path (tests/setup.sh installs it)");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        if let Some(past) = self.past {
            import(&past, dir.path());
        }
        let jobs = if self.jobs.is_empty() { "  []\n".to_owned() } else { self.jobs.concat() };
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n{jobs}{}",
            self.rest
        );
        fs::write(at("prometheus.yml"), config).unwrap();
        let [port] = ports::free();
        let mut args = vec![
            format!("--config.file={}", at("prometheus.yml").display()),
            format!("--storage.tsdb.path={}", at("data").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
        ];
        if self.tls {
            let web = format!(
                "tls_server_config:\n  cert_file: {}\n  key_file: {}\n",
                tls_file("server.pem").display(),
                tls_file("server.key").display()
            );
            fs::write(at("web.yml"), web).unwrap();
            args.push(format!("--web.config.file={}", at("web.yml").display()));
        }
        let process = spawn(&args, dir.path());
        let scheme = if self.tls { "https" } else { "http" };
        Some(Prometheus { url: format!("{scheme}://localhost:{port}"), args, process, dir })
    }
}

/// Makes blocks of samples, with the tool of the same package.
fn import(openmetrics: &str, dir: &Path) {
    let file = dir.join("past.txt");
    fs::write(&file, openmetrics).unwrap();
    let mut promtool = Command::new("promtool");
    promtool.args(["tsdb", "create-blocks-from", "openmetrics"]).arg(file).arg(dir.join("data"));
    let made = promtool.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn spawn(args: &[String], dir: &Path) -> Child {
    let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
    Command::new("prometheus").args(args).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// A running Prometheus; ends with its value.
#[derive(Debug)]
pub(crate) struct Prometheus {
    pub(crate) url: String,
    args: Vec<String>,
    process: Child,
    dir: TempDir,
}

impl Prometheus {
    pub(crate) fn config(&self) -> PrometheusConfig {
        config(&self.url)
    }

    /// What it has logged, for a test that fails.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Kills it, as a lost node does.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again after [`Prometheus::kill`], with the same address and data.
    pub(crate) fn start_again(&mut self) {
        self.process = spawn(&self.args, self.dir.path());
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A configuration for this URL with the defaults.
pub(crate) fn config(url: &str) -> PrometheusConfig {
    PrometheusConfig { name: "main".to_owned(), ..PrometheusConfig::at(url) }
}

/// A test certificate or key.
pub(crate) fn tls_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}
