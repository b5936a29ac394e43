//! Between the registry's types and KEDA's messages.
//!
//! Pure. Every number goes into both the field of KEDA 2.17 and later and the deprecated integer,
//! which is what KEDA reads whenever the float is not above 0.

use tonic::Status;

use crate::decision::Unavailable;
use crate::proto;
use crate::registry::{self, Refusal};

/// The one metric: the wanted replicas. Its name is part of the HPA object, so it never changes.
pub const METRIC_NAME: &str = "wanted-replicas";

/// The target of one replica, for ever: replicas = ceil(value / 1). A target that changed would
/// reach the HPA only with the next reconcile.
const TARGET: i32 = 1;

/// The largest value that is ever told: the HPA counts in thousandths of an int64, and sums.
const VALUE_MAX: u32 = 1_000_000_000;

pub(super) fn metric_spec() -> proto::GetMetricSpecResponse {
    let spec = proto::MetricSpec {
        metric_name: METRIC_NAME.to_owned(),
        target_size: i64::from(TARGET),
        target_size_float: f64::from(TARGET),
    };
    proto::GetMetricSpecResponse { metric_specs: vec![spec] }
}

pub(super) fn metrics(want: u32) -> proto::GetMetricsResponse {
    let want = want.min(VALUE_MAX);
    let value = proto::MetricValue {
        metric_name: METRIC_NAME.to_owned(),
        metric_value: i64::from(want),
        metric_value_float: f64::from(want),
    };
    proto::GetMetricsResponse { metric_values: vec![value] }
}

pub(super) fn active(result: bool) -> proto::IsActiveResponse {
    proto::IsActiveResponse { result }
}

/// Checks a requested metric name; KEDA 2.5 and 2.6 leave the HPA's `s0-` prefix on it.
pub(super) fn check_metric_name(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Err(Status::invalid_argument("metricName is empty: expected wanted-replicas"));
    }
    let without_prefix =
        name.strip_prefix('s').and_then(|rest| rest.split_once('-')).and_then(|(index, bare)| {
            let numbered = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
            numbered.then_some(bare)
        });
    if name == METRIC_NAME || without_prefix == Some(METRIC_NAME) {
        Ok(())
    } else {
        Err(Status::not_found("no such metric: expected wanted-replicas"))
    }
}

/// The trigger that a call names.
pub(super) fn check_ref(
    scaled_object: Option<&proto::ScaledObjectRef>,
) -> Result<&proto::ScaledObjectRef, Status> {
    let named =
        |found: &&proto::ScaledObjectRef| !found.name.is_empty() && !found.namespace.is_empty();
    scaled_object.filter(named).ok_or_else(|| {
        Status::invalid_argument("scaledObjectRef has no name or no namespace: expected both")
    })
}

/// The status of a decision without a value.
pub(super) fn unavailable(why: Unavailable) -> Status {
    Status::unavailable(match why {
        Unavailable::NothingKnown => {
            "replica count not known: check that the scale target exists and that ghostscaler may \
             read its scale, or give the workload of its configuration `replicas`"
        }
        Unavailable::SourceLost => {
            "engine metrics lost for long, so that the declared fallback counts: see ghostscaler \
             explain"
        }
    })
}

/// The status of a look-up that found no tracker.
pub(super) fn lookup_error(error: &registry::Error) -> Status {
    match error {
        registry::Error::NotSynced => {
            Status::unavailable("ghostscaler is starting: workloads not listed yet")
        }
        registry::Error::NotFound => Status::not_found(
            "workload not known: check ghostscaler's namespaces, or the workloads of its \
             configuration",
        ),
        registry::Error::Refused { why, .. } => match why {
            Refusal::BadMetadata(_) => Status::invalid_argument(why.to_string()),
            Refusal::TooLarge | Refusal::Full { .. } => Status::resource_exhausted(why.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_one_in_both_fields() {
        let spec = metric_spec();
        assert_eq!(spec.metric_specs.len(), 1);
        assert_eq!(spec.metric_specs[0].target_size, 1);
        assert_eq!(spec.metric_specs[0].target_size_float.to_bits(), 1.0_f64.to_bits());
    }

    proptest::proptest! {
        #[test]
        fn a7_a8_a_value_is_a_whole_number_within_0_and_1e9_in_both_fields(want: u32) {
            let response = metrics(want);
            assert_eq!(response.metric_values.len(), 1);
            let value = &response.metric_values[0];
            assert_eq!(value.metric_value, i64::from(want).min(1_000_000_000));
            assert!((0.0..=1e9).contains(&value.metric_value_float));
            assert_eq!(value.metric_value_float.to_bits(), (value.metric_value as f64).to_bits());
        }
    }

    #[test]
    fn the_metric_name_is_accepted_with_and_without_the_hpas_prefix() {
        for name in ["wanted-replicas", "s0-wanted-replicas", "s12-wanted-replicas"] {
            assert!(check_metric_name(name).is_ok(), "{name}");
        }
        for name in ["wanted", "s-wanted-replicas", "sx-wanted-replicas", "s0-s0-wanted-replicas"] {
            let status = check_metric_name(name).unwrap_err();
            assert_eq!(status.code(), tonic::Code::NotFound, "{name}");
        }
        let status = check_metric_name("").unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
    }

    #[test]
    fn c1_every_fixed_text_is_one_short_ascii_line() {
        let refused = |why| registry::Error::Refused { why, min: 0, spec: None };
        let statuses = [
            unavailable(Unavailable::NothingKnown),
            unavailable(Unavailable::SourceLost),
            lookup_error(&registry::Error::NotSynced),
            lookup_error(&registry::Error::NotFound),
            lookup_error(&refused(Refusal::TooLarge)),
            lookup_error(&refused(Refusal::Full { limit: 50_000 })),
            check_ref(None).unwrap_err(),
            check_metric_name("").unwrap_err(),
            check_metric_name("x").unwrap_err(),
        ];
        for status in statuses {
            let text = status.message();
            assert!(text.len() <= 200 && !text.is_empty(), "{text}");
            assert!(text.bytes().all(|b| b == b' ' || b.is_ascii_graphic()), "{text}");
            assert!(!text.contains("  "), "{text}");
        }
    }
}
