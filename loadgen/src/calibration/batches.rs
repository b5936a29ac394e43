//! Published times of a batch's two phases, and the same batches put on the simulated engine.
//!
//! Must not hold a number without its source.
//!
//! Splitwise and SageServe publish, for one model on one kind of GPU, how long the prompts of a
//! batch took together (prompt time) and how long a token took after that (token time). Their
//! engines are others than the presets': the tables judge the *form* of the model. A profile with
//! the curves of some rows must find the others.

use std::sync::Arc;

use crate::engine::{Engine, Event, Points, Profile, ProfileError, Rejected, Request, Time, Watch};

/// A published table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchTable {
    /// Model, GPUs and source.
    pub name: &'static str,
    /// The preset with the limits of such an engine.
    pub preset: &'static str,
    /// Its rows.
    pub rows: &'static [BatchRow],
}

/// Requests that reach an idle engine together, each with 128 tokens to generate. Times are
/// medians of five runs, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchRow {
    /// Tokens of each prompt.
    pub prompt_tokens: u32,
    /// Requests.
    pub batch: u32,
    /// Until the last of them has its first token; `None` where the table says something else.
    pub prompt_ms: Option<f64>,
    /// Between two tokens of each, from then on; `None` where it holds chunks of prompts too.
    pub token_ms: Option<f64>,
    /// The row gives the profile a point of its curves: of prompts where it is a batch of one, of
    /// tokens where its prompts are 512 tokens long. What gives no point judges the profile.
    pub is_given: bool,
}

const fn row(prompt_tokens: u32, batch: u32, prompt_ms: f64, token_ms: f64) -> BatchRow {
    let (prompt_ms, token_ms) = (Some(prompt_ms), Some(token_ms));
    BatchRow { prompt_tokens, batch, prompt_ms, token_ms, is_given: false }
}

const fn given(row: BatchRow) -> BatchRow {
    BatchRow { is_given: true, ..row }
}

const fn only_prompt(row: BatchRow) -> BatchRow {
    BatchRow { token_ms: None, ..row }
}

const fn only_token(row: BatchRow) -> BatchRow {
    BatchRow { prompt_ms: None, ..row }
}

/// Llama-2-70B in fp16 on four H100 [Mutinifni/splitwise-sim, `data/perf_model.csv`, 3780880].
pub const SPLITWISE_70B: BatchTable = BatchTable {
    name: "Splitwise: Llama-2-70B fp16, 4 x H100-80GB",
    preset: "70b-4xh100",
    rows: &[
        given(row(128, 1, 49.09, 28.36)),
        row(256, 1, 50.98, 30.03),
        given(row(512, 1, 59.62, 29.72)),
        row(1_024, 1, 105.61, 29.44),
        given(row(2_048, 1, 200.68, 29.82)),
        row(4_096, 1, 463.46, 29.58),
        given(row(8_192, 1, 953.58, 29.72)),
        row(512, 2, 103.62, 29.98),
        row(512, 4, 195.28, 29.92),
        given(row(512, 8, 442.20, 31.44)),
        row(512, 16, 874.35, 32.84),
        given(row(512, 32, 1_726.05, 36.88)),
        row(512, 64, 3_520.47, 52.36),
    ],
};

/// Llama-3.1-8B in bf16 on two A100 [kjain1810/SageServe, `data/Llama-3.1-8B-tp-2.csv`, 635bcbd];
/// `token_time` there is that of 127 tokens, and `prompt_time` of batches is the same for 2 as for
/// 32 requests, so it is none of the batch's.
pub const SAGESERVE_8B: BatchTable = BatchTable {
    name: "SageServe: Llama-3.1-8B bf16, 2 x A100-80GB",
    preset: "8b-a100",
    rows: &[
        given(row(128, 1, 24.10, 8.57)),
        row(256, 1, 22.69, 8.55),
        given(row(512, 1, 28.33, 8.53)),
        row(1_024, 1, 54.39, 8.56),
        given(row(2_048, 1, 130.53, 8.65)),
        row(4_096, 1, 234.24, 8.84),
        only_prompt(row(8_192, 1, 542.17, 18.94)),
        only_token(row(512, 2, 47.76, 8.83)),
        only_token(row(512, 4, 48.05, 9.38)),
        given(only_token(row(512, 8, 47.49, 10.29))),
        only_token(row(512, 16, 48.44, 12.34)),
        given(only_token(row(512, 32, 48.16, 16.18))),
    ],
};

/// What the simulated engine makes of a row; milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phases {
    /// As [`BatchRow::prompt_ms`].
    pub prompt_ms: f64,
    /// As [`BatchRow::token_ms`].
    pub token_ms: f64,
}

/// Mean absolute errors relative to a table, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanErrors {
    /// Of the prompt times.
    pub prompt: f64,
    /// Of the token times.
    pub token: f64,
}

impl BatchTable {
    /// The preset with step times that go through the given rows.
    ///
    /// # Errors
    ///
    /// When the preset cannot be loaded.
    pub fn profile(&self) -> Result<Profile, ProfileError> {
        let mut profile = Profile::load(self.preset)?;
        let prompts = self.rows.iter().filter(|row| row.gives_prompt());
        let prompts = prompts.filter_map(|row| Some((row.prompt_tokens, row.prompt_ms?)));
        let tokens = self.rows.iter().filter(|row| row.gives_token());
        let mut tokens = tokens.filter_map(|row| Some((row.batch, row.token_ms?))).peekable();
        // One request alone decodes for the base; what more take is theirs.
        let base_ms = tokens.peek().map_or(profile.step.base_ms, |&(_, ms)| ms);
        let above_base = |(count, ms): (u32, f64)| (count, ms - base_ms);
        profile.step.base_ms = base_ms;
        profile.step.prefill_ms = curve(prompts.map(above_base));
        profile.step.decode_ms = curve(tokens.map(above_base));
        // Reading the KV cache of 576 tokens a request is in the decodes' times.
        profile.step.resident_ms = vec![(0, 0.0)];
        Ok(profile)
    }

    /// The mean errors of a profile, over the times that gave it no point.
    ///
    /// # Errors
    ///
    /// When an engine of that profile cannot serve a row.
    pub fn judge(&self, profile: &Arc<Profile>) -> Result<MeanErrors, Rejected> {
        let (mut prompt, mut token) = (Mean::default(), Mean::default());
        for row in self.rows {
            let seen = row.run(profile)?;
            prompt.add(row.prompt_ms.filter(|_| !row.gives_prompt()), seen.prompt_ms);
            token.add(row.token_ms.filter(|_| !row.gives_token()), seen.token_ms);
        }
        Ok(MeanErrors { prompt: prompt.get(), token: token.get() })
    }
}

impl BatchRow {
    /// Whether its prompt time is a point of the profile's curve.
    #[must_use]
    pub fn gives_prompt(&self) -> bool {
        self.is_given && self.batch == 1
    }

    /// Whether its token time is a point of the profile's curve.
    #[must_use]
    pub fn gives_token(&self) -> bool {
        self.is_given && self.prompt_tokens == 512
    }

    /// Puts the batch on an idle engine.
    ///
    /// # Errors
    ///
    /// When an engine of that profile cannot serve it.
    pub fn run(&self, profile: &Arc<Profile>) -> Result<Phases, Rejected> {
        const OUTPUT_TOKENS: u32 = 128;
        let mut engine = Engine::new(Arc::clone(profile));
        for id in 0..self.batch {
            let request = Request::new(id.into(), self.prompt_tokens, OUTPUT_TOKENS);
            engine.submit(request, Time::ZERO)?;
        }
        let (mut prompts, mut end) = (Time::ZERO, Time::ZERO);
        engine.advance(Time::MAX, Watch::FirstToken, &mut |event| match event {
            Event::Token { at, .. } => prompts = at,
            Event::Finished { at, .. } => end = at,
            Event::Preempted { .. } => {}
        });
        let ms = |span_ps: u64| span_ps as f64 / 1e9;
        let gaps = f64::from(OUTPUT_TOKENS - 1);
        let prompt_ms = ms(prompts.since(Time::ZERO));
        Ok(Phases { prompt_ms, token_ms: ms(end.since(prompts)) / gaps })
    }
}

/// A curve through points that must not descend.
fn curve(points: impl Iterator<Item = (u32, f64)>) -> Points {
    let mut least = 0.0_f64;
    let mut rise = |(count, ms): (u32, f64)| {
        least = least.max(ms);
        (count as usize, least)
    };
    points.map(&mut rise).collect()
}

/// A mean of absolute relative errors.
#[derive(Default)]
struct Mean {
    sum: f64,
    n: f64,
}

impl Mean {
    fn add(&mut self, published: Option<f64>, simulated: f64) {
        if let Some(published) = published {
            self.sum += (simulated / published - 1.0).abs();
            self.n += 1.0;
        }
    }

    fn get(&self) -> f64 {
        self.sum / self.n
    }
}
