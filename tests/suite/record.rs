//! `grove record`: output files and refusals.

use crate::support::{
    Scratch, adapter_name, command, json, refused, signal, start, stderr, stdout, success, train,
    wait_for,
};
use std::fs;
use std::path::Path;

/// A folder with a run of each game.
fn runs(games: &[&str]) -> Scratch {
    let folder = Scratch::new();
    for game in games {
        json(&folder, &train(game, game, &["--iterations", "2"]));
    }
    folder
}

/// The names of the files in a folder.
fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.path().is_file());
    let mut names: Vec<_> = files.map(|f| f.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn record(folder: &Path, line: &str) -> String {
    let words: Vec<&str> = ["record"].into_iter().chain(line.split(' ')).collect();
    stdout(&success(folder, &words))
}

/// The frames of a GIF in RGBA, with their durations in hundredths of a second.
fn frames(path: &Path) -> (usize, usize, Vec<Vec<u8>>, Vec<u16>) {
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    let mut decoder = options.read_info(fs::File::open(path).unwrap()).unwrap();
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    let mut canvas = vec![0u8; width * height * 4];
    let (mut pictures, mut delays) = (Vec::new(), Vec::new());
    while let Some(frame) = decoder.read_next_frame().unwrap() {
        let (left, top) = (usize::from(frame.left), usize::from(frame.top));
        let across = usize::from(frame.width);
        for (at, pixel) in frame.buffer.chunks_exact(4).enumerate() {
            if pixel[3] > 0 {
                let at = (top + at / across) * width + left + at % across;
                canvas[4 * at..4 * at + 4].copy_from_slice(pixel);
            }
        }
        pictures.push(canvas.clone());
        delays.push(frame.delay);
    }
    (width, height, pictures, delays)
}

/// The frames of a WebP in RGBA, with their durations in milliseconds.
fn webp_frames(path: &Path) -> (usize, usize, Vec<Vec<u8>>, Vec<u32>) {
    let file = std::io::BufReader::new(fs::File::open(path).unwrap());
    let decoder = image::codecs::webp::WebPDecoder::new(file).unwrap();
    assert!(decoder.has_animation());
    let (width, height) = image::ImageDecoder::dimensions(&decoder);
    let frames = image::AnimationDecoder::into_frames(decoder).map(|frame| frame.unwrap());
    let parts = frames.map(|frame| {
        let (delay, per) = frame.delay().numer_denom_ms();
        (frame.into_buffer().into_raw(), delay / per)
    });
    let (pictures, delays) = parts.unzip();
    (width as usize, height as usize, pictures, delays)
}

fn still(path: &Path) -> (u32, u32, Vec<u8>) {
    let picture = image::open(path).unwrap().into_rgba8();
    (picture.width(), picture.height(), picture.into_raw())
}

#[test]
fn an_animation_has_its_frames_and_ends_with_the_still() {
    let folder = &runs(&["fruit", "catch", "cartpole"]);
    for (game, per_step, delays_of, size) in [
        ("fruit", 4, (3, 31), (22 * 16, 17 * 16)),
        ("catch", 6, (3, 28), (5 * 16, 10 * 16)),
        ("cartpole", 1, (2, 20), (25 * 16, 9 * 16)),
    ] {
        let more = "--steps 13 --scale 16 --seed 4";
        let said = record(folder, &format!("{game} --out x.gif {more}"));
        let count = 1 + 13 * per_step;
        assert!(
            said.contains(&format!("x.gif: {count} frames of {} x {}", size.0, size.1)),
            "{said}"
        );
        let (width, height, pictures, delays) = frames(&folder.join("x.gif"));
        assert_eq!((width, height, pictures.len()), (size.0, size.1, count), "{game}");
        assert!(delays.iter().all(|delay| *delay == delays_of.0), "{game}: {delays:?}");
        assert!(pictures[0] != pictures[count - 1], "{game}: it moves");
        // The frames are the same in WebP, up to rounding in this decoder's blending.
        record(folder, &format!("{game} --out x.webp {more}"));
        let (width, height, same, delays) = webp_frames(&folder.join("x.webp"));
        assert_eq!((width, height), size, "{game}");
        assert!(delays.iter().all(|delay| *delay == delays_of.1), "{game}: {delays:?}");
        assert_eq!(same.len(), count, "{game}");
        for (picture, same) in pictures.iter().zip(&same) {
            let off = picture.iter().zip(same).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(off <= Some(1), "{game}: {off:?}");
        }
        // Colours are exact: the still equals the last frame.
        record(folder, &format!("{game} --out x.png {more}"));
        let (width, height, pixels) = still(&folder.join("x.png"));
        assert_eq!((width as usize, height as usize), size, "{game}");
        assert!(pixels == *pictures.last().unwrap(), "{game}");
        record(folder, &format!("{game} --out y.png --steps 13 --scale 16 --seed 5"));
        assert_ne!(still(&folder.join("y.png")), still(&folder.join("x.png")), "another level");
    }
    assert_eq!(files(folder), ["x.gif", "x.png", "x.webp", "y.png"], "nothing else is left");
}

#[test]
fn gpu_and_cpu_record_the_same() {
    let Some(adapter) = adapter_name() else { return };
    let folder = &runs(&["fruit"]);
    for (device, out) in [("cpu", "cpu.png"), (adapter.as_str(), "gpu.png")] {
        record(folder, &format!("fruit --out {out} --games 5 --steps 20 --device {device}"));
    }
    assert!(still(&folder.join("cpu.png")) == still(&folder.join("gpu.png")));
}

#[test]
fn many_games_share_a_picture_that_fits() {
    let folder = &runs(&["catch"]);
    for games in ["1", "6", "1024"] {
        record(folder, &format!("catch --out x.PNG --games {games} --steps 3"));
        let (width, height, pixels) = still(&folder.join("x.PNG"));
        assert!(width <= 800 && height <= 600, "{games} games: {width} x {height}");
        assert!(pixels.chunks_exact(4).any(|pixel| pixel[3] == 255));
    }
}

#[test]
fn invalid_recordings_are_rejected_and_leave_no_file() {
    let folder = &runs(&["catch"]);
    fs::create_dir(folder.join("dir.png")).unwrap();
    for (line, message) in [
        ("catch --out x.avi", "is x.avi, but must end in .gif, .webp, .mp4 or .png"),
        ("catch --out x", "must end in .gif, .webp, .mp4 or .png"),
        ("catch --out dir.png", "cannot write dir.png: it is a directory"),
        ("catch --out no/x.png", "cannot write no/x.png"),
        ("catch --out x.gif --games 0", "must be 1 to 1024"),
        ("catch --out x.gif --games 2000", "must be 1 to 1024"),
        ("catch --out x.gif --scale 0", "must be 1 to 256"),
        (
            "catch --out x.gif --scale 99 --games 1024",
            "but the maximum is 8192 per side; lower --scale or --games",
        ),
        ("nowhere --out x.gif", "no such run: nowhere"),
        ("catch --out x.gif --device gpu", "unknown device `gpu`"),
        ("catch", "--out <FILE>"),
    ] {
        refused(folder, &format!("record {line}"), &[message]);
    }
    assert_eq!(files(folder), [""; 0]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_existing_file() {
    crate::support::hear_ctrl_c();
    let folder = &runs(&["catch"]);
    fs::write(folder.join("x.gif"), "what was there").unwrap();
    let child = start(folder, &["record", "catch", "--out", "x.gif", "--steps", "100000"]);
    wait_for("a file under way", || files(folder).len() > 1);
    signal(child.id(), "-INT");
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("interrupted; x.gif was not written"), "{}", stderr(&output));
    assert_eq!(files(folder), ["x.gif"]);
    assert_eq!(fs::read(folder.join("x.gif")).unwrap(), b"what was there");
}

/// Creates a folder with a fake `ffmpeg`, a shell script of these lines.
#[cfg(unix)]
fn ffmpeg(folder: &Path, lines: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let bin = folder.join("bin");
    let program = bin.join("ffmpeg");
    fs::create_dir_all(&bin).unwrap();
    fs::write(&program, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    bin
}

#[cfg(unix)]
#[test]
fn an_mp4_is_what_ffmpeg_makes_of_the_frames() {
    let folder = &runs(&["catch"]);
    let record = |path: &Path| {
        let words = ["record", "catch", "--out", "x.mp4", "--steps", "2", "--scale", "3", "--json"];
        command(folder, &words).env("PATH", path).output().unwrap()
    };
    let output = record(&folder.join("nothing"));
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains("need ffmpeg, which is not on the PATH: install it, or"), "{said}");
    assert!(!folder.join("x.mp4").exists());

    // The arguments of ffmpeg, and the number of bytes of its input.
    let lines = "for last; do :; done\necho \"$@\" > asked\n/usr/bin/wc -c > \"${last#file:}\"";
    let output = record(&ffmpeg(folder, lines));
    assert!(output.status.success(), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let at = |key: &str| report[key].as_u64().unwrap();
    let asked = fs::read_to_string(folder.join("asked")).unwrap();
    let size = format!("-pix_fmt rgba -video_size {}x{} ", at("width"), at("height"));
    assert!(asked.contains(&size) && asked.contains("-f mp4 file:"), "{asked}");
    let bytes: u64 = fs::read_to_string(folder.join("x.mp4")).unwrap().trim().parse().unwrap();
    assert_eq!(bytes, at("frames") * at("width") * at("height") * 4);

    let output = record(&ffmpeg(folder, "echo no such encoder >&2; exit 3"));
    assert!(!output.status.success());
    assert!(stderr(&output).contains("no such encoder"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(folder.join("x.mp4")).unwrap().trim(), bytes.to_string());
}

#[test]
fn scores_are_drawn_on_request() {
    let folder = &runs(&["catch"]);
    for out in ["plain.png", "score.png --score"] {
        record(folder, &format!("catch --steps 9 --games 2 --scale 16 --out {out}"));
    }
    let (width, _, plain) = still(&folder.join("plain.png"));
    let (_, _, score) = still(&folder.join("score.png"));
    let differs: Vec<usize> = plain
        .chunks_exact(4)
        .zip(score.chunks_exact(4))
        .enumerate()
        .filter_map(|(at, (a, b))| (a != b).then_some(at))
        .collect();
    let [left, right] = [0..width as usize / 2, width as usize / 2..width as usize]
        .map(|half| differs.iter().filter(|at| half.contains(&(**at % width as usize))).count());
    assert!(left > 20 && right > 20, "{left} and {right} pixels are others");
    assert!(differs.iter().all(|at| at / (width as usize) < 10), "they are at the top");
}
