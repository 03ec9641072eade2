//! Numbers, counts and durations as reports and progress lines write them.

use super::pluralize;
use crate::settings::UpdateConfig;

/// Formats a number with a unit prefix, for instance `1.2M`.
pub fn format_with_prefix(x: f64) -> String {
    // A number that would be rounded to the next unit has that unit.
    match x {
        x if x >= 999.95e6 => format!("{:.1}G", x / 1e9),
        x if x >= 999.5e3 => format!("{:.1}M", x / 1e6),
        x if x >= 999.5 => format!("{:.0}k", x / 1e3),
        x => format!("{x:.0}"),
    }
}

/// Formats a duration in the largest fitting unit.
pub(super) fn format_duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Describes the passes of an update.
pub(super) fn describe_update(update: &UpdateConfig) -> String {
    let UpdateConfig { update_epochs, num_minibatches, .. } = update;
    let ending = if *num_minibatches == 1 { "" } else { "es" };
    format!("{} of {num_minibatches} minibatch{ending}", pluralize(*update_epochs, "epoch"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rounded_number_is_below_the_next_unit() {
        let below = [999.4, 999.4e3, 999.9e6].map(format_with_prefix);
        assert_eq!(below, ["999", "999k", "999.9M"]);
        let above = [999.5, 999.6e3, 999.96e6].map(format_with_prefix);
        assert_eq!(above, ["1k", "1.0M", "1.0G"]);
    }

    #[test]
    fn a_duration_has_the_largest_fitting_unit() {
        let durations = [0.0, 99.96, 100.0, 5999.0, 6000.0].map(format_duration);
        assert_eq!(durations, ["0.0 s", "100.0 s", "2 min", "100 min", "1.7 h"]);
    }
}
