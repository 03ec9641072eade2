//! `grove devices`: what this build can compute on here.

use super::DevicesArgs;
use crate::device::{self, DeviceInfo};
use anyhow::Result;
use serde::Serialize;

#[derive(Serialize)]
struct Report<'a> {
    devices: &'a [DeviceInfo],
    auto: &'a str,
    reason: &'a str,
}

pub fn run(args: DevicesArgs) -> Result<()> {
    let devices = device::list();
    let (auto, reason) = device::best()?;
    if args.json {
        let report = Report { devices: &devices, auto: &auto.name, reason: &reason };
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    let width = |header: &str, cell: fn(&DeviceInfo) -> &str| {
        devices.iter().map(|d| cell(d).len()).chain([header.len()]).max().unwrap_or(0)
    };
    let name = width("device", |d| &d.name);
    let kind = width("kind", |d| &d.kind);
    let api = width("api", |d| &d.api);
    println!("{:name$}  {:kind$}  {:api$}  {:>9}  description", "device", "kind", "api", "memory");
    for d in &devices {
        let memory = d.memory_bytes.map_or("unknown".to_string(), gib);
        println!(
            "{:name$}  {:kind$}  {:api$}  {memory:>9}  {}",
            d.name, d.kind, d.api, d.description
        );
    }
    println!("\nauto takes {}: {reason}", auto.name);
    Ok(())
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}
