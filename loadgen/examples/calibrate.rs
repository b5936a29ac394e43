//! Prints how far the simulated engines are from real ones, and fits a profile to a capture.
//!
//! ```text
//! cargo run --release -p loadgen --example calibrate              every published table
//! cargo run --release -p loadgen --example calibrate PROFILE      a profile's own curve
//! cargo run --release -p loadgen --example calibrate PROFILE DIR  against a capture, with a fit
//! ```
//!
//! DIR holds the files that `tests/data/capture.py` writes. Must not change anything.

use std::error::Error;
use std::io::{Write, stdout};
use std::path::Path;
use std::sync::Arc;

use loadgen::calibration::{
    A100_40GB, BatchTable, Capture, ClosedLoop, H100_ALONE, NIM_8B, NIM_70B, Published,
    SAGESERVE_8B, SPLITWISE_70B, fit_step, run,
};
use loadgen::engine::Profile;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = stdout().lock();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => {
            published(&mut out, "nim-70b-2xh100", &NIM_70B)?;
            published(&mut out, "nim-8b", &NIM_8B)?;
            a100(&mut out)?;
            h100(&mut out)?;
            for table in [&SPLITWISE_70B, &SAGESERVE_8B] {
                let fitted = table.profile()?;
                batches(&mut out, table, "curves through what has a star", fitted)?;
            }
            let preset = Profile::load(SPLITWISE_70B.preset)?;
            batches(&mut out, &SPLITWISE_70B, "the preset as it is", preset)
        }
        [profile] => curve(&mut out, profile),
        [profile, directory, ..] => captured(&mut out, profile, Path::new(directory)),
    }
}

fn published(out: &mut impl Write, name: &str, rows: &[Published]) -> Result<(), Box<dyn Error>> {
    let profile = Arc::new(Profile::load(name)?);
    writeln!(out, "{name}: {} (simulated, published, error)", profile.about)?;
    writeln!(
        out,
        "clients        ITL ms                 TTFT ms              tokens/s           decoding"
    )?;
    for row in rows {
        let seen = run(&profile, &row.load)?;
        write!(out, "{:>7}", row.load.concurrency)?;
        for (simulated, real, width) in [
            (seen.itl_ms, row.itl_ms, 7),
            (seen.ttft_ms, row.ttft_ms, 8),
            (seen.tokens_per_s, row.tokens_per_s, 8),
            (seen.decoding, row.decoding(), 6),
        ] {
            let error = percent(simulated, real);
            write!(out, " {simulated:>width$.1} {real:>width$.1} {error:>+5.1}%")?;
        }
        writeln!(out)?;
    }
    Ok(writeln!(out)?)
}

fn a100(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let (load, alone, gain) = A100_40GB;
    let profile = Arc::new(Profile::load("8b-a100")?);
    writeln!(out, "8b-a100 (80 GB) beside an A100 of 40 GB, 1024/128 (simulated, published)")?;
    for (concurrency, real) in [(1, alone), (8, alone * gain)] {
        let simulated = run(&profile, &ClosedLoop { concurrency, ..load })?.tokens_per_s;
        let error = percent(simulated, real);
        writeln!(
            out,
            "{concurrency:>7} clients {simulated:>7.1} {real:>7.1} tokens/s {error:>+5.1}%"
        )?;
    }
    Ok(())
}

fn h100(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let profile = Arc::new(Profile::load("8b-h100")?);
    writeln!(out, "\n8b-h100 beside a measured H100, 200/200 (simulated, published)")?;
    for (load, real) in H100_ALONE {
        let simulated = run(&profile, &load)?.itl_ms;
        let (clients, error) = (load.concurrency, percent(simulated, real));
        writeln!(out, "{clients:>7} clients {simulated:>7.2} {real:>7.2} ms ITL {error:>+5.1}%")?;
    }
    Ok(())
}

fn batches(
    out: &mut impl Write,
    table: &BatchTable,
    which: &str,
    profile: Profile,
) -> Result<(), Box<dyn Error>> {
    let profile = Arc::new(profile);
    writeln!(out, "\n{}, {which} (simulated, published, error)", table.name)?;
    writeln!(out, "prompt x batch        prompt ms                token ms")?;
    for row in table.rows {
        let seen = row.run(&profile)?;
        write!(out, "{:>6} x {:<3}", row.prompt_tokens, row.batch)?;
        for (simulated, real, is_given) in [
            (seen.prompt_ms, row.prompt_ms, row.gives_prompt()),
            (seen.token_ms, row.token_ms, row.gives_token()),
        ] {
            let star = if is_given { '*' } else { ' ' };
            match real {
                Some(real) => {
                    let error = percent(simulated, real);
                    write!(out, " {simulated:>8.1} {real:>8.1} {error:>+6.1}%{star}")?;
                }
                None => write!(out, " {simulated:>8.1} {:>17}", "-")?,
            }
        }
        writeln!(out)?;
    }
    let errors = table.judge(&profile)?;
    let [prompt, token] = [errors.prompt, errors.token].map(|error| 100.0 * error);
    writeln!(out, "mean absolute error without a star: prompt {prompt:.1} %, token {token:.1} %")?;
    Ok(())
}

fn curve(out: &mut impl Write, name: &str) -> Result<(), Box<dyn Error>> {
    let profile = Arc::new(Profile::load(name)?);
    writeln!(out, "{name}: {}, prompts of 1000, outputs of 200 tokens", profile.about)?;
    writeln!(out, "clients   ITL ms   TTFT ms  tokens/s  running")?;
    for concurrency in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        let load = ClosedLoop { concurrency, prompt_tokens: 1_000, output_tokens: 200 };
        let seen = run(&profile, &load)?;
        writeln!(
            out,
            "{concurrency:>7} {:>8.1} {:>9.1} {:>9.1} {:>8.1}",
            seen.itl_ms, seen.ttft_ms, seen.tokens_per_s, seen.running
        )?;
    }
    Ok(())
}

fn captured(out: &mut impl Write, name: &str, directory: &Path) -> Result<(), Box<dyn Error>> {
    let profile = Arc::new(Profile::load(name)?);
    let capture = Capture::read(directory)?;
    writeln!(out, "{name}: {} (simulated, captured, error)", profile.about)?;
    writeln!(out, "{:<24}      running               waiting               TTFT p50 ms", "phase")?;
    for phase in &capture.phases {
        let (simulated, real) = (phase.simulated(&profile)?, phase.captured());
        write!(out, "{:<24}", phase.name)?;
        for (simulated, real) in [
            (simulated.running, real.running),
            (simulated.waiting, real.waiting),
            (simulated.ttft_p50_ms, real.ttft_p50_ms),
        ] {
            write!(out, " {simulated:>7.1} {real:>7.1} ")?;
            if real > 0.0 {
                write!(out, "{:>+6.1}%", percent(simulated, real))?;
            } else {
                write!(out, "{:>7}", "-")?;
            }
        }
        writeln!(out)?;
    }
    let kv_tokens = profile.kv_tokens() as f64;
    match fit_step(&capture.fit_rows(kv_tokens)) {
        Some(step) => {
            let fitted = Profile { step: step.clone(), ..Profile::clone(&profile) };
            let frontend = capture.fit_frontend(&fitted)?;
            writeln!(out, "\nfit of the `fit` phases: {step:?}, {frontend:?}")?;
        }
        None => writeln!(out, "\nthe `fit` phases do not tell the terms of a step apart")?,
    }
    Ok(())
}

fn percent(simulated: f64, real: f64) -> f64 {
    100.0 * (simulated / real - 1.0)
}
