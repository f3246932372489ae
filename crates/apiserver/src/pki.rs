//! Keys of a local server: an authority of its own and a certificate for loopback, made once and kept.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a server shows who it is. Cheap to clone.
#[derive(Clone)]
pub struct TlsConfig(pub(crate) Arc<rustls::ServerConfig>);

/// What a server and its clients need.
pub struct Keys {
    /// Certificate of the authority, which clients trust.
    pub ca_pem: String,
    /// The server's side.
    pub tls: TlsConfig,
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The keys on disk are not usable.
    #[error("the keys in {} cannot be used: {problem}; remove the directory to make new ones", path.display())]
    Unusable {
        /// Where they are.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// The keys in `directory`; made when there are none. Files are readable by their owner only.
///
/// # Errors
/// When files cannot be read or written, or what they hold cannot be used.
pub fn ensure(directory: &Path) -> Result<Keys, Error> {
    let [ca, certificate, key] = ["ca.crt", "server.crt", "server.key"].map(|name| directory.join(name));
    // The certificate of the authority is written last: when it is there, all are.
    if !ca.exists() {
        let made = make()?;
        write_private(&key, &made.server_key)?;
        write_private(&certificate, &made.server_certificate)?;
        write_private(&ca, &made.ca_certificate)?;
    }
    let ca_pem =
        fs::read_to_string(&ca).map_err(|source| Error::File { action: "read", path: ca, source })?;
    let tls = load(&certificate, &key)
        .map_err(|problem| Error::Unusable { path: directory.to_owned(), problem })?;
    Ok(Keys { ca_pem, tls })
}

struct Made {
    ca_certificate: String,
    server_certificate: String,
    server_key: String,
}

/// The authority's own key is not kept: it signs this one certificate.
fn make() -> Result<Made, Error> {
    let name = |text: &str| {
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, text);
        name
    };
    let mut authority = CertificateParams::default();
    authority.distinguished_name = name("regatta local authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority_key = KeyPair::generate()?;
    let authority_certificate = authority.self_signed(&authority_key)?;
    let issuer = Issuer::from_params(&authority, &authority_key);

    let mut server = CertificateParams::new(vec!["localhost".to_owned()])?;
    server.distinguished_name = name("regatta");
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    server.subject_alt_names.extend(loopback.map(SanType::IpAddress));
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let server_key = KeyPair::generate()?;
    let server_certificate = server.signed_by(&server_key, &issuer)?;
    Ok(Made {
        ca_certificate: authority_certificate.pem(),
        server_certificate: server_certificate.pem(),
        server_key: server_key.serialize_pem(),
    })
}

fn load(certificate: &Path, key: &Path) -> Result<TlsConfig, String> {
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(certificate).map_err(|e| e.to_string())?.collect();
    let chain = chain.map_err(|e| e.to_string())?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|e| e.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key);
    let mut config = config.map_err(|e| e.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsConfig(Arc::new(config)))
}

/// Writes a file that only its owner can read, whole or not at all.
fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let fail = |source| Error::File { action: "write", path: path.to_owned(), source };
    let draft = path.with_extension("tmp");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&draft).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)?;
    fs::rename(&draft, path).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_made_once_and_are_private() {
        let directory = tempfile::tempdir().unwrap();
        let first = ensure(directory.path()).unwrap().ca_pem;
        assert_eq!(ensure(directory.path()).unwrap().ca_pem, first);
        for file in fs::read_dir(directory.path()).unwrap() {
            let file = file.unwrap();
            assert_eq!(
                file.metadata().unwrap().permissions().mode() & 0o777,
                0o600,
                "{:?}",
                file.file_name()
            );
        }
        fs::write(directory.path().join("server.key"), "nonsense").unwrap();
        assert!(ensure(directory.path()).err().unwrap().to_string().contains("remove the directory"));
    }
}
