//! Dependencies between modules, which ARCHITECTURE.md draws, and rules that every file follows.

use crate::support::{repository, sources};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The top-level modules of the library and those that each may use, as `ARCHITECTURE.md` lists them.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(repository("ARCHITECTURE.md")).unwrap();
    let section = text.split("## Allowed dependencies").nth(1).unwrap();
    // A list may continue in the next line.
    let lists = section.split("```").nth(1).unwrap().replace("\n ", " ");
    let names = |list: &str| -> Vec<String> {
        let names = list.split([',', ' ']).filter(|name| !["", "nothing", "all"].contains(name));
        names.map(str::to_string).collect()
    };
    let lists = lists.lines().filter_map(|line| line.split_once("->"));
    lists.flat_map(|(of, used)| names(of).into_iter().map(move |of| (of, names(used)))).collect()
}

fn root() -> PathBuf {
    repository("src")
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
    let dependencies = dependencies();
    assert!(dependencies.len() > 20, "{dependencies:?}");
    let mut seen = Vec::new();
    for file in sources(&root()) {
        let module = module_of(&file);
        if ["lib", "main", "program"].contains(&module.as_str()) {
            // They sit on top and may use all.
            continue;
        }
        let allowed = dependencies
            .get(&module)
            .unwrap_or_else(|| panic!("{} is in a module that is not on the map", file.display()));
        for used in names_after(&code(&file), "crate::") {
            if dependencies.contains_key(&used) && used != module {
                assert!(
                    allowed.contains(&used),
                    "{} uses `{used}`, which the map does not allow `{module}`",
                    file.display()
                );
                seen.push((module.clone(), used));
            }
        }
    }
    // The test finds dependencies at all, and the map shows none that does not exist.
    for (module, allowed) in dependencies {
        for used in allowed {
            let pair = (module.clone(), used);
            assert!(seen.contains(&pair), "the map lets the first of {pair:?} use the second");
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
    for file in [root(), repository("tests")].iter().flat_map(|folder| sources(folder)) {
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
