//! Times in tables.

use jiff::civil::{Date, DateTime};
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{Error, Timestamp};

/// A time. Numbers can be compared with each other, and so can instants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Time {
    /// A whole number, for instance of nanoseconds since 1970, which are more than an `f64` tells apart.
    Integer(i128),
    /// A number, for instance of seconds since 1970.
    Number(f64),
    /// An instant.
    Instant(Timestamp),
}

impl Time {
    /// Parses a time in `format` (strftime, such as `%d.%m.%Y %H:%M`). Without a format: a finite number, or an ISO
    /// 8601 date or instant. UTC is assumed if there is no offset.
    pub fn parse(text: &str, format: Option<&str>) -> Option<Self> {
        if let Some(format) = format {
            return parse_instant(text, format).ok().map(Self::Instant);
        }
        if let Ok(number) = text.parse::<i128>() {
            return Some(Self::Integer(number));
        }
        if let Ok(number) = text.parse::<f64>() {
            return number.is_finite().then_some(Self::Number(number));
        }
        let instant = text.parse::<Timestamp>();
        instant.or_else(|_| to_utc_timestamp(text.parse::<DateTime>()?)).ok().map(Self::Instant)
    }

    /// Whether this time is before `other`; `None` if one is a number and the other an instant.
    pub fn is_before(self, other: Self) -> Option<bool> {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => Some(a < b),
            (Self::Integer(a), Self::Number(b)) => Some((a as f64) < b),
            (Self::Number(a), Self::Integer(b)) => Some(a < b as f64),
            (Self::Number(a), Self::Number(b)) => Some(a < b),
            (Self::Instant(a), Self::Instant(b)) => Some(a < b),
            _ => None,
        }
    }
}

/// Parses an instant in a format of strftime.
fn parse_instant(text: &str, format: &str) -> Result<Timestamp, Error> {
    let parts = strtime::parse(format, text)?;
    let naive = || parts.to_datetime().or_else(|_| parts.to_date().map(Date::into));
    parts.to_timestamp().or_else(|_| to_utc_timestamp(naive()?))
}

fn to_utc_timestamp(time: DateTime) -> Result<Timestamp, Error> {
    TimeZone::UTC.to_timestamp(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_by_their_values() {
        let is_before =
            |a: &str, b: &str, format| Time::parse(a, format)?.is_before(Time::parse(b, format)?);
        for (a, b) in [
            ("9", "10"),
            ("-1.5", "1e3"),
            ("1700000000000000000", "1700000000000000001"),
            ("1.5", "2"),
            ("2", "2.5"),
            ("2026-01-02", "2026-01-10"),
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5Z"),
            ("2026-01-02 03:04", "2026-01-02 13:04:00"),
            // As texts they are the other way round.
            ("2026-01-02T12:00:00+10:00", "2026-01-02T03:00:00+00:00"),
            ("2026-01-02T12:00:00+02:00", "2026-01-02T11:00:00Z"),
        ] {
            assert_eq!(is_before(a, b, None), Some(true), "{a} {b}");
            assert_eq!(is_before(b, a, None), Some(false), "{b} {a}");
        }
        let day_first = Some("%d.%m.%Y");
        assert_eq!(is_before("31.01.2026", "01.02.2026", day_first), Some(true));
        let minutes = Some("%m/%d/%Y %H:%M");
        assert_eq!(is_before("9/1/2026 9:30", "10/01/2026 09:29", minutes), Some(true));
        assert_eq!(is_before("2", "2026-01-02", None), None);
        for text in ["", "x", "nan", "31.01.2026", "2026-13-01"] {
            assert_eq!(Time::parse(text, None), None, "{text}");
        }
        assert_eq!(Time::parse("2026-01-31", day_first), None);
    }
}
