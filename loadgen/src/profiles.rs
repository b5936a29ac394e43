//! `loadgen profiles`: which engine profiles there are, and what one looks like.
//!
//! Must not interpret them: that is [`crate::engine::Profile`].

use std::io::Write;

use anyhow::Context as _;

use crate::engine::Profile;

/// The flags of `profiles`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print this profile's file, with the sources of its numbers: copy it, change it, and give it
    /// back as `--profile FILE`.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

impl Args {
    /// Writes the list, or the one that was asked for.
    ///
    /// # Errors
    ///
    /// When there is no such profile, or `out` cannot be written.
    pub fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        match &self.name {
            Some(name) => {
                let text = Profile::preset_text(name).with_context(|| {
                    let known: Vec<&str> = Profile::preset_names().collect();
                    format!("no profile \"{name}\", expected one of {}", known.join(", "))
                })?;
                write!(out, "{text}")?;
            }
            None => {
                for name in Profile::preset_names() {
                    writeln!(out, "{name:18} {}", Profile::load(name)?.about)?;
                }
            }
        }
        Ok(())
    }
}
