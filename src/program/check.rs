//! `grove check`: what is wrong with a game, for those who write one.

use super::say::{tell, tell_json};
use super::{CheckArgs, Games, Playable};
use crate::device::{self, Chosen};
use crate::env::{self, CheckOptions, Checked, Finding};
use crate::rollout::check_on_device;
use crate::trainer::new_settings;
use anyhow::{Result, bail};
use serde::Serialize;
use std::fmt::{self, Display, Formatter};

pub fn run(games: &Games, args: CheckArgs) -> Result<()> {
    games.find(args.game.as_deref().map_or_else(|| games.usual(), Ok)?)?.check(&args)
}

/// Plays the game natively and, where a device has kernels, in those too; says what is found.
pub fn check<G: Playable>(args: &CheckArgs) -> Result<()> {
    // Whether the parameters hold is the first thing that is checked.
    let (game, _) = new_settings::<G>(&toml::Table::new(), &args.set)?;
    let chosen = device::choose(&args.device)?;
    let options =
        CheckOptions { episodes: args.episodes, seed: args.seed, ..CheckOptions::default() };
    let Checked { mut findings, episodes, steps } = env::check(game, &options);
    let has_kernels = device::has_kernels(&chosen.device);
    // What is wrong natively already would be no launch for a device.
    if has_kernels && findings.iter().all(|finding| !finding.is_error) {
        findings.extend(check_on_device(game, &options, &chosen.device));
    }
    let wrong = !findings.is_empty();
    let kernels = Kernels { chosen: &chosen, has_kernels };
    let report = Report { env: G::NAME, seed: args.seed, episodes, steps, kernels, findings };
    if args.json {
        tell_json(&report)?
    } else {
        tell(&report)?
    }
    if wrong {
        bail!("something is wrong with {}", G::NAME);
    }
    Ok(())
}

/// What was checked, and what was found.
#[derive(Serialize)]
struct Report<'a> {
    env: &'a str,
    seed: u32,
    episodes: u32,
    steps: u64,
    kernels: Kernels<'a>,
    findings: Vec<Finding>,
}

/// Where kernels were compared with the native rules, if they were.
struct Kernels<'a> {
    chosen: &'a Chosen,
    has_kernels: bool,
}

impl Serialize for Kernels<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.has_kernels.then_some(&self.chosen.info).serialize(serializer)
    }
}

impl Display for Kernels<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let info = &self.chosen.info;
        if self.has_kernels {
            return write!(f, "Its kernels play the same on {info}.");
        }
        write!(
            f,
            "Its kernels were not compared with that, since {} has none: --device wgpu takes\na graphics \
             adapter, even one that the CPU plays.",
            info.name
        )
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { env, episodes, steps, findings, kernels, .. } = self;
        for finding in findings {
            writeln!(f, "{finding}")?;
        }
        match findings.len() {
            0 => write!(
                f,
                "Nothing is wrong with {env}: {episodes} episodes, {steps} steps by random actions.\n\
                 {kernels}"
            ),
            _ if *steps == 0 => write!(f, "No step of {env} was played."),
            _ => {
                write!(f, "Found in {episodes} episodes of {env}, {steps} steps by random actions.")
            }
        }
    }
}
