//! KEDA's side of the wire, in its two roles.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use ghostscaler::proto::external_scaler_client::ExternalScalerClient;
use ghostscaler::proto::{GetMetricsRequest, IsActiveResponse, ScaledObjectRef};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use super::program::PATIENCE;

/// Who asks: a poll of KEDA's own loop, or the HPA through KEDA, whose calls have a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Poll,
    Hpa,
}

/// A ScaledObject's trigger, as a call names it.
#[derive(Debug, Clone)]
pub(super) struct Trigger(ScaledObjectRef);

/// The trigger without metadata of a workload, `namespace/name`.
pub(super) fn trigger(workload: &str) -> Trigger {
    let (namespace, name) = workload.split_once('/').unwrap();
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Trigger(ScaledObjectRef { name, namespace, scaler_metadata: HashMap::new() })
}

impl Trigger {
    pub(super) fn with(mut self, key: &str, value: &str) -> Trigger {
        self.0.scaler_metadata.insert(key.to_owned(), value.to_owned());
        self
    }
}

/// One connection.
#[derive(Debug, Clone)]
pub(super) struct Keda(ExternalScalerClient<Channel>);

impl Keda {
    pub(super) async fn connect(address: SocketAddr) -> Keda {
        let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
        Keda(ExternalScalerClient::new(soon(endpoint.connect()).await.unwrap()))
    }

    /// The targets that GetMetricSpec tells.
    pub(super) async fn targets(&self, trigger: &Trigger) -> Result<Vec<i64>, Status> {
        let mut client = self.0.clone();
        let response = soon(client.get_metric_spec(trigger.0.clone())).await?.into_inner();
        Ok(response.metric_specs.iter().map(|spec| spec.target_size).collect())
    }

    /// The wanted count that GetMetrics tells.
    pub(super) async fn wanted(&self, trigger: &Trigger, role: Role) -> Result<i64, Status> {
        let request = GetMetricsRequest {
            scaled_object_ref: Some(trigger.0.clone()),
            metric_name: "wanted-replicas".to_owned(),
        };
        let mut client = self.0.clone();
        let response = soon(client.get_metrics(role.request(request))).await?.into_inner();
        Ok(response.metric_values[0].metric_value)
    }

    pub(super) async fn is_active(&self, trigger: &Trigger, role: Role) -> Result<bool, Status> {
        let mut client = self.0.clone();
        let response = soon(client.is_active(role.request(trigger.0.clone()))).await?;
        Ok(response.into_inner().result)
    }

    /// Count and activity of a poll that must be answered.
    pub(super) async fn poll(&self, workload: &str) -> (i64, bool) {
        let trigger = trigger(workload);
        let wanted = self.wanted(&trigger, Role::Poll).await.unwrap();
        (wanted, self.is_active(&trigger, Role::Poll).await.unwrap())
    }

    pub(super) async fn stream(&self, trigger: &Trigger) -> Streaming<IsActiveResponse> {
        let mut client = self.0.clone();
        soon(client.stream_is_active(trigger.0.clone())).await.unwrap().into_inner()
    }
}

impl Role {
    fn request<T>(self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if self == Role::Hpa {
            request.set_timeout(Duration::from_secs(60));
        }
        request
    }
}

/// The next message of a stream; `None` when it has ended with OK.
pub(super) async fn pushed(stream: &mut Streaming<IsActiveResponse>) -> Option<bool> {
    soon(stream.message()).await.unwrap().map(|message| message.result)
}

/// Waits for something that must come.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it comes within the patience of a test")
}
