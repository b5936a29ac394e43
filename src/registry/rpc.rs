//! Who calls which method: the words of KEDA's contract, as metrics and the API show them.
//!
//! Data only.

/// Who calls: an HPA query carries a deadline, a poll or reconcile of KEDA does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Caller {
    /// KEDA's own loop.
    Poll,
    /// The HPA, through KEDA.
    Hpa,
}

impl Caller {
    /// Both, in order.
    pub const ALL: [Caller; 2] = [Caller::Poll, Caller::Hpa];

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Caller::Poll => "poll",
            Caller::Hpa => "hpa",
        }
    }
}

/// The methods of KEDA's contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rpc {
    /// `GetMetricSpec`.
    GetMetricSpec,
    /// `GetMetrics`.
    GetMetrics,
    /// `IsActive`.
    IsActive,
    /// `StreamIsActive`.
    StreamIsActive,
    /// `StreamMetricSpec`.
    StreamMetricSpec,
}

impl Rpc {
    /// All, in the order in which KEDA asks.
    pub const ALL: [Rpc; 5] = [
        Rpc::GetMetricSpec,
        Rpc::GetMetrics,
        Rpc::IsActive,
        Rpc::StreamIsActive,
        Rpc::StreamMetricSpec,
    ];

    /// The metric label: the method's own name.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Rpc::GetMetricSpec => "GetMetricSpec",
            Rpc::GetMetrics => "GetMetrics",
            Rpc::IsActive => "IsActive",
            Rpc::StreamIsActive => "StreamIsActive",
            Rpc::StreamMetricSpec => "StreamMetricSpec",
        }
    }
}
