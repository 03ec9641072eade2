//! Numbers, counts and durations as reports and progress lines write them.

/// Formats a number with a unit prefix, for instance `1.2M`.
pub fn with_unit_prefix(x: f64) -> String {
    match x {
        x if x >= 1e9 => format!("{:.1}G", x / 1e9),
        x if x >= 1e6 => format!("{:.1}M", x / 1e6),
        x if x >= 1e3 => format!("{:.0}k", x / 1e3),
        x => format!("{x:.0}"),
    }
}

/// Formats a number of things: `1 seed`, `2 seeds`.
pub fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Formats a duration in the largest fitting unit.
pub(super) fn duration_in_words(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Phase;

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!([counted(1, "seed"), counted(2, "seed")], ["1 seed", "2 seeds"]);
        let phase = |last| Phase { name: "GRPO", first: 1, last }.to_string();
        assert_eq!([phase(1), phase(2)], ["GRPO 1", "GRPO 1-2"]);
    }
}
