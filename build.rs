//! Embeds the files of the live page into the program: those in `web/dist`, where they are built, or in the published
//! crate those in `assets/page`.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
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
    let mut code = "static DIST: &[File] = &[".to_string();
    for file in files(&dist) {
        let bytes = fs::read(&file).expect("a file of the page is readable");
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        let tag = hasher.finish();
        let path = file.strip_prefix(&dist).expect("the file lies in the folder");
        let path = path.to_str().expect("its name is Unicode").replace('\\', "/");
        writeln!(
            code,
            "File {{ path: {:?}, tag: \"{tag:016x}\", bytes: \
             include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {:?})) }},",
            format!("/{path}"),
            format!("/{place}/{path}"),
        )
        .expect("a string takes it");
    }
    code.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("page.rs"), code).expect("the build directory can be written");
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
