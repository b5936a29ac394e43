//! Replicas of several pods: the pods of a LeaderWorkerSet's group taken as one.
//!
//! Pure. The leader's name and address stand for the group; the group serves when all its pods do, and
//! costs the GPUs of all of them (labels and annotation: lws.sigs.k8s.io, reference of labels).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::devices;
use super::pod::Pod;
use crate::decision::Phase;
use crate::inventory::Devices;

/// The same for all pods of one group, and of no other.
const KEY: &str = "leaderworkerset.sigs.k8s.io/group-key";
/// 0 for the leader.
const INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
/// Annotation: pods of a whole group.
pub(super) const SIZE: &str = "leaderworkerset.sigs.k8s.io/size";

/// The groups of one namespace.
#[derive(Debug, Default)]
pub(super) struct Groups<'a>(HashMap<&'a str, Vec<&'a Pod>>);

impl<'a> Groups<'a> {
    /// Finds the groups among all pods of a namespace.
    pub(super) fn among(pods: impl Iterator<Item = &'a Pod>) -> Groups<'a> {
        let mut groups: HashMap<&str, Vec<&Pod>> = HashMap::new();
        for pod in pods {
            if let Some(key) = pod.labels.get(KEY) {
                groups.entry(key).or_default().push(pod);
            }
        }
        Groups(groups)
    }

    /// The pods that a selector chose as replicas: a leader with its group as one, a worker as none,
    /// any other pod as it is.
    pub(super) fn replicas(&self, chosen: Vec<&'a Pod>) -> Vec<Cow<'a, Pod>> {
        chosen
            .into_iter()
            .filter_map(|pod| match pod.labels.get(KEY).and_then(|key| self.0.get(key.as_str())) {
                None => Some(Cow::Borrowed(pod)),
                Some(group) => is_leader(pod).then(|| Cow::Owned(as_one(pod, group))),
            })
            .collect()
    }

    /// The nodes that a replica stands on.
    pub(super) fn nodes<'b>(&'b self, replica: &'b Pod) -> impl Iterator<Item = &'b str> {
        let group = replica.labels.get(KEY).and_then(|key| self.0.get(key.as_str()));
        let others = group.into_iter().flatten().filter_map(|pod| pod.member.node.as_deref());
        replica.member.node.as_deref().into_iter().chain(others)
    }
}

fn is_leader(pod: &Pod) -> bool {
    pod.labels.get(INDEX).is_none_or(|index| index == "0")
}

fn as_one(leader: &Pod, group: &[&Pod]) -> Pod {
    let n_ready = group.iter().filter(|pod| pod.member.phase == Phase::Ready).count();
    let is_whole = u32::try_from(n_ready).is_ok_and(|n_ready| n_ready >= leader.group_size);
    let mut one = leader.clone();
    let mut devices = Devices::new();
    // Those of a group that goes stand beside its successor under the same key.
    let goes = |pod: &Pod| pod.member.phase == Phase::Terminating;
    let same = group.iter().filter(|pod| goes(pod) == goes(leader));
    same.for_each(|pod| devices::add(&mut devices, &pod.devices));
    one.devices = Arc::new(devices);
    one.claims = group.iter().flat_map(|pod| pod.claims.iter().cloned()).collect();
    one.obstacle = group.iter().find_map(|pod| pod.obstacle);
    if leader.member.phase == Phase::Ready && !is_whole {
        // A pod that served and does no more takes the group along; one that is missing or new
        // means that the group starts.
        let lost = group.iter().any(|pod| pod.member.phase == Phase::NotReady);
        one.member.phase = if lost { Phase::NotReady } else { Phase::Starting };
    }
    one.member.ready_at = match one.member.phase {
        Phase::Ready => group.iter().filter_map(|pod| pod.member.ready_at).max(),
        Phase::Starting | Phase::NotReady | Phase::Terminating => None,
    };
    one
}

#[cfg(test)]
mod tests {
    use super::super::pod::Obstacle;
    use super::*;
    use crate::decision::Moment;
    use crate::inventory::Member;

    fn pod(group: &str, index: u32, phase: Phase) -> Pod {
        let labels = [(KEY, group.to_owned()), (INDEX, index.to_string())];
        let ready_at = (phase == Phase::Ready).then_some(Moment(i64::from(index)));
        let id = format!("{group}-{index}").into();
        let member = Member { id, phase, created_at: None, ready_at, endpoint: None, node: None };
        Pod {
            labels: Arc::new(labels.map(|(key, value)| (key.to_owned(), value)).into()),
            member,
            obstacle: None,
            devices: Arc::new([(devices::GPU_RESOURCE.into(), 8)].into()),
            claims: Box::default(),
            start: None,
            group_size: 2,
            is_ranked: false,
        }
    }

    fn replicas(pods: &[Pod]) -> Vec<Pod> {
        let groups = Groups::among(pods.iter());
        groups.replicas(pods.iter().collect()).into_iter().map(Cow::into_owned).collect()
    }

    #[test]
    fn f92_a_leader_and_its_workers_are_one_replica_with_the_gpus_of_all() {
        use Phase::Ready;
        let pods = [pod("a", 0, Ready), pod("a", 1, Ready), pod("b", 0, Ready), pod("b", 1, Ready)];
        let replicas = replicas(&pods);
        let ids: Vec<&str> = replicas.iter().map(|pod| &*pod.member.id).collect();
        assert_eq!(ids, ["a-0", "b-0"]);
        for replica in &replicas {
            assert_eq!((replica.member.phase, devices::whole(&replica.devices)), (Ready, Some(16)));
            assert_eq!(replica.member.ready_at, Some(Moment(1)), "when the last one was ready");
        }
    }

    #[test]
    fn f84_a_group_serves_only_when_it_is_whole() {
        use Phase::{NotReady, Ready, Starting, Terminating};
        for (case, leader, worker, expected) in [
            ("whole", Ready, Some(Ready), Ready),
            ("a worker is missing", Ready, None, Starting),
            ("a worker starts", Ready, Some(Starting), Starting),
            ("a worker is lost", Ready, Some(NotReady), NotReady),
            ("the leader starts", Starting, Some(Ready), Starting),
            ("the group goes", Terminating, Some(Ready), Terminating),
        ] {
            let worker = worker.map(|phase| pod("a", 1, phase));
            let pods: Vec<Pod> =
                [Some(pod("a", 0, leader)), worker].into_iter().flatten().collect();
            let [replica] = replicas(&pods).try_into().unwrap();
            assert_eq!(replica.member.phase, expected, "{case}");
        }
    }

    #[test]
    fn a_worker_without_room_is_the_groups_obstacle() {
        let worker =
            Pod { obstacle: Some(Obstacle::Unschedulable), ..pod("a", 1, Phase::Starting) };
        let [replica] = replicas(&[pod("a", 0, Phase::Ready), worker]).try_into().unwrap();
        assert_eq!(replica.obstacle, Some(Obstacle::Unschedulable));
    }

    #[test]
    fn pods_of_no_group_stay_as_they_are() {
        let alone = Pod { labels: Arc::default(), ..pod("a", 3, Phase::Ready) };
        assert_eq!(replicas(std::slice::from_ref(&alone)), [alone]);
    }

    #[test]
    fn a_group_stands_on_the_nodes_of_all_its_pods() {
        let on = |pod: Pod, node: &str| {
            let member = Member { node: Some(node.into()), ..pod.member };
            Pod { member, ..pod }
        };
        let leader = on(pod("a", 0, Phase::Ready), "first");
        let worker = on(pod("a", 1, Phase::Ready), "second");
        let other = on(pod("b", 0, Phase::Ready), "third");
        let groups = Groups::among([&leader, &worker, &other].into_iter());
        let mut nodes: Vec<&str> = groups.nodes(&leader).collect();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes, ["first", "second"]);
        let alone = on(Pod { labels: Arc::default(), ..pod("a", 3, Phase::Ready) }, "fourth");
        assert_eq!(groups.nodes(&alone).collect::<Vec<_>>(), ["fourth"]);
    }
}
