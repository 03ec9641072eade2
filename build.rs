//! Embeds the files of the live page into the program, compressed where that saves room: those in `web/dist`, where
//! they are built, or in the published crate those in `assets/page`.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::Hasher;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    conditions();
    // Another checkout with the same target folder has other files.
    println!("cargo:rerun-if-env-changed=CARGO_MANIFEST_DIR");
    // Cargo counts a missing path as changed, so its parent is watched instead.
    let place = ["web/dist", "assets/page"].into_iter().find(|place| Path::new(place).is_dir());
    for watched in place.map_or(vec!["web", "assets"], |place| vec![place]) {
        println!("cargo:rerun-if-changed={watched}");
    }
    if env::var_os("CARGO_FEATURE_PROGRAM").is_none() {
        return;
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let place = place.unwrap_or("web/dist");
    let dist = root.join(place);
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut code = "static DIST: &[File] = &[".to_string();
    for (number, file) in files(&dist).into_iter().enumerate() {
        let bytes = fs::read(&file).expect("a file of the page is readable");
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        let tag = hasher.finish();
        let path = file.strip_prefix(&dist).expect("the file lies in the folder");
        let path = path.to_str().expect("its name is Unicode").replace('\\', "/");
        let packed = gzip(&bytes);
        let is_gzip = packed.len() < bytes.len() / 10 * 9;
        let content = out.join(format!("page-{number}"));
        fs::write(&content, if is_gzip { packed } else { bytes })
            .expect("the build directory can be written");
        writeln!(
            code,
            "File {{ path: {:?}, tag: \"{tag:016x}\", is_gzip: {is_gzip}, bytes: include_bytes!({content:?}) }},",
            format!("/{path}"),
        )
        .expect("a string takes it");
    }
    code.push_str("];\n");
    fs::write(out.join("page.rs"), code).expect("the build directory can be written");
}

/// Declares conditions that depend on several features: `on_disk` for models and runs in files, which a page does not
/// have, and `text_kernels` for language models in our own kernels.
fn conditions() {
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let is_page = env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "wasm");
    let conditions = [
        ("on_disk", has("GENERAL") && !is_page),
        ("text_kernels", has("GENERAL") && has("KERNELS")),
    ];
    for (name, holds) in conditions {
        println!("cargo::rustc-check-cfg=cfg({name})");
        if holds {
            println!("cargo::rustc-cfg={name}");
        }
    }
}

/// Compresses a file.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

/// All files below a folder, sorted by path; none if the folder is missing.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.expect("a folder of the page is readable").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}
