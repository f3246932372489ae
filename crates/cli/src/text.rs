//! Durations, amounts and times as people read them.

use regatta_types::Timestamp;

/// `850 ms`, `12.4 s`, `3m20s`, `2h05m`, `3d04h`.
pub(crate) fn duration_ms(ms: i64) -> String {
    let seconds = ms / 1000;
    match ms {
        ..=999 => format!("{ms} ms"),
        1_000..=59_999 => format!("{}.{} s", seconds, ms % 1000 / 100),
        60_000..=3_599_999 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600_000..=86_399_999 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// How long ago, short: `5s`, `3m`, `2h`, `4d`.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else { return "-".to_owned() };
    let seconds = now.since_ms(since) / 1000;
    match seconds {
        ..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `1 slot`, `4 slots`.
pub(crate) fn count(number: impl Into<i64>, noun: &str) -> String {
    let number = number.into();
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Money in millionths: `12.50 USD`.
pub(crate) fn money(micros: i64, currency: &str) -> String {
    // Small runs cost fractions of a cent; what is shown must not be 0 when it is not.
    if micros != 0 && micros.abs() < 10_000 {
        return format!("{}.{:06} {currency}", micros / 1_000_000, micros.abs() % 1_000_000);
    }
    format!("{}.{:02} {currency}", micros / 1_000_000, micros.abs() % 1_000_000 / 10_000)
}

/// Reads `12h`, `90m`, `1h30m`, `45s`, `2d`, or a number of seconds.
pub(crate) fn parse_duration_seconds(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<i64>() {
        return (seconds > 0).then_some(seconds);
    }
    let mut total = 0_i64;
    let mut digits = String::new();
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let unit = match c {
            'd' => 86_400,
            'h' => 3_600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        total = total.checked_add(std::mem::take(&mut digits).parse::<i64>().ok()?.checked_mul(unit)?)?;
    }
    (digits.is_empty() && total > 0).then_some(total)
}

/// Reads `500 USD`, `12.50 EUR`: millionths and the currency.
pub(crate) fn parse_money(text: &str) -> Option<(i64, String)> {
    let (amount, currency) = text.trim().split_once(' ')?;
    let currency = currency.trim();
    if currency.len() != 3 || !currency.bytes().all(|b| b.is_ascii_uppercase()) {
        return None;
    }
    let (whole, part) = amount.split_once('.').unwrap_or((amount, ""));
    if part.len() > 6 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let part: i64 = format!("{part:0<6}").parse().ok()?;
    let micros = whole.parse::<i64>().ok()?.checked_mul(1_000_000)?.checked_add(part)?;
    (micros > 0).then(|| (micros, currency.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (ms, expected) in [
            (850, "850 ms"),
            (12_400, "12.4 s"),
            (200_000, "3m20s"),
            (7_500_000, "2h05m"),
            (273_600_000, "3d04h"),
        ] {
            assert_eq!(duration_ms(ms), expected);
        }
        for (text, expected) in [
            ("12h", Some(43_200)),
            ("1h30m", Some(5_400)),
            ("45", Some(45)),
            ("0", None),
            ("h", None),
            ("5x", None),
            ("1h5", None),
            ("-3", None),
        ] {
            assert_eq!(parse_duration_seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn sums_of_money() {
        assert_eq!(money(12_500_000, "USD"), "12.50 USD");
        assert_eq!(money(42, "USD"), "0.000042 USD");
        for (text, expected) in [
            ("500 USD", Some(500_000_000)),
            ("12.5 EUR", Some(12_500_000)),
            ("0 USD", None),
            ("5", None),
            ("5 usd", None),
            ("1.1234567 USD", None),
        ] {
            assert_eq!(parse_money(text).map(|(micros, _)| micros), expected, "{text}");
        }
    }
}
