//! Inference of a function's signature by the compiler, for problems that do not state it.

use super::code::Code;
use super::job::Compiler;
use super::problem::Problem;
use crate::task::process::{kill_group, wait};
use crate::task::sandbox::SandboxFolder;
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time that the compiler has for a type: one that grows exponentially would take for ever.
const MAX_INFERENCE_TIME: Duration = Duration::from_secs(30);

/// Infers the signature that a problem's head, tests and solution agree on, as in an interface file; `None` if the
/// compiler accepts none of them.
///
/// The types of the tests' calls come first, if they leave nothing open: they demand no more than the tests do. A
/// function that is called at several types has that of the solution, or of the head.
///
/// # Errors
/// If the compiler cannot be run.
pub fn infer_signature(compiler: &Compiler, problem: &Problem) -> io::Result<Option<String>> {
    let (prelude, head, name) = (&problem.prelude, &problem.head, problem.name());
    let in_head = format!("{prelude}\nlet grove_head = {head} assert false in {name}\n");
    let mut in_tests = format!("{in_head}let grove_probe {name} = ignore [{name}; grove_head]");
    for (call, value) in &problem.tests {
        let _ = write!(in_tests, "; ignore ({call} = {value})");
    }
    let test_type = infer_type(compiler, &in_tests, "grove_probe")?;
    let test_type =
        test_type.and_then(|text| Some(text.strip_suffix("-> unit")?.trim().to_string()));
    if let Some(known) = test_type.as_ref().filter(|text| !text.contains('\'')) {
        return Ok(Some(format!("val {name} : {known}")));
    }
    let solution = problem.solution.as_deref().and_then(|text| Code::extract(text, name, head));
    let solution_type = match solution {
        Some(code) => infer_type(compiler, &format!("{prelude}\n{}", code.text), name)?,
        None => None,
    };
    let found = match solution_type {
        Some(known) => Some(known),
        None => infer_type(compiler, &in_head, "grove_head")?.or(test_type),
    };
    Ok(found.map(|found| format!("val {name} : {found}")))
}

/// Infers the type of the last definition of `name` in a file, if the compiler accepts it.
fn infer_type(compiler: &Compiler, text: &str, name: &str) -> io::Result<Option<String>> {
    let folder = SandboxFolder::new()?;
    let file = folder.path().join("probe.ml");
    fs::write(&file, text)?;
    let output = folder.path().join("probe.mli");
    let mut command = Command::new(&compiler.path);
    command.args(["-w", "-a", "-i"]).arg(&file).stdout(File::create(&output)?);
    if !run_with_limit(&mut command, MAX_INFERENCE_TIME)? {
        return Ok(None);
    }
    let signature = String::from_utf8_lossy(&fs::read(output)?).into_owned();
    let signature = signature.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = signature.rsplit_once(&format!("val {name} : ")).map(|(_, rest)| rest);
    Ok(found.map(|rest| rest.split(" val ").next().unwrap_or(rest).to_string()))
}

/// Runs a command, and returns whether it succeeded.
///
/// # Errors
/// If it does not start, or is killed because it takes longer than `limit`.
fn run_with_limit(command: &mut Command, limit: Duration) -> io::Result<bool> {
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()?;
    if let Some(status) = wait(&mut child, limit)? {
        return Ok(status.success());
    }
    kill_group(&mut child);
    child.wait()?;
    let seconds = limit.as_secs_f64();
    Err(io::Error::other(format!("the compiler took more than {seconds} s for a type")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_has_limited_time() {
        let mut slow = Command::new("sh");
        let error =
            run_with_limit(slow.args(["-c", "sleep 600"]), Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("more than 0.02 s"), "{error}");
        for (command, success) in [("true", true), ("false", false)] {
            let found = run_with_limit(&mut Command::new(command), MAX_INFERENCE_TIME);
            assert_eq!(found.unwrap(), success);
        }
    }
}
