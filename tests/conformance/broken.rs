//! One broken scaler for each way to break a rule: exactly that rule's check fails.

use std::time::Duration;

use ghostscaler::conformance::Outcome;

use super::fault::{Fault, Kind};
use super::{args, entries, run, scaler};

async fn fails_exactly(id: &str, kind: Kind, fault: Fault) {
    let running = scaler::start(kind, fault).await;
    let mut args = args(running.address);
    if fault.shows_late() {
        args.duration = Duration::from_secs(10);
    }
    let (outcome, report) = run(&args).await;
    let failed = entries(&report, "fail");
    let ids: Vec<&str> = failed.iter().map(|(id, _detail)| *id).collect();
    assert_eq!(ids, [id], "{fault:?}: {failed:#?}");
    assert_eq!(outcome, Outcome::Failed);
}

/// Makes a test of each row, named after the rule that it breaks.
macro_rules! broken {
    ($($name:ident: $id:literal, $kind:ident, $fault:ident;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                fails_exactly($id, Kind::$kind, Fault::$fault).await;
            }
        )*
    };
}

broken! {
    a1_spec_always_fails: "A1", Count, SpecAlwaysFails;
    a1_spec_fails_for_the_hpa: "A1", Count, SpecFailsForHpa;
    a2_specs_are_empty: "A2", Count, SpecsEmpty;
    a2_specs_are_empty_without_metadata: "A2", Count, SpecsEmptyWithoutMetadata;
    a3_name_has_a_slash: "A3", Count, NameWithSlash;
    a3_name_is_too_long: "A3", Count, NameTooLong;
    a3_name_is_given_twice: "A3", Count, NameTwice;
    a3_name_moves: "A3", Count, NameMoves;
    a4_target_is_zero: "A4", Count, TargetZero;
    a4_target_is_float_only: "A4", Count, TargetFloatOnly;
    a4_target_is_int_only: "A4", Count, TargetIntOnly;
    a4_target_is_below_a_thousandth: "A4", Count, TargetBelowThousandth;
    a5_target_moves: "A5", Count, TargetMoves;
    a6_no_value: "A6", Count, NoValue;
    a6_two_values: "A6", Count, TwoValues;
    a6_value_is_float_only: "A6", Count, ValueFloatOnly;
    a6_value_is_int_only: "A6", Count, ValueIntOnly;
    a6_int_is_another_number: "A6", Count, ValueIntOff;
    a6_metrics_always_fail: "A6", Count, MetricsAlwaysFail;
    a6_metrics_fail_for_the_hpa: "A6", Count, MetricsFailForHpa;
    a7_value_is_nan: "A7", Count, ValueNan;
    a7_value_is_infinite: "A7", Count, ValueInfinite;
    a7_value_is_negative: "A7", Count, ValueNegative;
    a7_value_is_huge: "A7", Count, ValueHuge;
    a8_count_is_not_quite_whole: "A8", Count, ValueNearlyWhole;
    a9_unknown_metric_is_zero: "A9", Count, UnknownMetricIsZero;
    a9_unknown_metric_is_unavailable: "A9", Count, UnknownMetricIsUnavailable;
    a9_prefix_is_refused: "A9", Count, PrefixRefused;
    a10_inactive_with_a_value: "A10", Count, InactiveWithValue;
    a10_active_without_a_value: "A10", Count, ActiveWithoutValue;
    a10_activity_always_fails: "A10", Count, ActivityAlwaysFails;
    a10_activity_fails_for_the_hpa: "A10", Count, ActivityFailsForHpa;
    a13_int_target_is_another_number: "A13", Load, IntTargetOff;
    a14_missing_reference_panics: "A14", Count, MissingReferencePanics;
    a14_empty_metric_is_answered: "A14", Count, EmptyMetricAnswered;
    a15_calls_move_the_value: "A15", Count, CallsMoveValue;
    a16_activity_needs_metrics_first: "A16", Count, ActivityNeedsMetricsFirst;
    a17_first_metric_is_missing: "A17", Count, FirstMetricMissing;

    b1_kedas_key_is_refused: "B1", Count, KedaKeyRefused;
    b1_unknown_key_is_an_internal_error: "B1", Count, UnknownKeyIsInternal;
    b2_from_env_is_not_read: "B2", Count, FromEnvNotRead;
    b2_from_env_is_accepted_beside_the_key: "B2", Count, FromEnvBesideKey;
    b3_refusal_does_not_name_the_key: "B3", Count, RefusalWithoutKey;
    b4_bad_metadata_has_another_code: "B4", Count, BadMetadataIsPrecondition;
    b4_bad_metadata_is_active: "B4", Count, BadMetadataIsActive;
    b6_metadata_sticks_to_the_name: "B6", Count, MetadataSticks;
    b7_many_keys_panic: "B7", Count, ManyKeysPanic;
    b8_nan_is_taken_for_a_number: "B8", Count, NanIsANumber;

    c1_text_counts: "C1", Count, TextCounts;
    c1_text_is_too_long: "C1", Count, TextTooLong;
    c1_text_is_not_ascii: "C1", Count, TextNotAscii;
    c1_text_has_two_lines: "C1", Count, TextOfTwoLines;
    c2_nul_in_a_name_panics: "C2", Count, NulPanics;
    c3_text_leaks_metadata: "C3", Count, TextLeaksMetadata;
    c3_text_has_a_stack_trace: "C3", Count, TextWithStackTrace;
    c5_errors_are_slow: "C5", Count, ErrorsSlow;

    d1_each_call_waits: "D1", Count, MetricsWait;
    d2_some_calls_are_slow: "D2", Count, MetricsSlowAtTimes;
    d2_spec_hangs: "D2", Count, SpecHangs;
    d2_metrics_hang: "D2", Count, MetricsHang;
    d2_activity_hangs: "D2", Count, ActivityHangs;
    d3_herd_is_refused: "D3", Count, HerdRefused;
    d4_few_streams: "D4", Count, FewStreams;
    d5_unread_stream_locks_others_out: "D5", Count, UnreadStreamLocks;
    d6_cancelled_streams_leak: "D6", Count, CancelledStreamsLeak;
    d7_bad_metadata_locks_others_out: "D7", Count, BadMetadataLocks;
    d8_huge_metadata_panics: "D8", Count, HugeMetadataPanics;
    d9_connections_leak: "D9", Count, ConnectionsLeak;

    e1_no_true_on_open: "E1", Count, NoTrueOnOpen;
    e1_true_on_the_first_open_only: "E1", Count, TrueOnFirstOpenOnly;
    e1_stream_dies_on_the_second_open: "E1", Count, StreamDiesOnSecondOpen;
    e1_true_while_inactive: "E1", Idle, TrueWhileInactive;
    e2_false_is_pushed: "E2", Count, PushesFalse;
    e2_pushes_are_periodic: "E2", Count, PushesPeriodically;
    e2_pushed_twice_on_open: "E2", Count, PushesTwiceOnOpen;
    e3_second_stream_is_refused: "E3", Count, SecondStreamRefused;
    e3_new_stream_ends_the_old: "E3", Count, NewStreamEndsOld;
    e5_stream_ends_with_an_error: "E5", Count, StreamEndsWithError;
    e8_spec_stream_is_silent: "E8", Count, SpecStreamSilent;
    e8_spec_stream_fails: "E8", Count, SpecStreamFails;
    e8_spec_stream_ends_empty: "E8", Count, SpecStreamEndsEmpty;

    f1_no_health_service: "F1", Count, NoHealth;
    f1_no_health_for_the_server: "F1", Count, NoHealthForServer;
    f1_no_health_for_the_service: "F1", Count, NoHealthForService;
    f2_not_serving_with_values: "F2", Count, NotServing;

    h1_streamed_specs_come_late: "H1", Streamed, StreamedSpecsLate;
    h1_streamed_specs_come_once: "H1", Streamed, StreamedSpecsOnce;
    h2_streamed_list_is_empty: "H2", Streamed, StreamedListEmpty;
    h2_streamed_name_moves: "H2", Streamed, StreamedNameMoves;
    h2_streamed_target_is_zero: "H2", Streamed, StreamedTargetZero;
    h3_streamed_target_differs: "H3", Streamed, StreamedTargetDiffers;
    h4_streamed_periodically: "H4", Streamed, StreamedPeriodically;
    h6_spec_stream_ends_with_an_error: "H6", Streamed, SpecStreamEndsWithError;
    h6_unread_spec_stream_locks_others_out: "H6", Streamed, UnreadSpecStreamLocks;
}
