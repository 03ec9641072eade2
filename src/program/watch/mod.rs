//! `grove watch`: shows a run live in the browser.
//!
//! One thread follows the run's files ([`live`]), another one serves their content ([`server`]). Both are
//! independent of training, which writes its run directory as usual.

mod about;
mod completions;
mod download;
mod events;
mod files;
pub(super) mod guard;
mod live;
mod metrics_index;
mod page;
mod server;
mod site;
mod write_timeout;

pub use super::args::{DEFAULT_HOST, DEFAULT_PORT};
pub use server::{Port, Server};

use super::args::WatchArgs;
use super::games::Games;
use super::interrupt::Interrupt;
use super::output::{eprint_line, print_json};
use crate::run::{CONFIG, RunFolder};
use anyhow::{Context, Result, bail};
use files::WatchedFiles;
use live::LiveRun;
use serde_json::json;
use site::Site;
use std::path::Path;

/// Serves the live page of a run, by default of the newest one, until Ctrl-C.
pub fn run(games: &Games, args: WatchArgs) -> Result<()> {
    let folder = args.run.map_or_else(|| RunFolder::newest(None), |run| RunFolder::find(&run))?;
    if !folder.config_path().is_file() {
        bail!("{} has no {CONFIG}, which the page needs", folder.path().display());
    }
    let interrupt = Interrupt::listen(None)?;
    let port = Port::bind(&args.host, args.port)?;
    let url = port.url();
    if !port.is_local() {
        eprint_line!(
            "warning: anyone who can reach this machine can see the run; there is no password"
        );
    }
    if let Some(advice) = port.host_advice() {
        eprint_line!("warning: {advice}");
    }
    let remote_advice = port.remote_advice();
    let _server = start(games, port, folder.path())?;
    eprint_line!("{} is at {url} (Ctrl-C to stop)", folder.path().display());
    if let Some(remote_advice) = remote_advice {
        eprint_line!("{remote_advice}");
    }
    if args.json {
        print_json(&json!({ "run": folder.path().display().to_string(), "url": url }))?;
    }
    if args.open
        && let Err(error) = open::that_detached(&url)
    {
        eprint_line!("warning: cannot open a browser: {error}");
    }
    interrupt.wait();
    Ok(())
}

/// Starts serving a run at a port; dropping the returned server stops it.
pub fn start(games: &Games, port: Port, run: &Path) -> Result<Server> {
    let files =
        WatchedFiles::new(run).with_context(|| format!("cannot read the run {}", run.display()))?;
    let live = LiveRun::follow(files).context("cannot start the thread that follows the run")?;
    let hosts = port.hosts();
    Server::start(port, Site { live, hosts, games: games.clone() })
}
