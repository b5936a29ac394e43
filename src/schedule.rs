//! The warm schedule: replicas kept warm between two cron times in a time zone.
//!
//! Pure: the moment is an argument.

/// A parsed `warmSchedule`.
#[derive(Debug, Clone, PartialEq)]
pub struct WarmSchedule {}
