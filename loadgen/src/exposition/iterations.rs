//! The JSON at trtllm-serve's `/metrics`: statistics of its last steps.
//!
//! Must not be taken for a metrics page. Uncaptured: the names are those of TensorRT-LLM's
//! documentation. As the real server does, each step is given to one reader only; but here just the
//! last of those that nobody has read.

use serde_json::json;

use super::Rank;

/// The answer of a server: nothing while it is idle.
#[must_use]
pub fn iterations(ranks: &[Rank<'_>]) -> String {
    let busy = ranks.iter().filter(|rank| rank.gauges.running + rank.gauges.waiting > 0);
    let steps = busy.map(|rank| {
        let gauges = rank.gauges;
        json!({
            "iter": rank.metrics.iteration_tokens.count(),
            "numActiveRequests": gauges.running,
            "numQueuedRequests": gauges.waiting + gauges.deferred,
            "maxNumActiveRequests": rank.profile.limits.max_num_seqs,
            "kvCacheStats": {
                "maxNumBlocks": gauges.kv_blocks_total,
                "usedNumBlocks": gauges.kv_blocks_used,
                "freeNumBlocks": gauges.kv_blocks_total - gauges.kv_blocks_used,
                "tokensPerBlock": rank.profile.kv.block_tokens,
            },
        })
    });
    serde_json::Value::from_iter(steps).to_string()
}
