//! A page from a dialect and a server: names, labels, rows and their order.
//!
//! Must not know any metric; the tables do.

use super::dialects::{BeforeFirst, Label, Numbers};
use super::families::{Family, Labelled, Rows, Setting, Unit, Value};
use super::text::{push_label, push_number};
use super::{Dialect, Rank, Server, process};
use crate::engine::{Histogram, Metrics, PS_PER_S};

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Gauge,
    Counter,
    Histogram,
    Summary,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        }
    }
}

/// Appends the page that `server` shows in this dialect.
pub fn render(dialect: &Dialect, server: &Server<'_>, out: &mut String) {
    let multiprocess = server.multiprocess || dialect.always_multiprocess;
    let has_created = dialect.has_created && !multiprocess;
    let mut page = Page { out, multiprocess, has_created, numbers: dialect.numbers };
    if dialect.has_process && !multiprocess {
        process::write(&mut page, server);
    }
    if server.log_stats {
        let mut families: Vec<&Family> = dialect.families.iter().collect();
        if multiprocess && !dialect.always_multiprocess {
            // Each type has files of its own, which are read one after another.
            families.sort_by_key(|family| family.rows.kind());
        }
        let view = View::new(dialect, server);
        families.into_iter().for_each(|family| view.write(family, &mut page));
    }
    if dialect.counts_http {
        server.http.write(&mut page);
    }
}

/// A page being written.
pub(super) struct Page<'a> {
    out: &'a mut String,
    multiprocess: bool,
    has_created: bool,
    numbers: Numbers,
}

impl Page<'_> {
    /// Begins a family.
    pub(super) fn head(&mut self, name: &str, help: &str, kind: Kind) {
        for part in ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind.name(), "\n"] {
            self.out.push_str(part);
        }
    }

    /// Begins the family that says since when the one named `base` has counted. False where there
    /// is none: in multiprocess mode, in most dialects, or without samples.
    pub(super) fn created(&mut self, base: &str, help: &str, has_samples: bool) -> bool {
        let exists = has_samples && self.has_created;
        if exists {
            self.head(&format!("{base}_created"), help, Kind::Gauge);
        }
        exists
    }

    /// Writes a sample; `labels` are sorted by name.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.out.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.out.push(if index == 0 { '{' } else { ',' });
            push_label(self.out, label, text);
        }
        self.out.push_str(if labels.is_empty() { " " } else { "} " });
        push_number(self.out, value, self.numbers);
        self.out.push('\n');
    }

    /// Writes the samples of a histogram from its cumulated buckets by upper bound, the last of
    /// which is infinite.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (f64, u64)>,
        sum: f64,
    ) {
        let sum_name = format!("{name}_sum");
        if self.multiprocess {
            self.sample(&sum_name, labels, sum);
        }
        let bucket = format!("{name}_bucket");
        let (before, after) = labels.split_at(labels.partition_point(|(label, _)| *label < "le"));
        let mut count = 0;
        for (bound, cumulated) in buckets {
            let mut le = String::new();
            push_number(&mut le, bound, self.numbers);
            let all = [before, &[("le", le.as_str())], after].concat();
            self.sample(&bucket, &all, cumulated as f64);
            count = cumulated;
        }
        self.sample(&format!("{name}_count"), labels, count as f64);
        if !self.multiprocess {
            self.sample(&sum_name, labels, sum);
        }
    }
}

/// A server seen through a dialect.
struct View<'a> {
    server: &'a Server<'a>,
    dialect: &'a Dialect,
    namespace: &'a str,
    // One for each rank.
    engines: Vec<String>,
    multiprocess: bool,
}

impl<'a> View<'a> {
    fn new(dialect: &'a Dialect, server: &'a Server<'a>) -> View<'a> {
        View {
            server,
            dialect,
            namespace: server.namespace.unwrap_or(dialect.namespace),
            engines: (0..server.ranks.len()).map(|rank| rank.to_string()).collect(),
            multiprocess: server.multiprocess || dialect.always_multiprocess,
        }
    }

    fn write(&self, family: &Family, page: &mut Page<'_>) {
        let is_used = self.server.ranks.iter().any(|rank| rank.has_stepped);
        let base = format!("{}{}", self.namespace, family.name);
        let kind = family.rows.kind();
        let suffix = if kind == Kind::Counter { self.dialect.counter_suffix } else { "" };
        let name = format!("{base}{suffix}");
        match self.dialect.before_first {
            BeforeFirst::Only(names) if !is_used && !names.contains(&family.name) => return,
            BeforeFirst::Heads if !is_used => return page.head(&name, family.help, kind),
            BeforeFirst::Everything | BeforeFirst::Heads | BeforeFirst::Only(_) => {}
        }
        page.head(&name, family.help, kind);
        self.rows(family, &base, &name, page);
    }

    fn rows(&self, family: &Family, base: &str, name: &str, page: &mut Page<'_>) {
        match family.rows {
            Rows::Gauge(rows) => self.samples(page, name, rows, |_| true),
            Rows::PidGauge(rows) if self.multiprocess => {
                self.each_row(rows, |labels, value, rank| {
                    for (pid, value) in [("101", value(rank)), ("102", 0.0)] {
                        page.sample(name, &sorted(labels, ("pid", pid)), value);
                    }
                })
            }
            Rows::StepGauge(rows) | Rows::PidGauge(rows) => {
                self.samples(page, name, rows, |rank| rank.has_stepped || !self.multiprocess);
            }
            Rows::Counter(rows) => {
                self.samples(page, name, rows, |_| true);
                if page.created(base, family.help, true) {
                    let started = format!("{base}_created");
                    self.each_row(rows, |labels, _, _| {
                        page.sample(&started, labels, self.server.started_unix_s);
                    });
                }
            }
            Rows::CounterOnceMoved(rows) => self.each_row(rows, |labels, value, rank| {
                let count = value(rank);
                if count > 0.0 {
                    page.sample(name, labels, count);
                }
            }),
            Rows::Rejections(label, reasons) => {
                self.rejections(page, family, [base, name], label, reasons);
            }
            Rows::Arrivals => {
                for &(endpoint, method, count) in self.server.http.arrivals() {
                    let labels = [("endpoint", endpoint), ("method", method)];
                    page.sample(name, &labels, count as f64);
                }
            }
            Rows::Histogram(source, unit) => {
                self.each_rank(&[], |labels, rank| {
                    let (buckets, sum) = buckets_of(source(rank.metrics), unit);
                    page.histogram(name, labels, buckets.into_iter(), sum);
                });
                self.histogram_created(page, family, base);
            }
            Rows::Ones(bounds, count) => {
                self.each_rank(&[], |labels, rank| {
                    let ones = count(rank.metrics);
                    let buckets = bounds.iter().copied().chain([f64::INFINITY]);
                    page.histogram(name, labels, buckets.map(|le| (le, ones)), ones as f64);
                });
                self.histogram_created(page, family, base);
            }
            Rows::CacheConfig(settings) => self.cache_config(page, name, settings),
            Rows::Lora => {
                let labels = [
                    ("max_lora", "0"),
                    ("running_lora_adapters", ""),
                    ("waiting_lora_adapters", ""),
                ];
                page.sample(name, &labels, self.server.now_unix_s);
            }
        }
    }

    fn samples(
        &self,
        page: &mut Page<'_>,
        name: &str,
        rows: Labelled,
        shows: impl Fn(&Rank<'_>) -> bool,
    ) {
        self.each_row(rows, |labels, value, rank| {
            if shows(rank) {
                page.sample(name, labels, value(rank));
            }
        });
    }

    fn each_row(&self, rows: Labelled, mut write: impl FnMut(&[(&str, &str)], Value, &Rank<'_>)) {
        for &(own, value) in rows {
            self.each_rank(own, |labels, rank| write(labels, value, rank));
        }
    }

    /// Calls `write` for each rank with the labels of its row, sorted by name.
    fn each_rank(&self, own: &[(&str, &str)], mut write: impl FnMut(&[(&str, &str)], &Rank<'_>)) {
        for (rank, engine) in self.server.ranks.iter().zip(&self.engines) {
            write(&self.labels(Some(engine), own), rank);
        }
    }

    /// The labels of a row of that engine, or of no engine, sorted by name. A row's own come before
    /// the dialect's of the same name.
    fn labels<'l>(
        &'l self,
        engine: Option<&'l str>,
        own: &[(&'l str, &'l str)],
    ) -> Vec<(&'l str, &'l str)> {
        let all = self.dialect.labels.iter().filter_map(|label| match *label {
            Label::Rank(name) => Some((name, engine?)),
            Label::Model(name) => Some((name, self.server.model_name)),
            Label::Fixed(name, text) => Some((name, text)),
        });
        let all = all.filter(|(name, _)| own.iter().all(|(mine, _)| mine != name));
        let mut labels: Vec<_> = own.iter().copied().chain(all).collect();
        labels.sort_unstable_by_key(|&(name, _)| name);
        labels
    }

    fn histogram_created(&self, page: &mut Page<'_>, family: &Family, base: &str) {
        if page.created(base, family.help, true) {
            let name = format!("{base}_created");
            self.each_rank(&[], |labels, _| {
                page.sample(&name, labels, self.server.started_unix_s);
            });
        }
    }

    /// The API server's own counter, which knows no engine.
    fn rejections(
        &self,
        page: &mut Page<'_>,
        family: &Family,
        [base, name]: [&str; 2],
        label: &str,
        reasons: &[&str],
    ) {
        for (index, reason) in reasons.iter().enumerate() {
            let count = if index == 0 { self.server.rejections } else { 0 };
            page.sample(name, &self.labels(None, &[(label, reason)]), count as f64);
        }
        if page.created(base, family.help, true) {
            let created = format!("{base}_created");
            for reason in reasons {
                let labels = self.labels(None, &[(label, reason)]);
                page.sample(&created, &labels, self.server.started_unix_s);
            }
        }
    }

    fn cache_config(&self, page: &mut Page<'_>, name: &str, settings: &[(&str, Setting)]) {
        for (index, rank) in self.server.ranks.iter().enumerate() {
            let texts: Vec<String> =
                settings.iter().map(|(_, setting)| self.setting(setting, index, rank)).collect();
            let labels: Vec<(&str, &str)> =
                settings.iter().zip(&texts).map(|((label, _), text)| (*label, &**text)).collect();
            page.sample(name, &labels, 1.0);
        }
    }

    fn setting(&self, setting: &Setting, index: usize, rank: &Rank<'_>) -> String {
        let kv = &rank.profile.kv;
        let kv_tokens = kv.blocks * kv.block_tokens;
        match setting {
            Setting::Fixed(text) => (*text).to_owned(),
            Setting::Engine => index.to_string(),
            Setting::BlockTokens => kv.block_tokens.to_string(),
            // The ranks' blocks are added up before they are shown.
            Setting::Blocks => (kv.blocks * self.server.ranks.len()).to_string(),
            Setting::KvTokens => kv_tokens.to_string(),
            Setting::Concurrency => {
                format!("{:?}", kv_tokens as f64 / rank.profile.limits.max_model_tokens as f64)
            }
            Setting::PrefixCaching => if kv.prefix_caching { "True" } else { "False" }.to_owned(),
        }
    }
}

/// Labels with one more, sorted by name.
fn sorted<'l>(labels: &[(&'l str, &'l str)], more: (&'l str, &'l str)) -> Vec<(&'l str, &'l str)> {
    let mut labels = [labels, &[more]].concat();
    labels.sort_unstable_by_key(|&(name, _)| name);
    labels
}

/// Cumulated buckets by upper bound, and the sum, in the unit of the page.
fn buckets_of(histogram: &Histogram, unit: Unit) -> (Vec<(f64, u64)>, f64) {
    let scale = match unit {
        Unit::Seconds => PS_PER_S as f64,
        Unit::Millis => PS_PER_S as f64 / 1e3,
        Unit::Tokens => 1.0,
    };
    let bounds = histogram.bounds().iter().map(|&bound| bound as f64 / scale);
    let mut cumulated = 0;
    let buckets = bounds
        .chain([f64::INFINITY])
        .zip(histogram.counts())
        .map(|(bound, count)| {
            cumulated += count;
            (bound, cumulated)
        })
        .collect();
    (buckets, histogram.sum() as f64 / scale)
}

/// A histogram of an engine.
pub(super) type Source = fn(&Metrics) -> &Histogram;
