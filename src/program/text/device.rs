//! The device of a language model on the command line, and the precision that it has by default.

use crate::settings::Precision;
use crate::text::fastest_precision;

/// The device of a language model, by a name of the command line: `auto` is the CPU.
pub fn device_name(name: &str) -> &str {
    if name == "auto" { "cpu" } else { name }
}

/// The default precision of a large pretrained model on a comma-separated list of devices.
pub fn default_precision(devices: &str) -> Precision {
    let is_cpu = |name: &str| ["cpu", "cpu:0"].contains(&device_name(name.trim()));
    fastest_precision(if devices.split(',').all(is_cpu) { "cpu" } else { devices })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_on_the_cpu_have_the_precision_of_one() {
        for devices in ["auto", "cpu:0", "cpu,cpu", "auto, cpu"] {
            assert_eq!(default_precision(devices), fastest_precision("cpu"), "{devices}");
        }
        for devices in ["wgpu:0", "cpu,wgpu:0"] {
            assert_eq!(default_precision(devices), Precision::F32, "{devices}");
        }
    }
}
