//! The findings as a person reads them in 80 columns, and as JSON.
//!
//! Decides nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::examine::{Examination, examine};
use super::facts::Facts;
use super::finding::Finding;
use super::object::{name, namespace, own_trigger};
use crate::cluster::pod_facts;
use crate::signals::engine::{About, Evidence};
use crate::text::wrapped;

/// What was found in all ScaledObjects.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Findings that count.
    findings: usize,
    scaled_objects: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    namespace: String,
    name: String,
    engine: Option<Engine>,
    findings: Vec<Finding>,
    /// Findings that are meant to be so.
    accepted: Vec<Finding>,
    not_looked_at: Vec<Unseen>,
    in_order: Vec<&'static str>,
}

/// The engine of a workload's pods, and how the names of its series are known.
#[derive(Debug, Serialize)]
struct Engine {
    #[serde(flatten)]
    about: &'static About,
    /// Of which image and trigger tell nothing else.
    version: Option<String>,
    /// Ray spells the names.
    by_ray: bool,
    /// How the names of this version are known; `None` where it is not known which it is.
    evidence: Option<Evidence>,
}

impl Engine {
    /// The engine that the trigger names, or that the pods' template tells.
    fn of(facts: &Facts) -> Option<Engine> {
        let named = own_trigger(&facts.object).and_then(|own| own.policy().engine);
        let shows = facts.target.as_ref().ok().and_then(pod_facts).and_then(|pods| pods.shows);
        let about = About::of(named.or_else(|| Some(shows.as_ref()?.family))?)?;
        let own = shows.filter(|shows| shows.family == about.family);
        let by_ray = own.as_ref().is_some_and(|own| own.by_ray);
        let version = own.and_then(|own| own.version);
        let evidence = about.evidence(version.as_deref(), by_ray);
        Some(Engine { about, version, by_ray, evidence })
    }

    /// What a person should know of its names; nothing where captured pages bear them out.
    fn doubt(&self) -> Option<String> {
        let Engine { about, version, by_ray, evidence } = self;
        let known = match (evidence, version) {
            (Some(Evidence::Captured), _) => return None,
            _ if *by_ray => "as Ray spells the names of its series they are uncaptured".to_owned(),
            (Some(Evidence::Written), Some(version)) => format!(
                "the names of its series in {version} are uncaptured: its own code wrote them \
                 without an engine"
            ),
            (Some(_), Some(version)) => {
                format!("the names of its series in {version} are uncaptured: its source alone")
            }
            (Some(_), None) => format!("the names of its series are {}", about.known()),
            (None, _) => format!(
                "the version is unknown, and so whether the names of its series are captured: {}",
                about.known()
            ),
        };
        Some(format!("{}; {known}", about.engine))
    }
}

#[derive(Debug, Serialize)]
struct Unseen {
    id: &'static str,
    why: String,
}

impl Report {
    /// Examines these; what is accepted does not count.
    pub(super) fn of(all: &[Facts], accepted: &[&str]) -> Report {
        let scaled_objects: Vec<Entry> =
            all.iter().map(|facts| Entry::of(facts, examine(facts), accepted)).collect();
        let findings = scaled_objects.iter().map(|entry| entry.findings.len()).sum();
        Report { findings, scaled_objects }
    }

    pub(super) fn is_in_order(&self) -> bool {
        self.findings == 0
    }

    pub(super) fn json(&self) -> String {
        // Numbers, texts and lists: nothing of it can fail to be JSON.
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        format!("{text}\n")
    }

    /// As text. `colours` are ANSI escapes, for a terminal.
    pub(super) fn text(&self, colours: bool) -> String {
        let mut text = String::new();
        for (index, entry) in self.scaled_objects.iter().enumerate() {
            if index > 0 {
                text.push('\n');
            }
            entry.write(&mut text, colours);
        }
        text
    }
}

impl Entry {
    fn of(facts: &Facts, examination: Examination, accepted: &[&str]) -> Entry {
        let is_accepted = |finding: &Finding| accepted.contains(&finding.id);
        let (accepted, findings) = examination.findings.into_iter().partition(is_accepted);
        let unseen = |(id, missing): (&'static str, super::Missing)| Unseen { id, why: missing.0 };
        Entry {
            namespace: namespace(&facts.object).to_owned(),
            name: name(&facts.object).to_owned(),
            engine: Engine::of(facts),
            findings,
            accepted,
            not_looked_at: examination.not_looked_at.into_iter().map(unseen).collect(),
            in_order: examination.in_order,
        }
    }

    fn write(&self, text: &mut String, colours: bool) {
        let Entry { namespace, name, engine, findings, accepted, not_looked_at, in_order } = self;
        let found = match findings.len() {
            0 => "no findings".to_owned(),
            1 => "1 finding".to_owned(),
            n => format!("{n} findings"),
        };
        line(text, format_args!("{namespace}/{name}: {found}"));
        for finding in findings {
            line(text, format_args!(""));
            let (bold, plain) = if colours { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
            line(text, format_args!("  {bold}{}{plain}", finding.id));
            labelled(text, "what", &finding.what);
            labelled(text, "why", finding.why);
            labelled(text, "fix", &finding.fix.text);
            // As it is to be pasted: nothing is wrapped or indented.
            let paste = finding.fix.patch.as_ref().map(super::Patch::command);
            for paste in paste.iter().chain(&finding.fix.command) {
                line(text, format_args!("\n{paste}"));
            }
        }
        line(text, format_args!(""));
        if let Some(doubt) = engine.as_ref().and_then(Engine::doubt) {
            text.push_str(&wrapped("Engine: ", "  ", &doubt));
        }
        if !accepted.is_empty() {
            let ids: Vec<&str> = accepted.iter().map(|finding| finding.id).collect();
            text.push_str(&wrapped("Accepted: ", "  ", &ids.join(", ")));
        }
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for Unseen { id, why } in not_looked_at {
            by_reason.entry(why).or_default().push(id);
        }
        let n_unseen = not_looked_at.len();
        line(text, format_args!("{} checks in order, {n_unseen} not looked at", in_order.len()));
        for (why, ids) in by_reason {
            text.push_str(&wrapped("  ", "    ", &format!("{why} ({})", ids.join(", "))));
        }
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}

fn labelled(text: &mut String, label: &str, words: &str) {
    text.push_str(&wrapped(&format!("    {label:<5}"), &" ".repeat(9), words));
}
