//! What a trigger says that has no effect here, or not the one that was meant: remarks, not faults.
//!
//! A fault would be an error to KEDA, which freezes the count of a running target. What is said
//! here hangs on the process's configuration, which changes without the ScaledObject and in any
//! order with it: a wake source that is renamed must not stop its workloads from scaling up. They
//! go on without it, never reach zero, and the status says why.

use super::{Context, Policy, SourceKind, nearest};
use crate::inventory::{Endpoint, Workload};

/// One remark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// The key that it is about.
    pub key: &'static str,
    /// What a person should know, in one sentence without a full stop.
    pub text: String,
}

impl Policy {
    /// What of this policy has no effect on `workload`; mostly nothing.
    #[must_use]
    pub fn remarks(&self, workload: &Workload, context: Context<'_>) -> Vec<Remark> {
        let mut remarks = Vec::new();
        let mut add = |key, text| remarks.push(Remark { key, text });
        if let Some(name) = &self.wake_source
            && !context.wake_sources.contains(name)
        {
            let known = context.wake_sources.iter().map(String::as_str);
            let hint = match nearest(name, known) {
                Some(nearest) => format!("nearest is {nearest}"),
                None => "there is none at all".to_owned(),
            };
            add(
                "wakeSource",
                format!(
                    "no wake source of the configuration is called {name:?}, {hint}: until one is, \
                     zero is never reached"
                ),
            );
        }
        let source = self.source(workload);
        if source == SourceKind::Prometheus && !context.has_prometheus {
            add("source", "no Prometheus is configured: no engine is read".to_owned());
        }
        let first_selector = workload.triggers.iter().find_map(|map| map.get("podSelector"));
        if let Some(selector) = &self.pod_selector
            && first_selector.is_some_and(|first| first.trim() != selector)
        {
            add(
                "podSelector",
                "another trigger's podSelector, which comes first, counts".to_owned(),
            );
        }
        let is_url = |endpoint: &Endpoint| matches!(endpoint, Endpoint::Url(_));
        let endpoints = || workload.members.iter().filter_map(|member| member.endpoint.as_ref());
        let by_url = endpoints().next().is_some() && endpoints().all(is_url);
        let why_not = match source {
            SourceKind::Prometheus => Some("the engines are read from Prometheus"),
            SourceKind::Pods if by_url => Some("the endpoints are whole URLs"),
            SourceKind::Pods => None,
        };
        if let Some(why) = why_not {
            let given = [
                ("metricsPort", self.metrics_port.is_some()),
                ("metricsPath", self.metrics_path.is_some()),
                ("podSelector", self.pod_selector.is_some() && by_url),
            ];
            for (key, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
                add(key, format!("without effect: {why}"));
            }
        }
        remarks
    }
}
