//! What can be wrong with the scaler under test, each fault breaking one rule.

/// A correct scaler, or what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,

    SpecAlwaysFails,
    SpecFailsForHpa,
    SpecsEmpty,
    SpecsEmptyWithoutMetadata,
    NameWithSlash,
    NameTooLong,
    NameTwice,
    NameMoves,
    TargetZero,
    TargetFloatOnly,
    TargetIntOnly,
    TargetBelowThousandth,
    TargetMoves,
    NoValue,
    TwoValues,
    ValueFloatOnly,
    ValueIntOnly,
    ValueIntOff,
    MetricsAlwaysFail,
    MetricsFailForHpa,
    ValueNan,
    ValueInfinite,
    ValueNegative,
    ValueHuge,
    ValueNearlyWhole,
    UnknownMetricIsZero,
    UnknownMetricIsUnavailable,
    PrefixRefused,
    InactiveWithValue,
    ActiveWithoutValue,
    ActivityAlwaysFails,
    ActivityFailsForHpa,
    IntTargetOff,
    MissingReferencePanics,
    EmptyMetricAnswered,
    CallsMoveValue,
    ActivityNeedsMetricsFirst,
    FirstMetricMissing,

    KedaKeyRefused,
    UnknownKeyIsInternal,
    FromEnvNotRead,
    FromEnvBesideKey,
    RefusalWithoutKey,
    BadMetadataIsPrecondition,
    BadMetadataIsActive,
    MetadataSticks,
    ManyKeysPanic,
    NanIsANumber,

    TextCounts,
    TextTooLong,
    TextNotAscii,
    TextOfTwoLines,
    NulPanics,
    TextLeaksMetadata,
    TextWithStackTrace,
    ErrorsSlow,

    MetricsWait,
    MetricsSlowAtTimes,
    /// No fault: a machine that stands still, once.
    MetricsSlowOnce,
    SpecHangs,
    MetricsHang,
    ActivityHangs,
    HerdRefused,
    FewStreams,
    UnreadStreamLocks,
    CancelledStreamsLeak,
    BadMetadataLocks,
    HugeMetadataPanics,
    ConnectionsLeak,

    NoTrueOnOpen,
    TrueOnFirstOpenOnly,
    StreamDiesOnSecondOpen,
    TrueWhileInactive,
    PushesFalse,
    PushesPeriodically,
    PushesTwiceOnOpen,
    SecondStreamRefused,
    NewStreamEndsOld,
    StreamEndsWithError,
    SpecStreamSilent,
    SpecStreamFails,
    SpecStreamEndsEmpty,

    NoHealth,
    NoHealthForServer,
    NoHealthForService,
    NotServing,

    StreamedSpecsLate,
    StreamedSpecsOnce,
    StreamedListEmpty,
    StreamedNameMoves,
    StreamedTargetZero,
    StreamedTargetDiffers,
    StreamedPeriodically,
    SpecStreamEndsWithError,
    UnreadSpecStreamLocks,
}

impl Fault {
    /// Whether it shows only on a stream that has been open for a while.
    pub(super) fn shows_late(self) -> bool {
        matches!(
            self,
            Fault::PushesFalse
                | Fault::PushesPeriodically
                | Fault::StreamEndsWithError
                | Fault::StreamedListEmpty
                | Fault::StreamedNameMoves
                | Fault::StreamedTargetZero
                | Fault::StreamedPeriodically
                | Fault::SpecStreamEndsWithError
        )
    }
}

/// What a correct scaler is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Wants 3 replicas: value 3 at target 1.
    Count,
    /// The same, wanting none.
    Idle,
    /// A load of 23.5 at target 10.
    Load,
    /// A count that also streams its specs.
    Streamed,
    /// A count that refuses unknown keys.
    Strict,
    /// A count for triggers of type `external`: no push at all.
    Pull,
    /// A count that gives its value another name than was asked for.
    OtherName,
}
