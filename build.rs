//! Puts the files of the live page into the program: `web/plain`, and `web/dist` where it is built.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=web/plain");
    // Another checkout with the same target folder has other files.
    println!("cargo:rerun-if-env-changed=CARGO_MANIFEST_DIR");
    // Cargo takes a path that is missing for one that changed, so its parent stands in for it.
    let dist = if Path::new("web/dist").is_dir() { "web/dist" } else { "web" };
    println!("cargo:rerun-if-changed={dist}");
    if env::var_os("CARGO_FEATURE_PROGRAM").is_none() {
        return;
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("web");
    let mut code = String::new();
    for (name, folder, prefix) in [("DIST", "dist", "/"), ("PLAIN", "plain", "/plain/")] {
        let folder = root.join(folder);
        writeln!(code, "static {name}: &[File] = &[").expect("a string takes it");
        for file in files(&folder) {
            let bytes = fs::read(&file).expect("a file of the page is readable");
            let mut hasher = DefaultHasher::new();
            hasher.write(&bytes);
            let tag = hasher.finish();
            let below = |folder| {
                let path = file.strip_prefix(folder).expect("it was found there");
                path.to_str().expect("its name is Unicode").replace('\\', "/")
            };
            let (path, place) = (format!("{prefix}{}", below(&folder)), below(&root));
            writeln!(
                code,
                "File {{ path: {path:?}, tag: \"{tag:016x}\", bytes: \
                 include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {:?})) }},",
                format!("/web/{place}"),
            )
            .expect("a string takes it");
        }
        code.push_str("];\n");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("page.rs"), code).expect("the build directory can be written");
}

/// All files below a folder, in order of their names; none where there is no folder.
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
