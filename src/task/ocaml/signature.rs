//! Inference of a function's signature by the compiler, for problems that do not state it.

use super::code::Code;
use super::job::Compiler;
use super::problem::Problem;
use crate::task::sandbox::Folder;
use std::fmt::Write;
use std::process::Command;
use std::{fs, io};

/// The signature that a problem's head, tests and solution agree on, as in an interface file; `None` if the compiler
/// accepts none of them.
///
/// The types of the tests' calls come first, if they leave nothing open: they demand no more than the tests do. A
/// function that is called at several types has that of the solution, or of the head.
///
/// # Errors
/// If the compiler cannot be run.
pub fn infer(compiler: &Compiler, problem: &Problem) -> io::Result<Option<String>> {
    let (prelude, head, name) = (&problem.prelude, &problem.head, problem.name());
    let in_head = format!("{prelude}\nlet grove_head = {head} assert false in {name}\n");
    let mut in_tests = format!("{in_head}let grove_probe {name} = ignore [{name}; grove_head]");
    for (call, value) in &problem.tests {
        let _ = write!(in_tests, "; ignore ({call} = {value})");
    }
    let tested = type_of(compiler, &in_tests, "grove_probe")?;
    let tested = tested.and_then(|text| Some(text.strip_suffix("-> unit")?.trim().to_string()));
    if let Some(tested) = tested.as_ref().filter(|text| !text.contains('\'')) {
        return Ok(Some(format!("val {name} : {tested}")));
    }
    let solution = problem.solution.as_deref().and_then(|text| Code::of(text, name, head));
    let solved = match solution {
        Some(code) => type_of(compiler, &format!("{prelude}\n{}", code.text), name)?,
        None => None,
    };
    let found = match solved {
        Some(solved) => Some(solved),
        None => type_of(compiler, &in_head, "grove_head")?.or(tested),
    };
    Ok(found.map(|found| format!("val {name} : {found}")))
}

/// The type of the last definition of `name` in a file, if the compiler accepts it.
fn type_of(compiler: &Compiler, text: &str, name: &str) -> io::Result<Option<String>> {
    let folder = Folder::new()?;
    let file = folder.path().join("probe.ml");
    fs::write(&file, text)?;
    let output = Command::new(&compiler.path).args(["-w", "-a", "-i"]).arg(&file).output()?;
    if !output.status.success() {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = said.rsplit_once(&format!("val {name} : ")).map(|(_, rest)| rest);
    Ok(found.map(|rest| rest.split(" val ").next().unwrap_or(rest).to_string()))
}
