//! What several tests need.

use burn::tensor::Device;

/// The CPU.
pub fn cpu() -> Device {
    Device::flex()
}

/// A graphics adapter, a real one before one that the CPU plays; `None`, with a line that says so,
/// where there is none. With `GROVE_REQUIRE_ADAPTER=1` a missing adapter is a failure.
pub fn adapter() -> Option<Device> {
    let mut adapters: Vec<_> = grove::device::list()
        .into_iter()
        .filter(|d| d.name.starts_with("wgpu:"))
        .collect();
    adapters.sort_by_key(|d| d.software);
    let Some(info) = adapters.first() else {
        assert!(
            std::env::var("GROVE_REQUIRE_ADAPTER").as_deref() != Ok("1"),
            "GROVE_REQUIRE_ADAPTER is 1, but there is no graphics adapter"
        );
        eprintln!("no graphics adapter: not tested on one");
        return None;
    };
    Some(
        grove::device::choose(&info.name)
            .expect("a listed adapter starts")
            .device,
    )
}
