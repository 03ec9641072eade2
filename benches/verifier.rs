//! OCaml completions verified per second, by the persistent checker and by a process per stage.
//!
//! `cargo bench --bench verifier`

#[cfg(unix)]
fn main() {
    use grove::task::ocaml::{Ocaml, OcamlSettings};
    use grove::task::{Completion, Split, Task};
    use std::time::Instant;

    for workers in [1, 0] {
        let mut rates = Vec::new();
        for (checker, rounds) in [("stages", 1), ("server", 8)] {
            let settings = OcamlSettings {
                checker: checker.to_string(),
                workers,
                // The stages do not restrict what code names.
                r#unsafe: checker == "stages",
                ..OcamlSettings::default()
            };
            let task = match Ocaml::open(&settings) {
                Ok(task) => task,
                Err(error) => return eprintln!("{error}"),
            };
            let num = task.num_prompts(Split::Test).unwrap_or_default() * rounds;
            let prompts: Vec<_> =
                (0..num).filter_map(|i| task.prompt(Split::Test, i).ok()).collect();
            // Three of four are right and one has a type error, as from a partly trained model.
            let texts: Vec<String> = (0..prompts.len())
                .map(|i| match i % 4 {
                    3 => "(nothing, 1)".to_string(),
                    _ => task.solution(&prompts[i]).unwrap_or_default(),
                })
                .collect();
            let completions: Vec<_> = prompts
                .iter()
                .zip(&texts)
                .map(|(prompt, text)| Completion::new(prompt, text))
                .collect();
            // The first pass computes the expected values.
            task.verify(&completions[..num.div_ceil(rounds) as usize]).expect("a compiler");
            let start = Instant::now();
            let rewards = task.verify(&completions).expect("a compiler");
            let seconds = start.elapsed().as_secs_f64();
            let right = rewards.iter().filter(|rewards| rewards.total(task.parts()) > 0.99).count();
            let rate = completions.len() as f64 / seconds;
            println!(
                "{:>6}, {}: {rate:.0} completions/s, {right} of {} right",
                settings.checker,
                if workers == 1 { "one at a time" } else { "on all cores" },
                completions.len()
            );
            rates.push(rate);
        }
        println!("        {:.1} times as many", rates[1] / rates[0]);
    }
}

#[cfg(not(unix))]
fn main() {}
