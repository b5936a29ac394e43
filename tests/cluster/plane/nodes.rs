//! The nodes: GPUs are real to the scheduler, pods have addresses of loopback.
//!
//! Must keep away from 127.0.0.1, where everything else listens.

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

/// Nodes of the large pool, with eight GPUs each.
const LARGE_POOL: u8 = 8;
/// GPUs of the only node of the small pool, where pods that are to stay Pending are sent.
pub(crate) const SMALL_POOL_GPUS: u32 = 3;
/// Nodes of a pool of its own for what goes without being asked to, with eight GPUs each.
const NOTICE_POOL: u8 = 2;
/// The second byte of the first node's addresses: 127.100.0.0/16 and on.
const FIRST_BYTE: u8 = 100;

/// Creates them; KWOK makes them Ready.
pub(super) async fn create(client: &kube::Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    let large = (0..LARGE_POOL).map(|_| ("large", 8));
    let notice = (0..NOTICE_POOL).map(|_| ("notice", 8));
    let pools = large.chain(notice).chain([("small", SMALL_POOL_GPUS)]);
    for (number, (pool, gpus)) in (0_u8..).zip(pools) {
        let name = format!("{pool}-{number}");
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"pool": pool, "kubernetes.io/hostname": name}},
            "spec": {"podCIDR": format!("127.{}.0.0/16", FIRST_BYTE + number)},
        });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        let room = json!({"cpu": "192", "memory": "2Ti", "pods": "250",
            "nvidia.com/gpu": gpus.to_string()});
        let status = json!({"status": {"allocatable": room, "capacity": room}});
        let patch = Patch::Merge(&status);
        nodes.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
    }
}
