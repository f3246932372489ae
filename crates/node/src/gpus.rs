//! Which GPUs the machine has.

use crate::ledger::Device;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// GPU model of nodes whose GPUs are simulated.
pub(crate) const SIMULATED_MODEL: &str = "simulated";

/// The GPUs of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Found {
    pub(crate) devices: Vec<Device>,
    /// Model in lower case, such as `h100`.
    pub(crate) model: Option<String>,
    /// A sentence.
    pub(crate) description: String,
}

/// Asks the driver's library, which is loaded now, for the GPUs.
pub(crate) fn detect() -> Found {
    match ask() {
        Ok(found) => found,
        Err(NvmlError::LibloadingError(_)) => {
            Found { description: "none (no NVIDIA driver on this machine)".to_owned(), ..Found::default() }
        }
        Err(error) => {
            Found { description: format!("none (the NVIDIA driver says: {error})"), ..Found::default() }
        }
    }
}

fn ask() -> Result<Found, NvmlError> {
    let nvml = Nvml::init()?;
    let mut found = Found::default();
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        found.devices.push(Device { index, visible: device.uuid()? });
        if found.model.is_none() {
            let name = device.name()?;
            found.model = model(&name);
            found.description = name;
        }
    }
    found.description = match found.devices.len() {
        0 => "none (the NVIDIA driver lists none)".to_owned(),
        count => format!("{count} × {}", found.description),
    };
    Ok(found)
}

/// The model in a product name: `NVIDIA H100 80GB HBM3` is an `h100`.
fn model(name: &str) -> Option<String> {
    let words: Vec<&str> = name.split([' ', '-']).collect();
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let series = words.windows(2).find(|pair| matches!(pair[0], "RTX" | "GTX") && is_number(pair[1]));
    if let Some(pair) = series {
        return Some(pair.concat().to_lowercase());
    }
    // A letter, then digits: a size such as 80GB begins with a digit.
    let is_model = |word: &&&str| {
        let letters = word.bytes().take_while(u8::is_ascii_alphabetic).count();
        (1..=3).contains(&letters) && word.as_bytes().get(letters).is_some_and(u8::is_ascii_digit)
    };
    words.iter().find(is_model).map(|word| word.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_short_names() {
        for (name, expected) in [
            ("NVIDIA H100 80GB HBM3", Some("h100")),
            ("NVIDIA A100-SXM4-40GB", Some("a100")),
            ("NVIDIA H200", Some("h200")),
            ("Tesla T4", Some("t4")),
            ("NVIDIA L40S", Some("l40s")),
            ("NVIDIA GeForce RTX 4090", Some("rtx4090")),
            ("NVIDIA RTX A6000", Some("a6000")),
            ("NVIDIA GH200 480GB", Some("gh200")),
            ("Graphics", None),
        ] {
            assert_eq!(model(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn a_machine_always_gets_an_answer() {
        assert!(!detect().description.is_empty());
    }
}
