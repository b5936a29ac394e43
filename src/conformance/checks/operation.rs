//! Rules F1-F15 and G1-G6: the process, its replicas and what it shows of itself.
//!
//! Most of it happens inside the scaler or its cluster and is only listed here.

use super::{ARRIVAL_LIMIT, Context, Finding, How, Rule, Shortfall, shown};
use crate::conformance::client::{Connection, Event, Failure, Role};
use tonic_health::pb::health_check_response::ServingStatus;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "F1",
        title: "grpc.health.v1 knows \"\" and the scaler's service",
        why: "Kubernetes' gRPC probes and grpc_health_probe ask for it; a scaler that is up but \
              cannot answer should get no calls.",
        how: How::Check(|context| Box::pin(f1_health(context))),
    },
    Rule {
        id: "F2",
        title: "a scaler that answers is ready",
        why: "Not ready, it is taken out of the Service, and KEDA is cut off from answers that it \
              does have.",
        how: How::Check(|context| Box::pin(f2_ready(context))),
    },
    Rule {
        id: "F3",
        title: "not ready before the first answer",
        why: "In a rolling update KEDA then goes on with the old pod.",
        how: How::Outside("needs the scaler to be started"),
    },
    Rule {
        id: "F4",
        title: "reflection can be had, the proto is shipped",
        why: "Without them nobody can ask the scaler by hand.",
        how: How::Outside("reflection may be off on purpose; the rest is in the image"),
    },
    Rule {
        id: "F5",
        title: "SIGTERM drains: not ready, streams end OK, GOAWAY, exit",
        why: "KEDA makes an event of each failed call, and keeps a grown delay after a broken \
              stream.",
        how: How::Outside("needs the scaler to be stopped"),
    },
    Rule {
        id: "F6",
        title: "all replicas give equal answers",
        why: "KEDA takes the replicas of a headless Service in turn, call by call: spec, value and \
              activity of one poll come from different ones.",
        how: How::Outside("needs the addresses of two replicas"),
    },
    Rule {
        id: "F7",
        title: "losing the lead changes no answer and strands no client",
        why: "KEDA's one connection sticks to one replica for as long as it lives.",
        how: How::Outside("needs two replicas and the loss of one"),
    },
    Rule {
        id: "F8",
        title: "connections and streams have an age, and end cleanly",
        why: "KEDA resolves a name again only when a connection ends: without an age new replicas \
              are never seen.",
        how: How::Outside("shows only after 5 to 15 minutes"),
    },
    Rule {
        id: "F9",
        title: "dead clients are found by keepalive",
        why: "KEDA sends no keepalive of its own; streams of a lost node would stay for ever.",
        how: How::Outside("needs packets to be dropped for a while"),
    },
    Rule {
        id: "F10",
        title: "a restart keeps the last decision",
        why: "A jump at a restart is a rescale that nobody asked for.",
        how: How::Outside("needs the scaler to be restarted"),
    },
    Rule {
        id: "F11",
        title: "the deployment survives a drained node",
        why: "All scaling of the cluster's models waits for this one process.",
        how: How::Outside("a matter of the manifests"),
    },
    Rule {
        id: "F12",
        title: "only KEDA may connect",
        why: "KEDA cannot show credentials other than a client certificate.",
        how: How::Outside("a matter of the NetworkPolicy"),
    },
    Rule {
        id: "F13",
        title: "TLS agrees on h2 by ALPN",
        why: "grpc-go of KEDA 2.16 and newer refuses a server that does not.",
        how: How::Check(|context| Box::pin(f13_alpn(context))),
    },
    Rule {
        id: "F14",
        title: "works with each KEDA version that it claims",
        why: "Versions differ in fields, streams and polls.",
        how: How::Outside("needs those versions; this client plays 2.21"),
    },
    Rule {
        id: "F15",
        title: "clock jumps make no activity and no staleness",
        why: "A node's clock may be set at any time.",
        how: How::Outside("needs the scaler's clock to be set"),
    },
    Rule {
        id: "G1",
        title: "calls are counted and timed by method and code",
        why: "KEDA's own metrics hide most failures of an external scaler.",
        how: How::Outside("shown elsewhere than on the gRPC port"),
    },
    Rule {
        id: "G2",
        title: "seconds since KEDA's last poll and last HPA query",
        why: "Silence is how a missing HPA, a paused object or a stuck operator look.",
        how: How::Outside("shown elsewhere than on the gRPC port"),
    },
    Rule {
        id: "G3",
        title: "wanted count, activity, age and reason can be seen",
        why: "KEDA's conditions carry no text; somebody will ask why.",
        how: How::Outside("shown elsewhere than on the gRPC port"),
    },
    Rule {
        id: "G4",
        title: "open streams and pushed edges are counted",
        why: "A push that is not working looks like a slow poll.",
        how: How::Outside("shown elsewhere than on the gRPC port"),
    },
    Rule {
        id: "G5",
        title: "the user's ScaledObject and HPA can be checked",
        why: "Tolerance, cooldown and behavior decide what becomes of a right answer.",
        how: How::Outside("needs a cluster"),
    },
    Rule {
        id: "G6",
        title: "one log line a change, not a call",
        why: "KEDA calls each object several times a minute.",
        how: How::Outside("needs the scaler's logs"),
    },
];

const SERVICES: [&str; 2] = ["", "externalscaler.ExternalScaler"];

async fn f1_health(context: &Context) -> Finding {
    let connection = context.connect().await?;
    for service in SERVICES {
        let status = status(&connection, service).await.map_err(|failure| {
            Shortfall::Fail(format!("Check of \"{service}\" is answered with {failure}"))
        })?;
        if status == ServingStatus::ServiceUnknown {
            return Err(Shortfall::Fail(format!("Check does not know \"{service}\"")));
        }
        let first = connection.watch_health(service).next(ARRIVAL_LIMIT).await;
        let known = matches!(first, Some(Event::Message(status))
            if ServingStatus::try_from(status) != Ok(ServingStatus::ServiceUnknown));
        if !known {
            return Err(Shortfall::Fail(format!("Watch of \"{service}\" shows {}", shown(&first))));
        }
    }
    Ok("Check and Watch know both".to_owned())
}

async fn status(connection: &Connection, service: &str) -> Result<ServingStatus, Failure> {
    let status = connection.health(service).await.result?;
    Ok(ServingStatus::try_from(status).unwrap_or(ServingStatus::Unknown))
}

async fn f2_ready(context: &Context) -> Finding {
    context.metric()?;
    let connection = context.connect().await?;
    let mut n_served = 0;
    for service in SERVICES {
        match status(&connection, service).await {
            Ok(ServingStatus::Serving) => n_served += 1,
            Ok(ServingStatus::ServiceUnknown) | Err(_) => {}
            Ok(status @ (ServingStatus::NotServing | ServingStatus::Unknown)) => {
                return Err(Shortfall::Fail(format!(
                    "GetMetrics has values, but the health of \"{service}\" is {}",
                    status.as_str_name()
                )));
            }
        }
    }
    if n_served == 0 {
        return Err(Shortfall::unseen("there is no health service; see F1"));
    }
    Ok("SERVING, and GetMetrics has values".to_owned())
}

async fn f13_alpn(context: &Context) -> Finding {
    match context.scaler.connect_with_alpn().await {
        None => Err(Shortfall::unseen("no TLS; give its authority with --tls-ca")),
        Some(Err(failure)) => Err(Shortfall::Fail(failure.to_string())),
        Some(Ok(connection)) => {
            let spec = connection.metric_spec(Role::Poll, context.scaled_object()).await;
            match spec.result {
                Err(failure @ Failure::Broken(_)) => Err(Shortfall::Fail(failure.to_string())),
                Ok(_) | Err(Failure::Status(..) | Failure::Late) => {
                    Ok("TLS with h2 by ALPN".to_owned())
                }
            }
        }
    }
}
