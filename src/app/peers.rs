//! Sets up what this process and its peers, the other replicas of the scaler, need of each other.
//!
//! Must not hold logic of it: that is `pair`'s.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::{mpsc, watch};

use crate::args;
use crate::cluster::Client;
use crate::cluster::lease;
use crate::cluster::members::{Member, Members};
use crate::cluster::shards::Shards;
use crate::health::Pulse;
use crate::lead::{Lead, Standing, Write, Writes};
use crate::pair::identity::Identity;
use crate::pair::{self, Pair};
use crate::tick::Parts;

/// Writes that wait for the leader; each takes milliseconds.
const MAX_WRITES: usize = 256;

/// What the rest of the process has to do with its peers.
pub(super) struct Seat {
    /// Whether this process decides.
    pub(super) lead: Lead,
    /// The way of writes to the leader; `None` where this process alone decides.
    pub(super) writes: Option<Writes>,
    /// Whether there is an answer for everything.
    pub(super) can_answer: watch::Receiver<bool>,
}

/// The other ends, and what the peers know each other by.
pub(super) struct Peers {
    standing: watch::Sender<Standing>,
    can_answer: watch::Sender<bool>,
    writes: mpsc::Receiver<Write>,
    listener: TcpListener,
    own: Member,
    identity: Identity,
    namespace: String,
    lease: String,
    pod_uid: Option<String>,
    idle_pods_first: bool,
}

/// A seat among peers where the pod says which one this is, else one alone.
pub(super) fn seat(args: &args::Serve) -> anyhow::Result<(Seat, Option<Peers>)> {
    let Some((name, namespace)) = args.pod_name.as_ref().zip(args.pod_namespace.as_ref()) else {
        return Ok((Seat::alone(), None));
    };
    let listener = TcpListener::bind(args.pair_address).with_context(|| {
        let address = args.pair_address;
        format!("the other replicas of the scaler cannot be heard on {address}: choose another --pair-address")
    })?;
    let bound = listener.local_addr()?;
    let reached = SocketAddr::new(args.pod_ip.unwrap_or_else(|| bound.ip()), bound.port());
    let identity = Identity::generate()?;
    let own = Member {
        name: name.as_str().into(),
        address: reached.to_string(),
        key: identity.public_key(),
    };
    let (standing, stands) = watch::channel(Standing::Following { leader: None });
    let (can_answer, answers) = watch::channel(false);
    let (door, writes) = Writes::channel(MAX_WRITES);
    let seat = Seat { lead: Lead::of(stands), writes: Some(door), can_answer: answers };
    let peers = Peers {
        standing,
        can_answer,
        writes,
        listener,
        own,
        identity,
        namespace: namespace.clone(),
        lease: args.lease_name.clone(),
        pod_uid: args.pod_uid.clone(),
        idle_pods_first: args.idle_pods_first,
    };
    Ok((seat, Some(peers)))
}

impl Seat {
    /// There are no peers.
    pub(super) fn alone() -> Seat {
        let can_answer = watch::channel(true).1;
        Seat { lead: Lead::default(), writes: None, can_answer }
    }
}

impl Peers {
    /// Everything that the peers need of each other, ready to run.
    pub(super) fn pair(
        self,
        client: Client,
        parts: Arc<Parts>,
        pulse: Pulse,
    ) -> anyhow::Result<Pair> {
        let Peers { namespace, lease, pod_uid, .. } = self;
        self.listener.set_nonblocking(true)?;
        Ok(Pair {
            election: lease::Options::new(&namespace, &lease, &self.own.name),
            members: Members::new(client.clone(), &namespace, &lease, pod_uid.as_deref()),
            shards: Shards::new(client.clone(), &namespace, &lease),
            parts,
            client,
            idle_pods_first: self.idle_pods_first,
            own: self.own,
            identity: self.identity,
            listener: tokio::net::TcpListener::from_std(self.listener)?,
            standing: self.standing,
            can_answer: self.can_answer,
            writes: self.writes,
            pulse,
            ask_again: pair::ASK_AGAIN,
        })
    }
}
