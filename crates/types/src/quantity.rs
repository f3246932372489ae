//! Kubernetes quantities (`500m`, `2`, `1.5Gi`, `1e3`) as exact integers.
//!
//! Follows the published grammar of `k8s.io/apimachinery/pkg/api/resource`: a signed decimal number with a binary
//! (`Ki`…`Ei`), decimal (`n u m k M G T P E`) or exponent (`e3`, `E-2`) suffix. The text is kept as it was written.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Nano-units per unit: the finest step that a quantity can express.
const NANO_PER_UNIT: i128 = 1_000_000_000;

/// An amount of a resource. Compares by value: `1` equals `1000m`.
#[derive(Debug, Clone)]
pub struct Quantity {
    text: String,
    nano: i128,
}

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quantity: {problem} (examples: 500m, 2, 1.5Gi)")]
pub struct ParseQuantityError {
    text: String,
    problem: &'static str,
}

impl Quantity {
    /// A whole number of units.
    pub fn from_units(units: i64) -> Self {
        Self { text: units.to_string(), nano: i128::from(units) * NANO_PER_UNIT }
    }

    /// A number of thousandths of a unit, written as units when it is a whole number of them.
    pub fn from_milli(milli: i64) -> Self {
        let text = if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") };
        Self { text, nano: i128::from(milli) * (NANO_PER_UNIT / 1000) }
    }

    /// A number of bytes, written in the largest binary unit that is exact.
    pub fn from_bytes(bytes: i64) -> Self {
        let mut value = bytes;
        let mut suffix = "";
        for next in ["Ki", "Mi", "Gi", "Ti", "Pi"] {
            if value == 0 || value % 1024 != 0 {
                break;
            }
            value /= 1024;
            suffix = next;
        }
        Self { text: format!("{value}{suffix}"), nano: i128::from(bytes) * NANO_PER_UNIT }
    }

    /// Whole units, rounded up as Kubernetes rounds (away from zero), saturating at the limits of `i64`.
    pub fn units(&self) -> i64 {
        saturate(div_away_from_zero(self.nano, NANO_PER_UNIT))
    }

    /// Thousandths of a unit, rounded up, saturating.
    pub fn milli(&self) -> i64 {
        saturate(div_away_from_zero(self.nano, NANO_PER_UNIT / 1000))
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn div_away_from_zero(value: i128, by: i128) -> i128 {
    let quotient = value / by;
    match value % by {
        0 => quotient,
        rest if rest > 0 => quotient + 1,
        _ => quotient - 1,
    }
}

/// The factor of a suffix as (multiplier, divisor).
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let binary = |power: u32| Some((1_i128 << (10 * power), 1));
    let decimal = |power: u32| Some((10_i128.pow(power), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
            let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
            Some(if exponent < 0 { (1, power) } else { (power, 1) })
        }
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |problem| ParseQuantityError { text: text.to_owned(), problem };
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let number_len = unsigned.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, suffix) = unsigned.split_at(number_len);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return Err(fail("it has no digits"));
        }
        if fraction.contains('.') {
            return Err(fail("it has two decimal points"));
        }
        let (multiply, divide) = scale(suffix).ok_or_else(|| fail("its unit is unknown"))?;
        // value = digits / 10^fraction × multiply / divide, in nano, rounded up.
        let digits: i128 = format!("{whole}{fraction}").parse().map_err(|_| fail("it is too large"))?;
        let fraction_divide = u32::try_from(fraction.len()).ok().and_then(|n| 10_i128.checked_pow(n));
        let nano = digits
            .checked_mul(multiply)
            .and_then(|v| v.checked_mul(NANO_PER_UNIT))
            .zip(fraction_divide.and_then(|f| f.checked_mul(divide)))
            .map(|(value, by)| div_away_from_zero(value, by))
            .ok_or_else(|| fail("it is too large or too precise"))?;
        Ok(Self { text: text.to_owned(), nano: if negative { -nano } else { nano } })
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 500m, 2 or 1.5Gi")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_units(value))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
                i64::try_from(value)
                    .map(Quantity::from_units)
                    .map_err(|_| E::custom("the quantity is too large"))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Quantity, E> {
                value.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_what_kubernetes_parses() {
        for (text, milli) in [
            ("0", 0),
            ("500m", 500),
            ("2", 2000),
            ("1.5", 1500),
            (".5", 500),
            ("5.", 5000),
            ("1k", 1_000_000),
            ("1Ki", 1_024_000),
            ("1.5Gi", 1_610_612_736_000),
            ("1e3", 1_000_000),
            ("12E-2", 120),
            ("-3", -3000),
            ("+3", 3000),
            ("1n", 1),
            ("100u", 1),
        ] {
            assert_eq!(text.parse::<Quantity>().map(|q| q.milli()), Ok(milli), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_quantity() {
        for text in
            ["", "Gi", "1.2.3", "1X", "1 Gi", "--1", "1e", "99999999999999999999999999999999999999999"]
        {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn writes_the_shortest_exact_unit() {
        assert_eq!(Quantity::from_bytes(1 << 30).as_str(), "1Gi");
        assert_eq!(Quantity::from_bytes(1025).as_str(), "1025");
        assert_eq!(Quantity::from_milli(2500).as_str(), "2500m");
        assert_eq!(Quantity::from_milli(2000).as_str(), "2");
    }

    proptest! {
        #[test]
        fn whole_units_round_trip(units in -1_000_000_000_i64..1_000_000_000) {
            let parsed: Quantity = units.to_string().parse().unwrap();
            prop_assert_eq!(parsed.units(), units);
            prop_assert_eq!(parsed, Quantity::from_milli(units * 1000));
        }

        #[test]
        fn written_quantities_parse_back_to_the_same_value(bytes in 0_i64..i64::MAX / 2) {
            let written = Quantity::from_bytes(bytes);
            prop_assert_eq!(written.as_str().parse::<Quantity>().unwrap(), written);
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,24}") {
            let _ = text.parse::<Quantity>();
        }

        #[test]
        fn rounding_is_away_from_zero(nano in 1_i64..1_000_000) {
            prop_assert_eq!(format!("{nano}n").parse::<Quantity>().unwrap().milli(), 1);
            prop_assert_eq!(format!("-{nano}n").parse::<Quantity>().unwrap().milli(), -1);
        }
    }
}
