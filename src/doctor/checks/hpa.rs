//! The chain from KEDA to the HPA: whether the scaler's metric arrives there at all.

use serde_json::Value;

use crate::doctor::facts::{Facts, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::object::{list, name, namespace, own_trigger, text};

/// The Service of KEDA's metrics adapter, as KEDA's chart and its plain manifests call it.
const ADAPTERS: [&str; 2] = ["keda-operator-metrics-apiserver", "keda-metrics-apiserver"];

pub(super) fn no_external_metric(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    // Of several triggers by formula the HPA has one metric, and of a paused object there is no HPA.
    let by_formula = text(object, "/spec/advanced/scalingModifiers/formula").is_some();
    if by_formula || is_paused(object) {
        return Ok(None);
    }
    let (object_name, namespace) = (name(object), namespace(object));
    let Some(hpa) = facts.hpa.as_ref()? else {
        let said = list(object, "/status/conditions").iter().find(|it| it["type"] == "Ready");
        let said = said.and_then(|it| it["message"].as_str()).unwrap_or("KEDA says nothing");
        return Ok(Some(Finding {
            id: "no-external-metric",
            what: format!("KEDA has made no HPA of {object_name} ({said})"),
            why: "nothing scales the target between one replica and max",
            fix: Fix::command(
                "start the scaler and see that the address is right; KEDA then makes the HPA \
                 within minutes, for a new generation at once",
                format!(
                    "kubectl annotate scaledobject {object_name} -n {namespace} \
                     autoscaling.keda.sh/paused=true --overwrite\n\
                     kubectl annotate scaledobject {object_name} -n {namespace} \
                     autoscaling.keda.sh/paused-"
                ),
            ),
        }));
    };
    let prefix = format!("s{}-", own.index);
    let is_ours = |metric: &Value| {
        let metric_name = text(metric, "/external/metric/name");
        metric["type"] == "External" && metric_name.is_some_and(|name| name.starts_with(&prefix))
    };
    let metrics = list(hpa, "/spec/metrics");
    if metrics.iter().any(is_ours) {
        return Ok(None);
    }
    let has = match metrics {
        [] => "no metric, which means CPU at 80 %".to_owned(),
        some => {
            let kinds: Vec<&str> =
                some.iter().filter_map(|metric| metric["type"].as_str()).collect();
            format!("only {}", kinds.join(" and "))
        }
    };
    Ok(Some(Finding {
        id: "no-external-metric",
        what: format!("HPA {} has no external metric of this trigger: it has {has}", name(hpa)),
        why: "the scaler's answer goes nowhere: KEDA made the HPA while it could not reach the \
              scaler, and does not look again",
        fix: Fix::command(
            "delete the HPA: KEDA makes it anew from the scaler's answer, and no replica goes meanwhile",
            format!("kubectl delete hpa {} -n {namespace}", name(hpa)),
        ),
    }))
}

fn is_paused(object: &Value) -> bool {
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let names = ["autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas"];
    annotations.is_some_and(|all| names.iter().any(|name| all.contains_key(*name)))
}

pub(super) fn foreign_metrics_api(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let why = "the API server asks one adapter for the external metrics of all HPAs: while that \
               is not KEDA's every count stands still, and no fallback fires";
    let Some(registered) = facts.external_metrics.as_ref()? else {
        return Ok(Some(Finding {
            id: "foreign-metrics-api",
            what: "nobody answers for external metrics: v1beta1.external.metrics.k8s.io is missing"
                .to_owned(),
            why,
            fix: Fix::words("install KEDA's metrics adapter, which registers it"),
        }));
    };
    let at = |key| text(registered, &format!("/spec/service/{key}")).unwrap_or("?");
    if ADAPTERS.contains(&at("name")) {
        return Ok(None);
    }
    let adapter = facts.keda_adapter.as_ref()?;
    let text = "point it back at KEDA's adapter, and take the registration out of the other \
                product, which would write it again";
    let fix = match adapter {
        Some(adapter) => Fix::patch(
            text,
            Patch::to(registered)
                .set("/spec/service/name", name(adapter))
                .set("/spec/service/namespace", namespace(adapter)),
        ),
        None => Fix::words("install KEDA's metrics adapter, which registers itself"),
    };
    Ok(Some(Finding {
        id: "foreign-metrics-api",
        what: format!(
            "v1beta1.external.metrics.k8s.io belongs to {}/{}, not to KEDA",
            at("namespace"),
            at("name")
        ),
        why,
        fix,
    }))
}
