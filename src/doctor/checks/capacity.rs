//! Whether the cluster and its quotas have room for `maxReplicaCount`.

use crate::cluster::pod_facts;
use crate::doctor::facts::{Facts, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::object::{integer, max, min, name, own_trigger, text};

/// The resource whose quota is looked at.
const GPUS: &str = "requests.nvidia.com~1gpu";

pub(super) fn beyond_gpus(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(each) = gpus_of_a_replica(facts)? else { return Ok(None) };
    let nodes = facts.nodes.as_ref()?;
    // What stands now is no bound where something adds nodes, from none at all.
    if nodes.autoscaler.is_some() {
        return Ok(None);
    }
    let all = i64::from(nodes.gpus);
    let needs = max(&facts.object).saturating_mul(each);
    if needs <= all {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "max-beyond-gpus",
        what: format!(
            "maxReplicaCount {} needs {needs} GPUs, and the nodes have {all}",
            max(&facts.object)
        ),
        why: "beyond that pods stay Pending for ever, unless nodes can be added",
        fix: lower(facts, all / each, &format!("nodes with {needs} GPUs in all")),
    }))
}

pub(super) fn beyond_quota(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(each) = gpus_of_a_replica(facts)? else { return Ok(None) };
    let object = &facts.object;
    let own = integer(facts.target.as_ref()?, "/spec/replicas").unwrap_or(0).saturating_mul(each);
    let mut tightest: Option<(i64, &str)> = None;
    for quota in facts.quotas.as_ref()? {
        let amount = |at: &str| text(quota, &format!("/{at}/{GPUS}"))?.parse::<i64>().ok();
        let Some(hard) = amount("status/hard").or_else(|| amount("spec/hard")) else { continue };
        // What others of the namespace have is not there for this one.
        let others = amount("status/used").unwrap_or(0).saturating_sub(own).max(0);
        let left = hard.saturating_sub(others).max(0);
        if tightest.is_none_or(|(least, _)| left < least) {
            tightest = Some((left, name(quota)));
        }
    }
    let Some((left, quota)) = tightest else { return Ok(None) };
    let needs = max(object).saturating_mul(each);
    if needs <= left {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "max-beyond-quota",
        what: format!(
            "maxReplicaCount {} needs {needs} GPUs, and quota {quota} leaves {left}",
            max(object)
        ),
        why: "the quota refuses the pods beyond it: the HPA goes on wanting what never comes",
        fix: lower(facts, left / each, &format!("a quota that leaves {needs}")),
    }))
}

/// As the trigger says, else as the pods ask; `None` where a replica has no GPU.
fn gpus_of_a_replica(facts: &Facts) -> Result<Option<i64>, Missing> {
    let told = own_trigger(&facts.object).and_then(|own| own.policy().spec.gpus_per_replica);
    let each = match told {
        Some(told) => Some(told),
        None => pod_facts(facts.target.as_ref()?).and_then(|pods| pods.gpus),
    };
    Ok(each.filter(|gpus| *gpus > 0).map(i64::from))
}

/// A maximum that fits; where not even the minimum does, there is none.
fn lower(facts: &Facts, fits: i64, of: &str) -> Fix {
    let least = min(&facts.object).max(1);
    if fits < least {
        return Fix::words(format!(
            "get {of}: there is not even room for {least}, so that no maximum fits"
        ));
    }
    Fix::patch(
        format!("lower maxReplicaCount to what fits, {fits}, or get {of}"),
        Patch::to(&facts.object).set("/spec/maxReplicaCount", fits),
    )
}
