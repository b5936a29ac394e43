//! Independent runs on every core.
//!
//! Must not let the number of cores reach a result: what comes back is in the order of the jobs.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Cores that there are.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Does `work` on each job, so many at once; `done` is told after each how many are done.
pub(super) fn map<J: Sync, R: Send>(
    jobs: &[J],
    at_once: usize,
    done: &(impl Fn(usize) + Sync),
    work: impl Fn(&J) -> R + Sync,
) -> Vec<R> {
    let n_threads = at_once.min(jobs.len());
    let next = AtomicUsize::new(0);
    let n_done = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(jobs.len()));
    std::thread::scope(|scope| {
        for _ in 0..n_threads {
            scope.spawn(|| {
                while let Some((index, job)) = take(jobs, &next) {
                    let result = work(job);
                    // A panic elsewhere ends the scope anyway.
                    if let Ok(mut results) = results.lock() {
                        results.push((index, result));
                    }
                    done(n_done.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_unstable_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}

fn take<'a, J>(jobs: &'a [J], next: &AtomicUsize) -> Option<(usize, &'a J)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(index).map(|job| (index, job))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs_and_each_is_told_of() {
        let jobs: Vec<u64> = (0..100).collect();
        let told = AtomicUsize::new(0);
        let done = |n: usize| {
            told.fetch_max(n, Ordering::Relaxed);
        };
        let squares = map(&jobs, 3, &done, |job| job * job);
        assert_eq!(squares, jobs.iter().map(|job| job * job).collect::<Vec<_>>());
        assert_eq!(told.load(Ordering::Relaxed), 100);
    }
}
