//! Dependencies between modules, which ARCHITECTURE.md draws, and rules that every file follows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The top-level modules of the library and those that each may use. `ARCHITECTURE.md` draws the same.
const DEPENDENCIES: [(&str, &[&str]); 28] = [
    ("math", &["schema"]),
    ("objective", &["math", "schema"]),
    ("settings", &["env", "math", "model", "objective", "schema"]),
    ("clock", &[]),
    ("rng", &[]),
    ("schema", &[]),
    ("disk", &[]),
    ("data", &["disk"]),
    ("metrics", &["disk"]),
    ("checkpoint", &["disk"]),
    ("parallel", &["clock"]),
    ("device", &["settings", "metrics", "nn", "schema"]),
    ("env", &["rng", "schema"]),
    ("task", &["clock", "disk", "rng", "schema"]),
    ("nn", &["math", "rng", "schema"]),
    ("model", &["math", "nn", "rng", "schema"]),
    ("text", &["clock", "device", "disk", "math", "model", "nn", "rng", "schema"]),
    ("rollout", &["settings", "device", "math", "rng", "env", "model", "data"]),
    ("advantage", &["settings", "device", "data", "parallel"]),
    (
        "learner",
        &["settings", "device", "math", "objective", "rng", "model", "data", "parallel", "text"],
    ),
    (
        "trainer",
        &[
            "advantage",
            "checkpoint",
            "settings",
            "device",
            "disk",
            "rng",
            "env",
            "learner",
            "metrics",
            "model",
            "rollout",
            "data",
            "parallel",
            "task",
            "text",
        ],
    ),
    (
        "run",
        &[
            "checkpoint",
            "settings",
            "device",
            "disk",
            "env",
            "metrics",
            "model",
            "parallel",
            "rng",
            "rollout",
            "text",
            "track",
            "trainer",
        ],
    ),
    ("export", &["math", "model", "protobuf"]),
    ("plot", &["disk", "rng"]),
    ("protobuf", &[]),
    ("track", &["disk", "metrics", "protobuf", "settings"]),
    ("viewer", &["device", "env", "rollout"]),
    ("program", &[]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The top-level module that contains a file of the library.
fn module_of(file: &Path) -> String {
    let inside = file.strip_prefix(root()).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_string()
}

/// The code of a file: no comments, no unit tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = text.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The names that follow `prefix` in `code`, those in braces included.
fn names_after(code: &str, prefix: &str) -> Vec<String> {
    let ident = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut names = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(list) => {
                let list = list.split('}').next().unwrap();
                names.extend(list.split(',').map(|item| ident(item.trim())));
            }
            None => names.push(ident(rest)),
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[test]
fn modules_import_only_what_the_map_allows() {
    let mut seen = Vec::new();
    for file in sources(&root()) {
        let module = module_of(&file);
        if ["lib", "main", "program"].contains(&module.as_str()) {
            // They sit on top and may use all.
            continue;
        }
        let (_, allowed) = DEPENDENCIES
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("{} is in a module that is not on the map", file.display()));
        for used in names_after(&code(&file), "crate::") {
            let is_module = DEPENDENCIES.iter().any(|(name, _)| *name == used);
            if is_module && used != module {
                assert!(
                    allowed.contains(&used.as_str()),
                    "{} uses `{used}`, which the map does not allow `{module}`",
                    file.display()
                );
                seen.push((module.clone(), used));
            }
        }
    }
    // The test finds dependencies at all, and the map shows none that does not exist.
    for (module, allowed) in DEPENDENCIES {
        for used in allowed {
            assert!(
                seen.contains(&(module.to_string(), used.to_string())),
                "the map lets `{module}` use `{used}`, but it does not"
            );
        }
    }
}

#[test]
fn games_know_neither_tensors_nor_files_nor_the_time() {
    for file in sources(&root().join("env")) {
        for forbidden in ["burn::tensor", "burn::nn", "std::fs", "std::io", "std::time"] {
            assert!(!code(&file).contains(forbidden), "{} uses {forbidden}", file.display());
        }
    }
}

#[test]
fn every_file_has_a_summary_and_a_readable_length() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for file in sources(&root()).into_iter().chain(sources(&tests)) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! "), "{} must say what it is for", file.display());
        let lines = text.lines().count();
        assert!(lines <= 500, "{} has {lines} lines; split it", file.display());
    }
}

/// Files that still import each other in a cycle. The list may only become shorter.
const CYCLES: &[&[&str]] =
    &[&["model/native", "model/network", "model/policy", "model/registry", "model/tensors"]];

/// The files of `src` by their module paths: `["trainer", "game"]` for `src/trainer/game/mod.rs`.
type Modules = BTreeMap<Vec<String>, PathBuf>;

fn modules() -> Modules {
    let path = |file: &PathBuf| {
        let inside = file.strip_prefix(root()).unwrap().with_extension("");
        let names = inside.iter().map(|name| name.to_str().unwrap().to_string());
        names.filter(|name| !["mod", "lib"].contains(&name.as_str())).collect()
    };
    sources(&root()).into_iter().map(|file| (path(&file), file)).collect()
}

/// Expands a `use` tree, `a::{b, c as d}`, to paths with the names that they bind.
fn expanded(tree: &str, before: &[String], paths: &mut Vec<(Vec<String>, String)>) {
    let tree = tree.trim();
    if let Some(at) = tree.find('{') {
        let mut before = before.to_vec();
        before.extend(segments(&tree[..at]));
        let (mut depth, mut item) = (0, String::new());
        for c in tree[at + 1..].chars() {
            match c {
                ',' | '}' if depth == 0 => expanded(&std::mem::take(&mut item), &before, paths),
                _ => {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    item.push(c);
                }
            }
        }
    } else if !tree.is_empty() {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut whole = before.to_vec();
        whole.extend(segments(path));
        if whole.len() > 1 && whole.last().is_some_and(|last| last == "self") {
            whole.pop();
        }
        let name = if name.is_empty() { whole.last().unwrap() } else { name.trim() };
        paths.push((whole.clone(), name.to_string()));
    }
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|s| !s.is_empty()).map(str::to_string).collect()
}

/// The `use` statements of a module: whether each re-exports, its path and the name that it binds.
fn uses(code: &str) -> Vec<(bool, Vec<String>, String)> {
    let mut found = Vec::new();
    for statement in code.split(';') {
        let start = statement.lines().position(|line| {
            let words: Vec<_> = line.split_whitespace().take(2).collect();
            matches!(words[..], ["use", _] | ["pub" | "pub(crate)" | "pub(super)", "use"])
        });
        let Some(start) = start else { continue };
        let text = statement.lines().skip(start).collect::<Vec<_>>().join(" ");
        let (visibility, tree) = text.split_once("use ").unwrap();
        let mut paths = Vec::new();
        expanded(tree, &[], &mut paths);
        let public = !visibility.trim().is_empty();
        found.extend(paths.into_iter().map(|(path, name)| (public, path, name)));
    }
    found
}

/// Resolves a path, as written in the module `here`, to the module that defines what it names. `None` outside the
/// crate.
fn resolved(
    modules: &Modules,
    here: &[String],
    path: &[String],
    steps: u32,
) -> Option<Vec<String>> {
    let mut at = here.to_vec();
    let mut rest = path;
    match path[0].as_str() {
        "crate" => at.clear(),
        "self" => {}
        "super" => drop(at.pop()),
        child => {
            at.push(child.to_string());
            modules.get(&at)?;
        }
    }
    rest = &rest[1..];
    while let Some((name, after)) = rest.split_first() {
        if name == "super" {
            at.pop();
        } else if modules.contains_key(&[&at[..], std::slice::from_ref(name)].concat()) {
            at.push(name.clone());
        } else {
            // A name that the module has from another one.
            let names = uses(&code(&modules[&at]));
            let from = names.into_iter().find(|(_, _, bound)| bound == name && steps > 0);
            let inner = from.and_then(|(_, path, _)| resolved(modules, &at, &path, steps - 1));
            return Some(inner.unwrap_or(at));
        }
        rest = after;
    }
    Some(at)
}

/// The modules that each module imports. A re-export is a name and no import; paths in the code count like `use`.
/// What a module takes from those that it lies in is not counted, since a folder's `mod.rs` declares and defines for
/// its files.
fn imports(modules: &Modules) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let of = |here: &Vec<String>, file: &PathBuf| {
        let code = code(file);
        let private = uses(&code).into_iter().filter(|(public, ..)| !public);
        let mut paths: Vec<Vec<String>> = private.map(|(_, path, _)| path).collect();
        for (at, prefix) in ["crate::", "super::"].iter().flat_map(|p| code.match_indices(p)) {
            let is_path = |c: char| c.is_alphanumeric() || "_:".contains(c);
            let rest = &code[at + prefix.len()..];
            let rest = rest.split(|c| !is_path(c)).next().unwrap();
            paths.push([segments(prefix), segments(rest)].concat());
        }
        let found = paths.iter().filter_map(|path| resolved(modules, here, path, 8));
        found.filter(|target| !here.starts_with(target)).collect()
    };
    modules.iter().map(|(here, file)| (here.clone(), of(here, file))).collect()
}

/// The modules that can be reached from one by one import or more.
fn reached(
    imports: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
    from: &Vec<String>,
) -> BTreeSet<Vec<String>> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        open.extend(imports[module].iter().filter(|next| seen.insert((*next).clone())));
    }
    seen
}

#[test]
fn imports_have_no_cycles() {
    let imports = imports(&modules());
    // The test reads imports at all.
    assert!(imports.values().map(BTreeSet::len).sum::<usize>() > 1000);
    let reached: BTreeMap<_, _> =
        imports.keys().map(|module| (module, reached(&imports, module))).collect();
    let cycle = |module: &Vec<String>| -> Vec<String> {
        let back = reached[module].iter().filter(|other| reached[other].contains(module));
        back.map(|module| module.join("/")).collect()
    };
    let is_known = |cycle: &Vec<String>| {
        let of = |known: &&[&str]| cycle.iter().all(|module| known.contains(&&**module));
        CYCLES.iter().any(of)
    };
    let cycles: BTreeSet<Vec<String>> = imports.keys().map(cycle).collect();
    let new: Vec<_> = cycles.iter().filter(|cycle| !is_known(cycle) && !cycle.is_empty()).collect();
    assert!(new.is_empty(), "these files import each other: {new:#?}");
}
