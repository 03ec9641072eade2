//! `grove devices`: lists the devices that this build can use on this machine.

use super::args::DevicesArgs;
use super::output::{print_json, print_result};
use super::text_table::align_columns;
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
    let devices: Vec<_> = device::list().into_iter().map(device::complete_description).collect();
    let (auto, reason) = device::find_best()?;
    if args.json {
        return print_json(&Report { devices: &devices, auto: &auto.name, reason: &reason });
    }
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let row = |device: DeviceInfo| {
        let memory = device.memory_bytes.map_or("unknown".to_string(), gib);
        vec![device.name, device.kind.to_string(), device.api, memory, device.description]
    };
    let rows: Vec<_> = devices.into_iter().map(row).collect();
    let table = align_columns(&["device", "kind", "api", "memory", "description"], &rows, 3..4);
    print_result(format_args!("{table}\n\n`auto` selects {}: {reason}", auto.name))
}
