//! `grove devices`: lists the devices that this build can use on this machine.

use super::args::DevicesArgs;
use super::output::{print_json, print_result};
use crate::device::{self, DeviceInfo};
use anyhow::Result;
use serde::Serialize;

/// The devices, and which of them `auto` selects.
#[derive(Serialize)]
struct Report<'a> {
    devices: &'a [DeviceInfo],
    auto: &'a str,
    reason: &'a str,
}

/// Prints every device that this build can use, and the one that `auto` selects, with the reason.
pub fn run(args: DevicesArgs) -> Result<()> {
    let devices: Vec<_> = device::list().into_iter().map(device::describe).collect();
    let (auto, reason) = device::best_device()?;
    if args.json {
        return print_json(&Report { devices: &devices, auto: &auto.name, reason: &reason });
    }
    let width = |header: &str, cell: fn(&DeviceInfo) -> &str| {
        devices.iter().map(|d| cell(d).len()).chain([header.len()]).max().unwrap_or(0)
    };
    let name = width("device", |d| &d.name);
    let kind = width("kind", |d| &d.kind);
    let api = width("api", |d| &d.api);
    let mut table = format!(
        "{:name$}  {:kind$}  {:api$}  {:>9}  description\n",
        "device", "kind", "api", "memory"
    );
    for d in &devices {
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
        let memory = d.memory_bytes.map_or("unknown".to_string(), gib);
        table += &format!(
            "{:name$}  {:kind$}  {:api$}  {memory:>9}  {}\n",
            d.name, d.kind, d.api, d.description
        );
    }
    print_result(format_args!("{table}\n`auto` selects {}: {reason}", auto.name))
}
