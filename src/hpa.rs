//! KEDA's loop and the horizontal pod autoscaler behind it, as a model: values in, counts out.
//!
//! Pure: time and answers are arguments, nothing is called. It follows Kubernetes 1.36
//! (`pkg/controller/podautoscaler/horizontal.go`, `replica_calculator.go`) and KEDA 2.21
//! (`pkg/scaling/executor/scale_scaledobjects.go`) for one trigger with an AverageValue target, and
//! is held to sequences that a real cluster gave (`tests/hpa`).
//!
//! ```
//! use ghostscaler::decision::Moment;
//! use ghostscaler::hpa::{Keda, ScaledObject, Turn};
//!
//! let object = ScaledObject { max: 8, ..ScaledObject::default() };
//! let mut keda = Keda::new(object, Moment(0), Moment(15_000));
//! let mut replicas = 1;
//! for _ in 0..20 {
//!     let (now, turn) = keda.next();
//!     replicas = match turn {
//!         Turn::Poll => keda.poll(now, replicas, Some(true)),
//!         Turn::Sync => keda.sync(now, replicas, replicas, Some(6.0)),
//!     };
//! }
//! assert_eq!(replicas, 6);
//! ```

mod behavior;
mod controller;
mod keda;
#[cfg(test)]
mod tests;

pub use behavior::{Behavior, Change, Limit, Rules, Select};
pub use controller::Hpa;
pub use keda::{Keda, ScaledObject, Turn};
