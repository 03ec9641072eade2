//! Files of prompts: accepted formats and error messages.

use crate::support::{GIVES_ONE, MISSING, Scratch};
use grove::task::{Completion, DataTask, Split, Task, TaskError, VerifierOptions, read_prompts};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn file(folder: &Scratch, text: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join("prompts.jsonl");
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn prompts_are_strings_or_messages_with_extra_fields() {
    let folder = Scratch::new();
    let lines = [
        "\u{feff}{\"prompt\": \"2+2=\", \"solution\": \"4\", \"level\": {\"n\": 1}, \"split\": \"train\"}\r",
        "",
        "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, \
         {\"role\": \"user\", \"content\": \"Hi\"}], \"split\": \"test\"}",
        r#"{"prompt": [{"role": "user", "content": "Hello"}], "split": "train"}"#,
        r#"{"messages": [{"role": "user", "name": "ann", "content": "Q"}, {"role": "assistant", "content": "", "tool_calls": [{"x": 1, "a": {"c": 2, "b": 3}}]}, {"role": "tool", "content": "7"}], "split": "train"}"#,
    ];
    let set = read_prompts(&file(&folder, lines.join("\n"))).unwrap();
    let (train, test) = (&set.train, &set.test);
    assert_eq!((train.len(), test.len()), (3, 1));
    assert_eq!((train[0].text.as_str(), train[0].messages.len()), ("2+2=", 0));
    assert_eq!(train[0].fields["level"]["n"], 1);
    assert!(!train[0].fields.contains_key("split") && !train[0].fields.contains_key("prompt"));
    assert_eq!(test[0].text, "Be brief.\n\nHi\n\n");
    assert_eq!(
        (test[0].messages[1].role.as_str(), test[0].messages[1].content.text()),
        ("user", "Hi")
    );
    assert_eq!(train[1].messages[0].content.text(), "Hello");
    // A template sees every key of a message, and objects in the order of their keys.
    let seen = serde_json::to_value(&train[2].messages).unwrap();
    assert_eq!((&seen[0]["name"], &seen[1]["tool_calls"][0]["x"]), (&"ann".into(), &1.into()));
    assert_eq!(train[2].messages[0].rest.0.len(), 1);
    assert_eq!(
        serde_json::to_string(&train[2].messages[1].rest).unwrap(),
        r#"{"tool_calls":[{"x":1,"a":{"c":2,"b":3}}]}"#
    );
}

#[test]
fn completions_are_strings_or_messages_and_may_differ_from_solutions() {
    let folder = Scratch::new();
    let lines = [
        r#"{"prompt": "2+2=", "completion": "Two and two: 4", "solution": "4", "split": "train"}"#,
        r#"{"prompt": [{"role": "user", "content": "3+4?"}], "completion": [{"role": "assistant", "content": "7"}], "split": "test"}"#,
        r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], "split": "test"}"#,
    ];
    let task = DataTask::open(&file(&folder, lines.join("\n")), None).unwrap();
    let prompts = [(Split::Train, 0), (Split::Test, 0), (Split::Test, 1)]
        .map(|(split, index)| task.prompt(split, index).unwrap());
    let solutions = prompts.each_ref().map(|prompt| task.solution(prompt).unwrap());
    assert_eq!(solutions, ["Two and two: 4", "7", "Hello"]);
    assert_eq!((prompts[2].text.as_str(), prompts[2].messages.len()), ("Hi\n\n", 1));
    let right = |i: usize, text: &str| {
        let rewards = task.verify(&[Completion::new(&prompts[i], text)]).unwrap();
        rewards[0].score(task.reward_parts())
    };
    assert_eq!([right(0, "4"), right(0, "Two and two: 4"), right(1, "7")], [1.0, 0.0, 1.0]);
    let all: BTreeSet<char> = "2+2=Two and two: 43+4?\n7HiHello".chars().collect();
    assert_eq!(task.alphabet().unwrap(), all.iter().collect::<String>());
    assert_eq!(task.max_new_tokens(), "Two and two: 4".len() + 1);
    // Without solutions the characters of answers are unknown.
    let open = file(&folder, r#"{"prompt": "a", "split": "train"}"#);
    fs::write(folder.join("one.py"), GIVES_ONE).unwrap();
    let options = VerifierOptions {
        folder: Some(folder.to_path_buf()),
        ..VerifierOptions::new("python3 one.py")
    };
    let verified = DataTask::open(&open, Some(options));
    assert_eq!(verified.unwrap().alphabet(), None);
}

#[test]
fn conversations_of_the_same_words_may_be_in_both_splits() {
    let folder = Scratch::new();
    let line = |role: &str, rest: &str| {
        format!(r#"{{"messages": [{{"role": "{role}", "content": "b"}}], "solution": "1"{rest}}}"#)
    };
    let train = line("user", r#", "tools": [{"a": 1}], "split": "train""#);
    for (role, tools) in [
        ("user", r#", "tools": [{"b": 1}]"#),
        ("user", ""),
        ("user", r#", "tools": [{"a": 1}], "chat_template_kwargs": {"b": 1}"#),
        ("system", r#", "tools": [{"a": 1}]"#),
    ] {
        let test = line(role, &format!(r#"{tools}, "split": "test""#));
        let set = read_prompts(&file(&folder, format!("{train}\n{test}"))).unwrap();
        assert_eq!((set.train.len(), set.test.len()), (1, 1));
    }
    let same = format!("{train}\n{}", train.replace("train", "test"));
    let error = read_prompts(&file(&folder, same)).unwrap_err().to_string();
    assert!(error.contains("the same prompt is in the split `train` on line 1"), "{error}");
}

#[test]
fn columns_that_a_row_lacks_may_be_null() {
    let folder = Scratch::new();
    let read = |lines: [&str; 3]| read_prompts(&file(&folder, lines.join("\n"))).unwrap();
    let without = [
        r#"{"prompt": "2+2=", "solution": "4"}"#,
        r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}"#,
        r#"{"prompt": [{"role": "user", "content": "3+4?"}], "completion": "7"}"#,
    ];
    let with_null = [
        r#"{"prompt": "2+2=", "solution": "4", "messages": null, "completion": null, "split": null}"#,
        r#"{"prompt": null, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}], "completion": null}"#,
        r#"{"messages": null, "prompt": [{"role": "user", "content": "3+4?"}], "completion": "7"}"#,
    ];
    assert_eq!(read(with_null), read(without));
    let none = read_prompts(&file(&folder, r#"{"prompt": null}"#)).unwrap_err().to_string();
    assert!(none.ends_with("neither `prompt` nor `messages`"), "{none}");
}

#[test]
fn values_for_the_chat_template_are_those_of_trl() {
    let folder = Scratch::new();
    let values = |prompt: &str, keys: &str| {
        let line = format!(r#"{{"prompt": {prompt}, "solution": "4", {keys}, "split": "train"}}"#);
        let set = read_prompts(&file(&folder, line)).map_err(|error| error.to_string())?;
        Ok::<String, String>(serde_json::to_string(&set.train[0].template_values).unwrap())
    };
    let chat = r#"[{"role": "user", "content": "2+2?"}]"#;
    let tool = r#"{"type":"function","function":{"name":"f","description":"g"}}"#;
    let text = serde_json::to_string(&format!("[{tool}]")).unwrap();
    for (keys, expected) in [
        (r#""tools": null, "chat_template_kwargs": null"#.to_string(), "{}".to_string()),
        (r#""level": 1"#.to_string(), "{}".to_string()),
        (
            r#""chat_template_kwargs": {"enable_thinking": false, "a": [{"c": 1, "b": 2}]}"#
                .to_string(),
            r#"{"enable_thinking":false,"a":[{"c":1,"b":2}]}"#.to_string(),
        ),
        (
            format!(r#""tools": [{tool}], "chat_template_kwargs": {{"z": 1}}"#),
            format!(r#"{{"z":1,"tools":[{tool}]}}"#),
        ),
        (format!(r#""tools": {text}"#), format!(r#"{{"tools":[{tool}]}}"#)),
    ] {
        assert_eq!(values(chat, &keys).unwrap(), expected);
    }
    // Plain texts meet no template.
    assert_eq!(values(r#""2+2=""#, r#""tools": ["hammer"]"#).unwrap(), "{}");
    for (keys, said) in [
        (r#""tools": ["hammer"]"#, "line 1: `tools` must be a list of objects"),
        (r#""tools": "hammer""#, "`tools` is a string that is not valid JSON: expected value"),
        (r#""tools": [], "chat_template_kwargs": {"tools": []}"#, "`tools` is in `chat_template_"),
        (r#""chat_template_kwargs": "x""#, "line 1: `chat_template_kwargs` is \"x\", but must be"),
        (r#""chat_template_kwargs": {"documents": {}}"#, "`documents` must be a list of objects"),
    ] {
        let error = values(chat, keys).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn contents_may_be_parts_or_null_and_solutions_numbers() {
    let folder = Scratch::new();
    let lines = [
        r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "3"}, {"type": "text", "text": "+4?"}]}, {"role": "assistant", "content": null, "tool_calls": []}, {"role": "assistant", "tool_calls": [1]}, {"role": "tool", "content": "7"}], "solution": 7, "split": "train"}"#,
        r#"{"prompt": "10^30=", "solution": 1000000000000000000000000000000, "split": "test"}"#,
    ];
    let task = DataTask::open(&file(&folder, lines.join("\n")), None).unwrap();
    let [sum, power] = [Split::Train, Split::Test].map(|split| task.prompt(split, 0).unwrap());
    let contents: Vec<&str> = sum.messages.iter().map(|message| message.content.text()).collect();
    assert_eq!(contents, ["3+4?", "", "", "7"]);
    // A template tells them apart.
    let seen = [1, 2].map(|i| serde_json::to_string(&sum.messages[i]).unwrap());
    let null = r#"{"role":"assistant","content":null,"tool_calls":[]}"#;
    assert_eq!(seen, [null, r#"{"role":"assistant","tool_calls":[1]}"#]);
    let solutions = [&sum, &power].map(|prompt| task.solution(prompt).unwrap());
    assert_eq!(solutions, ["7", "1000000000000000000000000000000"]);
    for (prompt, solution) in [&sum, &power].into_iter().zip(&solutions) {
        let rewards = task.verify(&[Completion::new(prompt, solution)]).unwrap();
        assert_eq!(rewards[0].values, [1.0], "{solution}");
    }
    assert!(task.alphabet().unwrap().chars().all(|c| "3+4?\n710^=".contains(c)));
}

#[test]
fn lists_and_compressed_files_are_read_and_other_texts_are_named() {
    let folder = Scratch::new();
    let objects = [r#"{"prompt": "a", "split": "train"}"#, r#"{"prompt": "b", "split": "test"}"#];
    let expected = read_prompts(&file(&folder, objects.join("\n"))).unwrap();
    let list = format!("\u{feff}\n[\n{}\n]\n", objects.join(",\n"));
    assert_eq!(read_prompts(&file(&folder, &list)).unwrap(), expected);
    let gzip = |text: &str| {
        let mut child =
            Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap().stdout
    };
    for text in [list, objects.join("\n")] {
        assert_eq!(read_prompts(&file(&folder, gzip(&text))).unwrap(), expected);
    }
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    for (bytes, said) in [
        (b"prompt,solution\na,b\n".to_vec(), "line 1: not a JSON object such as {\"prompt\""),
        (b"PAR1\x15\x04".to_vec(), "other formats, such as CSV and Parquet, are not read"),
        ([vec![0xff, 0xfe], utf16(objects[0])].concat(), "it is in UTF-16, not UTF-8"),
        (utf16(objects[0]), "it is in UTF-16, not UTF-8"),
        (format!("{},\n", objects[0]).into_bytes(), "line 1: a comma follows the object"),
        (br#"{"prompt": "a", "x": NaN}"#.to_vec(), "line 1: invalid JSON: NaN at column 22; "),
        (b"[{\"prompt\": \"a\"},\n{\"prompt\": 7}]".to_vec(), "line 2: `prompt` is 7, but must be"),
        (format!("[{},\n{}", objects[0], objects[1]).into_bytes(), "line 2: the list does not end"),
        (format!("[{}]\n{}", objects[0], objects[1]).into_bytes(), "line 2: something follows the"),
        (gzip(objects[0])[..20].to_vec(), "cannot read "),
    ] {
        let error = read_prompts(&file(&folder, &bytes)).unwrap_err().to_string();
        assert!(error.contains(said) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn integers_of_any_size_reach_a_verifier_as_they_were_written() {
    let folder = Scratch::new();
    let line = r#"{"prompt": "a", "target": [-123456789012345678901234567890, 18446744073709551615], "split": "train"}"#;
    let script = "import json, sys\nfor line in sys.stdin:\n    asked = json.loads(line)\n    right = \
                  asked['fields']['target'] == [-123456789012345678901234567890, 18446744073709551615]\n    \
                  print(json.dumps({'id': asked['id'], 'reward': float(right)}), flush=True)\n";
    fs::write(folder.join("exact.py"), script).unwrap();
    let options = VerifierOptions {
        folder: Some(folder.to_path_buf()),
        ..VerifierOptions::new("python3 exact.py")
    };
    let task = DataTask::open(&file(&folder, line), Some(options)).unwrap();
    let prompt = task.prompt(Split::Train, 0).unwrap();
    let rewards = task.verify(&[Completion::new(&prompt, "a")]).unwrap();
    assert_eq!((rewards[0].values[0], &rewards[0].problem), (1.0, &None));
}

#[test]
fn prompts_without_a_split_are_assigned_one_and_each_pass_covers_all() {
    let folder = Scratch::new();
    let lines: Vec<String> =
        (0..400).map(|i| format!(r#"{{"prompt": "p{i}", "solution": "s{i}"}}"#)).collect();
    let task = DataTask::open(&file(&folder, lines.join("\n")), None).unwrap();
    let [train, test] = [Split::Train, Split::Test].map(|split| task.num_prompts(split).unwrap());
    assert!(train + test == 400 && (25..100).contains(&test), "{train} {test}");
    let pass = |split, n: u64, pass: u64| -> Vec<String> {
        (0..n).map(|i| task.prompt(split, pass * n + i).unwrap().text).collect()
    };
    let sorted = |mut texts: Vec<String>| {
        texts.sort();
        texts
    };
    let (first, second) = (pass(Split::Train, train, 0), pass(Split::Train, train, 1));
    assert_ne!(first, second);
    assert_eq!(sorted(first.clone()), sorted(second));
    let held_out = pass(Split::Test, test, 0);
    assert_eq!(held_out, pass(Split::Test, test, 1));
    assert!(held_out.iter().all(|text| !first.contains(text)));

    // Without a verifier, completions are compared with the solution.
    let prompt = task.prompt(Split::Train, 5).unwrap();
    let solution = task.solution(&prompt).unwrap();
    let texts = [format!(" {solution}\n"), format!("{solution} {solution}"), String::new()];
    let completions = texts.each_ref().map(|text| Completion::new(&prompt, text));
    let rewards: Vec<f64> =
        task.verify(&completions).unwrap().iter().map(|r| r.score(task.reward_parts())).collect();
    assert_eq!(rewards, [1.0, 0.0, 0.0]);
}

#[test]
fn a_malformed_line_is_named() {
    let folder = Scratch::new();
    let good = r#"{"prompt": "a"}"#;
    for (line, said) in [
        ("{", "invalid JSON: EOF while parsing"),
        ("[]", "not a JSON object such as"),
        (r#"{"text": "a"}"#, "neither `prompt` nor `messages`"),
        (r#"{"prompt": "a", "messages": []}"#, "both `prompt` and `messages`; keep one"),
        (r#"{"prompt": ""}"#, "`prompt` is empty"),
        (r#"{"prompt": 7}"#, "`prompt` is 7, but must be a string or a list of messages"),
        (r#"{"messages": "a"}"#, r#"`messages` is "a", but must be a list of messages"#),
        (
            r#"{"prompt": [7]}"#,
            "`prompt` is not a list of messages with string `role` and `content`",
        ),
        (r#"{"messages": []}"#, "`messages` is an empty list"),
        (
            r#"{"messages": [{"role": "assistant", "content": "Hi"}]}"#,
            "`messages` has no message before the answer",
        ),
        (
            r#"{"prompt": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "It is"}]}"#,
            "`prompt` ends with a message of the assistant, which completions do not continue",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}], "completion": "4"}"#,
            "`messages` ends with an answer of the assistant, but there is also a `completion`; keep one",
        ),
        (r#"{"prompt": "b", "completion": 7}"#, "`completion` is neither a string nor a list"),
        (
            r#"{"prompt": "b", "completion": [{"role": "assistant", "content": "", "tool_calls": [1]}]}"#,
            "the assistant's last message has `tool_calls`; only `content` is learnt",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "", "tool_calls": [1]}]}"#,
            "the assistant's last message has `tool_calls`; only `content` is learnt",
        ),
        (r#"{"messages": [{"role": "user"}]}"#, "missing field `content`"),
        (
            r#"{"messages": [{"role": "user", "content": "b"}, {"role": "assistant"}]}"#,
            "the assistant's last message has no `content`",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image", "url": "a"}]}]}"#,
            "a part of the content is of the type `image`, not `text`",
        ),
        (
            r#"{"prompt": "b", "split": "valid"}"#,
            r#"`split` is "valid", but must be "train" or "test""#,
        ),
        (r#"{"prompt": "a", "split": "OTHER"}"#, "the same prompt is in the split"),
    ] {
        let other = match read_prompts(&file(&folder, good)).unwrap().train.len() {
            0 => "train",
            _ => "test",
        };
        let path = file(&folder, format!("{good}\n\n{}\n", line.replace("OTHER", other)));
        let error = read_prompts(&path).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, TaskError::Line { line: 3, .. }), "{error:?}");
        assert!(message.starts_with(&format!("{}, line 3: ", path.display())), "{message}");
        assert!(message.contains(said) && !message.contains('\n'), "{message}");
    }
    let error = read_prompts(&file(&folder, b"{\"prompt\": \"\xff\"}")).unwrap_err().to_string();
    assert!(error.contains("line 1: invalid JSON: "), "{error}");
    let error = read_prompts(&file(&folder, "\n \n")).unwrap_err().to_string();
    assert!(error.contains("the file is empty"), "{error}");
    let error = read_prompts(&folder.join("none.jsonl")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read ") && error.contains(MISSING), "{error}");
}

#[test]
fn prompts_without_solutions_need_a_verifier_and_get_one() {
    let folder = Scratch::new();
    let path = file(&folder, r#"{"prompt": "say yes", "split": "train"}"#);
    let error = DataTask::open(&path, None).err().unwrap().to_string();
    assert!(
        error.contains("give a command by --verifier") && error.contains("\"say yes\" has no sol"),
        "{error}"
    );
    let line = r#"{"messages": [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}], "split": "train"}"#;
    let error = DataTask::open(&file(&folder, line), None).err().unwrap().to_string();
    assert!(error.contains("its last message is of the role `gpt`, not `assistant`"), "{error}");
    for (solution, said) in [("true", "true or false"), ("[\"w3\"]", "a list"), ("{}", "an object")]
    {
        let line = format!(r#"{{"prompt": "a", "solution": {solution}, "split": "train"}}"#);
        let error = DataTask::open(&file(&folder, line), None).err().unwrap().to_string();
        assert!(error.contains(&format!("has {said} for a solution, not a text")), "{error}");
    }
    let path = file(&folder, r#"{"prompt": "say yes", "split": "train"}"#);
    let script = folder.join("yes.py");
    let text = "import json, sys\nfor line in sys.stdin:\n    asked = json.loads(line)\n    print(json.dumps({'id': \
                asked['id'], 'reward': asked['completion'] == 'yes' and asked['prompt'] == 'say yes' and 1 or 0}), \
                flush=True)\n";
    fs::write(&script, text).unwrap();
    let options = VerifierOptions::new(&format!("python3 {}", script.display()));
    let task = DataTask::open(&path, Some(options)).unwrap();
    let prompt = task.prompt(Split::Train, 0).unwrap();
    let rewards = task.verify(&[Completion::new(&prompt, "yes"), Completion::new(&prompt, "no")]);
    let totals: Vec<f64> = rewards.unwrap().iter().map(|r| r.score(task.reward_parts())).collect();
    assert_eq!(totals, [1.0, 0.0]);
    let error = task.prompt(Split::Test, 0).unwrap_err().to_string();
    assert!(
        error.starts_with("`data` has no test prompt") && error.contains("\"split\": \"test\""),
        "{error}"
    );
}
