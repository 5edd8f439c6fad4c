//! Proves the shared secret to a forwarder, without sending it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io;
use std::path::Path;
use tidegate_wire::Challenge;

/// Longest secret file that is read.
const SECRET_MAX: u64 = 4096;

/// The shared secret of a site's forwarders and clients. Never printed.
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Reads a secret file; white space at its end does not count.
    pub(crate) fn read(path: &Path) -> io::Result<Secret> {
        let wrong = |text| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        if std::fs::metadata(path)?.len() > SECRET_MAX {
            return wrong("the secret is longer than 4096 bytes");
        }
        let bytes = std::fs::read(path)?;
        let secret = bytes.trim_ascii_end();
        if secret.is_empty() {
            return wrong("the secret is empty");
        }
        Ok(Secret(secret.to_vec()))
    }

    /// HMAC-SHA-256(secret, challenge || client id little endian).
    pub(crate) fn prove(&self, challenge: &Challenge, client: u64) -> Box<[u8]> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes any key length");
        mac.update(challenge);
        mac.update(&client.to_le_bytes());
        mac.finalize().into_bytes().as_slice().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proof_is_hmac_sha_256() {
        // Computed with Python's hmac module.
        let proof = Secret(b"open sesame".to_vec()).prove(&[7; 32], 0x0102_0304_0506_0708);
        let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "ae67396caf87e6e0f4f847a0f10e1379c8cd7dfb551f19db5c49b83d5d04b13b"
        );
    }
}
