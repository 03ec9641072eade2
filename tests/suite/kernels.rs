//! The text of the fused kernels, as CubeCL logs it: numbers of a unit stay in registers, and workgroup memory fits
//! every device. `benches/gpu_static.py` shows registers and spills, for which NVIDIA's and AMD's compilers are needed.

use crate::support::{Scratch, adapter_kind, adapter_name};
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Longest array of a unit, in numbers: a tile of the products, 8 by 4.
const TILE: usize = 32;
/// Longest array with indices that are not constants: compilers choose among so few registers.
const CHOICE: usize = 4;
/// Workgroup memory of every WebGPU device, and of those on which a rollout keeps its weights there, in bytes.
const EVERY_DEVICE: usize = 16 << 10;
const MOST_DEVICES: usize = 32 << 10;

/// The kernels of an iteration of a game, as WGSL.
fn kernels(folder: &Path, device: &str, game: &str, hidden: &str) -> Vec<String> {
    let log = folder.join("kernels.log");
    let hidden = format!("policy.hidden={hidden}");
    let small = ["num_groups=4", "group_size=4", "eval_episodes=1", hidden.as_str()];
    let mut command = Command::new(env!("CARGO_BIN_EXE_grove"));
    command.args(["train", game, "--device", device, "--iterations", "1", "--run-dir"]);
    command.arg(folder.join(game)).env("CUBECL_DEBUG_LOG", &log);
    small.iter().for_each(|change| {
        command.args(["--set", change]);
    });
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(log).unwrap();
    let blocks = text.split("```wgsl\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_string()).collect()
}

/// The part of a line between `start` and `end`.
fn between<'a>(line: &'a str, start: &str, end: &str) -> Option<&'a str> {
    line.split_once(start)?.1.split_once(end).map(|(inside, _)| inside)
}

/// Numbers in an array whose type a line declares, `array<f32, 8>`.
fn len(line: &str) -> usize {
    between(line, "array<", ">").unwrap().split(", ").nth(1).unwrap().parse().unwrap()
}

/// Checks that a kernel's arrays are short, and all but the shortest have constants as indices: others are in memory,
/// not in registers. Returns the number of indices.
fn check_arrays(name: &str, source: &str) -> usize {
    let lines = || source.lines().map(str::trim);
    let is_constant =
        |line: &&str| between(line, "= u32(", ")").is_some_and(|n| n.parse::<u32>().is_ok());
    let declared = |line: &str| line.split([' ', ':']).nth(1).unwrap().to_string();
    let constants: HashSet<String> = lines().filter(is_constant).map(declared).collect();
    let arrays: Vec<&str> = lines()
        .filter(|line| line.starts_with("var<function>") && line.contains("array<"))
        .collect();
    let long = arrays.iter().filter(|line| len(line) > CHOICE);
    let names: HashSet<&str> = long.filter_map(|line| between(line, "> ", "_store")).collect();
    for array in &arrays {
        assert!(len(array) <= TILE, "{name}: {array}");
    }
    let mut count = 0;
    for line in lines() {
        for piece in line.split("(*").skip(1) {
            let Some((array, rest)) = piece.split_once(")[") else { continue };
            if !names.contains(array) {
                continue;
            }
            let index = rest.split(']').next().unwrap();
            assert!(constants.contains(index), "{name}: {index} is not a constant in {line}");
            count += 1;
        }
    }
    count
}

#[test]
#[ignore = "slow: a minute of CPU time on a software adapter"]
fn fused_kernels_keep_their_numbers_in_registers() {
    let Some(device) = adapter_name().filter(|_| adapter_kind() == "wgpu") else { return };
    for (game, hidden) in
        [("fruit", "[64]"), ("fruit", "[64, 64]"), ("fruit", "[256, 256]"), ("catch", "[128]")]
    {
        let folder = Scratch::new();
        let (mut seen, mut indices) = (0, 0);
        for source in kernels(&folder, &device, game, hidden) {
            let Some(name) = between(&source, "fn ", "(") else { continue };
            let limit = match name {
                name if name.starts_with("play_kernel") => MOST_DEVICES,
                name if name.starts_with("gradient_kernel") => EVERY_DEVICE,
                _ => continue,
            };
            let name = format!("{game} {hidden}: {name}");
            let shared = source.lines().filter(|line| line.starts_with("var<workgroup>"));
            let bytes: usize = shared.map(|line| 4 * len(line)).sum();
            assert!((1..=limit).contains(&bytes), "{name}: {bytes} bytes of workgroup memory");
            indices += check_arrays(&name, &source);
            seen += 1;
        }
        assert!(
            seen >= 2 && indices > 0,
            "{game} {hidden}: {seen} fused kernels, {indices} indices"
        );
    }
}
