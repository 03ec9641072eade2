//! A parser for arithmetic expressions, evaluated exactly in rational numbers.

/// A fraction in lowest terms with a positive denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rational {
    numerator: i128,
    denominator: i128,
}

impl Rational {
    /// The fraction `numerator / denominator`; `None` if the denominator is 0 or a number is too large.
    pub fn new(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator == 0 || numerator == i128::MIN || denominator == i128::MIN {
            return None;
        }
        let shared = gcd(numerator.abs(), denominator.abs()) * denominator.signum();
        Some(Self { numerator: numerator / shared, denominator: denominator / shared })
    }

    /// Converts an integer.
    pub fn from_integer(number: u64) -> Self {
        Self { numerator: i128::from(number), denominator: 1 }
    }

    /// The value as an integer, if it is one and not negative.
    pub fn to_integer(self) -> Option<u64> {
        if self.denominator == 1 { self.numerator.try_into().ok() } else { None }
    }

    /// Computes `self operator other`; `None` on division by 0 or overflow.
    pub fn apply(self, operator: char, other: Self) -> Option<Self> {
        let (a, b) = (self.numerator, self.denominator);
        let (c, d) = (other.numerator, other.denominator);
        let cross = |combine: fn(i128, i128) -> Option<i128>| {
            Self::new(combine(a.checked_mul(d)?, c.checked_mul(b)?)?, b.checked_mul(d)?)
        };
        match operator {
            '+' => cross(i128::checked_add),
            '-' => cross(i128::checked_sub),
            '*' => Self::new(a.checked_mul(c)?, b.checked_mul(d)?),
            '/' => Self::new(a.checked_mul(d)?, b.checked_mul(c)?),
            _ => None,
        }
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// A parsed expression: its value and its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    /// The exact value.
    pub value: Rational,
    /// The numbers in the expression, in order.
    pub numbers: Vec<u64>,
}

/// Maximum length of an expression, bytes.
const MAX_LENGTH: usize = 1000;
/// Maximum nesting of brackets.
const MAX_DEPTH: u32 = 50;

impl Expression {
    /// Parses integers, `+ - * /`, brackets and spaces, in ASCII, with the usual precedence. Numbers have
    /// no sign and no leading zeros. `None` for any other text, division by 0, or overflow.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_LENGTH {
            return None;
        }
        let mut parser = Parser { rest: text.as_bytes(), depth: 0, numbers: Vec::new() };
        let value = parser.parse_sum()?;
        parser.peek().is_none().then_some(Self { value, numbers: parser.numbers })
    }
}

/// The state of the parser.
struct Parser<'a> {
    rest: &'a [u8],
    depth: u32,
    numbers: Vec<u64>,
}

impl Parser<'_> {
    /// Skips white space and returns the next byte without consuming it.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    /// Consumes the next byte if it is in `any_of`.
    fn take(&mut self, any_of: &[u8]) -> Option<char> {
        let next = self.peek().filter(|byte| any_of.contains(byte))?;
        self.rest = &self.rest[1..];
        Some(char::from(next))
    }

    fn parse_sum(&mut self) -> Option<Rational> {
        let mut value = self.parse_product()?;
        while let Some(operator) = self.take(b"+-") {
            value = value.apply(operator, self.parse_product()?)?;
        }
        Some(value)
    }

    fn parse_product(&mut self) -> Option<Rational> {
        let mut value = self.parse_operand()?;
        while let Some(operator) = self.take(b"*/") {
            value = value.apply(operator, self.parse_operand()?)?;
        }
        Some(value)
    }

    fn parse_operand(&mut self) -> Option<Rational> {
        if self.take(b"(").is_none() {
            return self.parse_number();
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let value = self.parse_sum()?;
        self.take(b")")?;
        self.depth -= 1;
        Some(value)
    }

    fn parse_number(&mut self) -> Option<Rational> {
        self.peek();
        let end = self.rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        if digits.len() > 1 && digits[0] == b'0' {
            return None;
        }
        let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        self.rest = rest;
        self.numbers.push(number);
        Some(Rational::from_integer(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<Rational> {
        Expression::parse(text).map(|expression| expression.value)
    }

    #[test]
    fn values_are_exact() {
        assert_eq!(value("1 + 2 * 3"), Rational::new(7, 1));
        assert_eq!(value("(1+2)*3"), Rational::new(9, 1));
        assert_eq!(value("2 - 3 - 4"), Rational::new(-5, 1));
        assert_eq!(value("8 / 4 / 4"), Rational::new(1, 2));
        assert_eq!(value("1/3 + 1/3 + 1/3"), Rational::new(1, 1));
        assert_eq!(value("6/4").unwrap().to_integer(), None);
        assert_eq!(value("3 * (1 / 3)").unwrap().to_integer(), Some(1));
        assert_eq!(value("1 - 2").unwrap().to_integer(), None);
        assert_eq!(Expression::parse("(7+7)*0").unwrap().numbers, [7, 7, 0]);
    }

    #[test]
    fn malformed_expressions_are_rejected() {
        for text in [
            "",
            " ",
            "()",
            "1 +",
            "+ 1",
            "-1",
            "1 2",
            "1..2",
            "1.5",
            "1e3",
            "01",
            "2 ** 3",
            "(1",
            "1)",
            "1 = 1",
            "x",
            "٣",
            "１",
            "3 × 4",
            "3 − 1",
            "1 / 0",
            "1 / (2 - 2)",
            "99999999999999999999",
            "1\u{a0}+ 1",
            "1;2",
        ] {
            assert_eq!(value(text), None, "{text:?}");
        }
        // Depth, length and size are bounded.
        assert_eq!(value(&"(".repeat(900)), None);
        assert_eq!(value(&format!("{}1{}", "(".repeat(51), ")".repeat(51))), None);
        assert!(value(&format!("{}1{}", "(".repeat(50), ")".repeat(50))).is_some());
        assert_eq!(value(&"1+".repeat(1 << 20)), None);
        let large = "18446744073709551615";
        assert!(value(&[large; 1].join("*")).is_some());
        assert_eq!(value(&[large; 9].join("*")), None);
        assert_eq!(value(&[&format!("1/{large}"); 9].map(String::as_str).join("+")), None);
    }
}
