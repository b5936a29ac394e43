//! Which namespaces are asked for together: as many as an answer can hold.
//!
//! Must not let the size of one namespace cost another its answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::decision::Moment;
use crate::source::Error;
use crate::source::selector::{NAMESPACES_PER_QUERY, Namespaces};

/// What was too large together is not asked for together again for this long.
const REMEMBERED_MS: u64 = 600_000;

/// What one query found, for the namespaces that it asked for.
type Answers<T> = Vec<(Namespaces, Result<T, Error>)>;

/// What is remembered of sizes between two rounds.
#[derive(Debug)]
pub(super) struct Batches {
    /// Most namespaces of one query.
    most: usize,
    /// Those that are asked for alone.
    alone: BTreeSet<Box<str>>,
    since: Option<Moment>,
}

impl Default for Batches {
    fn default() -> Batches {
        Batches { most: NAMESPACES_PER_QUERY, alone: BTreeSet::new(), since: None }
    }
}

impl Batches {
    /// Asks for all of these namespaces, as many queries at once as `ask` lets. Where an answer is too
    /// large it asks for the halves, down to a single namespace: only what is too large by itself has
    /// no answer.
    pub(super) async fn ask<T, F: Future<Output = Result<T, Error>>>(
        &mut self,
        namespaces: &[Arc<str>],
        now: Moment,
        ask: impl Fn(Namespaces) -> F,
    ) -> Answers<T> {
        if self.since.is_some_and(|since| now.millis_since(since) >= REMEMBERED_MS) {
            *self = Batches::default();
        }
        let mut all = Vec::new();
        for answers in
            join_all(self.of(namespaces).into_iter().map(|batch| halved(batch, &ask))).await
        {
            self.learn(&answers, now);
            all.extend(answers);
        }
        all
    }

    fn of(&self, namespaces: &[Arc<str>]) -> Vec<Namespaces> {
        let is_alone = |name: &&str| self.alone.contains(*name);
        let names = namespaces.iter().map(|name| &**name);
        let (alone, others): (Vec<&str>, Vec<&str>) = names.partition(is_alone);
        let batches = alone.chunks(1).chain(others.chunks(self.most)).map(|names| {
            // Names come from the inventory, where none is empty; an empty one would follow nothing.
            Namespaces::batches(names.iter().copied()).unwrap_or_default()
        });
        batches.flatten().collect()
    }

    /// Of a batch that had to be halved: who ended up alone stays so; if nobody did, all batches become
    /// as small as the smallest part.
    fn learn<T>(&mut self, parts: &Answers<T>, now: Moment) {
        if parts.len() < 2 {
            return;
        }
        self.since.get_or_insert(now);
        let sizes = parts.iter().map(|(part, _)| part.iter().count());
        match sizes.min() {
            Some(1) => {
                let single = parts.iter().filter(|(part, _)| part.iter().count() == 1);
                self.alone.extend(single.flat_map(|(part, _)| part.iter().map(Box::from)));
            }
            Some(smallest) => self.most = self.most.min(smallest),
            None => {}
        }
    }
}

async fn halved<T, F: Future<Output = Result<T, Error>>>(
    batch: Namespaces,
    ask: &impl Fn(Namespaces) -> F,
) -> Answers<T> {
    let mut pending = vec![batch];
    let mut answers = Vec::new();
    while let Some(batch) = pending.pop() {
        let answer = ask(batch.clone()).await;
        match (&answer, batch.halves()) {
            (Err(Error::TooLarge { .. }), Some(halves)) => pending.extend(halves),
            (Ok(_) | Err(_), _) => answers.push((batch, answer)),
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn names(n: usize) -> Vec<Arc<str>> {
        (0..n).map(|n| format!("ns-{n:03}").into()).collect()
    }

    /// A round of a server that answers what has no more than `limit` series; which namespaces were
    /// answered, and how many queries that took.
    async fn round(
        batches: &mut Batches,
        all: &[Arc<str>],
        now: Moment,
        limit: usize,
        series: impl Fn(&str) -> usize,
    ) -> (BTreeSet<String>, usize) {
        let n_queries = Mutex::new(0);
        let answers = batches.ask(all, now, |batch| {
            *n_queries.lock().unwrap() += 1;
            let n: usize = batch.iter().map(&series).sum();
            let fault = Error::TooLarge { limit: 1, unit: "series" };
            std::future::ready(if n > limit { Err(fault) } else { Ok(()) })
        });
        let mut answered = BTreeSet::new();
        let mut asked = 0;
        for (batch, answer) in answers.await {
            asked += batch.iter().count();
            if answer.is_ok() {
                answered.extend(batch.iter().map(str::to_owned));
            }
        }
        assert_eq!(asked, all.len(), "each namespace has one answer");
        (answered, n_queries.into_inner().unwrap())
    }

    #[tokio::test]
    async fn a_namespace_that_is_too_large_takes_the_answer_from_nobody_else() {
        let (all, mut batches) = (names(100), Batches::default());
        let series = |name: &str| if name == "ns-017" { 1_000 } else { 1 };
        let (answered, first) = round(&mut batches, &all, Moment(0), 500, series).await;
        assert_eq!(answered.len(), 99);
        assert!(!answered.contains("ns-017"));
        assert!(first > 3, "{first} queries find it");
        // Known by then: alone, and so are the two that it was found beside.
        let (answered, then) = round(&mut batches, &all, Moment(5_000), 500, series).await;
        assert_eq!(answered.len(), 99);
        assert_eq!(then, 5);
    }

    #[tokio::test]
    async fn namespaces_that_are_too_large_together_are_asked_for_in_smaller_batches() {
        let (all, mut batches) = (names(100), Batches::default());
        let (answered, first) = round(&mut batches, &all, Moment(0), 500, |_| 15).await;
        assert_eq!((answered.len(), first), (100, 6));
        let (answered, then) = round(&mut batches, &all, Moment(5_000), 500, |_| 15).await;
        assert_eq!((answered.len(), then), (100, 4), "25 at once");
        // They may have become fewer meanwhile.
        let (_, again) = round(&mut batches, &all, Moment(600_000), 500, |_| 1).await;
        assert_eq!(again, 2);
    }
}
