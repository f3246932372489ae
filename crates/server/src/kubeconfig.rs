//! The kubeconfig of the local daemon, and the token in it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;
use std::net::SocketAddr;

/// Bytes of randomness in the administrator's token.
const TOKEN_BYTES: usize = 32;

/// A fresh token from the kernel's random numbers, in hexadecimal.
///
/// # Errors
/// When the kernel gives none.
pub fn new_token() -> std::io::Result<String> {
    let mut bytes = [0_u8; TOKEN_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A kubeconfig for the daemon at `address`. `ca_pem` is the certificate that signs the server's. JSON is YAML.
pub fn render(address: SocketAddr, ca_pem: &str, token: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "regatta",
        "clusters": [{"name": "regatta", "cluster": {
            "server": format!("https://{address}"),
            "certificate-authority-data": BASE64.encode(ca_pem),
        }}],
        "users": [{"name": "regatta-admin", "user": {"token": token}}],
        "contexts": [{"name": "regatta", "context": {"cluster": "regatta", "user": "regatta-admin", "namespace": "default"}}],
    });
    format!("{config:#}\n")
}

/// The token in a kubeconfig that this module wrote.
pub fn token_in(kubeconfig: &str) -> Option<String> {
    let config: serde_json::Value = serde_json::from_str(kubeconfig).ok()?;
    Some(config["users"][0]["user"]["token"].as_str()?.to_owned())
}

/// The port of the server in a kubeconfig that this module wrote.
pub fn port_in(kubeconfig: &str) -> Option<u16> {
    let config: serde_json::Value = serde_json::from_str(kubeconfig).ok()?;
    let server = config["clusters"][0]["cluster"]["server"].as_str()?;
    server.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_survives_a_restart() {
        let token = new_token().unwrap();
        assert_eq!(token.len(), 64);
        assert_ne!(token, new_token().unwrap());
        let text = render("127.0.0.1:7000".parse().unwrap(), "pem", &token);
        assert_eq!(token_in(&text), Some(token));
        assert_eq!(port_in(&text), Some(7000));
        assert_eq!(token_in("{}"), None);
    }
}
