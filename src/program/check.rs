//! `grove check`: checks a game for mistakes.

use super::args::CheckArgs;
use super::games::{ConfigurableGame, Games};
use super::output::{print_json, print_result};
use crate::device::{self, DeviceInfo};
use crate::env::{self, CheckOptions, CheckReport, Finding};
use crate::run::pluralize;
use crate::trainer::new_settings;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::fmt::{self, Display, Formatter};

/// Checks a game, by default the first one, and prints what it finds.
pub fn run(games: &Games, args: CheckArgs) -> Result<()> {
    (games.find_or_default(args.game.as_deref())?.check)(&args)
}

/// Plays the game by its native rules and, if the device has kernels, by those too; prints the findings.
pub fn check<G: ConfigurableGame>(args: &CheckArgs) -> Result<()> {
    // The parameters are not validated here: `env::check` reports invalid ones as a finding.
    let (game, _) = new_settings::<G>(&toml::Table::new(), &args.set)?;
    let chosen = device::start(&args.device)?;
    let options =
        CheckOptions { episodes: args.episodes, seed: args.seed, ..CheckOptions::default() };
    let CheckReport { findings, episodes, steps } = env::check(game, &options);
    let has_kernels = device::has_kernels(&chosen.device);
    #[cfg(feature = "kernels")]
    let mut findings = findings;
    // A game with errors in its native rules is not launched on a device.
    #[cfg(feature = "kernels")]
    if has_kernels && findings.iter().all(|finding| !finding.is_error) {
        findings.extend(crate::rollout::check_on_device(game, &options, &chosen.device));
    }
    let num_findings = findings.len();
    let kernels = has_kernels.then_some(&chosen.info);
    let device = &*chosen.info.name;
    let report =
        Report { env: G::NAME, seed: args.seed, episodes, steps, kernels, device, findings };
    if args.json {
        print_json(&report)?
    } else {
        print_result(&report)?
    }
    ensure!(num_findings == 0, "{} found in {}", pluralize(num_findings, "problem"), G::NAME);
    Ok(())
}

/// The findings, with the extent of the check.
#[derive(Serialize)]
struct Report<'a> {
    env: &'a str,
    seed: u32,
    episodes: u32,
    steps: u64,
    /// The device on which kernels were compared with the native rules, if it has kernels.
    kernels: Option<&'a DeviceInfo>,
    #[serde(skip)]
    device: &'a str,
    findings: Vec<Finding>,
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { env, episodes, steps, findings, device, .. } = self;
        let kernels = match self.kernels {
            Some(info) => format!("Its kernels on {info} agree with the native rules."),
            None => format!(
                "Its kernels were not checked, since the device `{device}` has none. --device wgpu\nchecks them on any \
                 graphics adapter, including software ones."
            ),
        };
        for finding in findings {
            writeln!(f, "{finding}")?;
        }
        match findings.len() {
            0 => write!(
                f,
                "No problems found in {env}: {episodes} episodes, {steps} steps with random actions.\n\
                 {kernels}"
            ),
            _ if *steps == 0 => write!(f, "No step of {env} was played."),
            _ => write!(f, "Checked {episodes} episodes, {steps} steps with random actions."),
        }
    }
}
