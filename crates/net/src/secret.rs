//! The shared secret of TCP connections: its file, the challenge, and the proof in the hello.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tidegate_wire::Challenge;

/// Fewest bytes of a secret.
const SECRET_LEN_MIN: usize = 16;
/// Longest file of a secret, in bytes.
const FILE_LEN_MAX: u64 = 64 << 10;

/// Why a file cannot serve as a secret, in words that follow its path in a message.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The system refuses to read it.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// Its mode lets its group or everybody read, write or execute it.
    #[error("can be read by others; `chmod 600` it")]
    Exposed,
    /// It belongs to a user who is neither this process's nor root, and who can read and change it.
    #[error(
        "belongs to user {owner}; it must belong to user {own}, as whom this process runs, \
         or to root"
    )]
    Foreign {
        /// The owner.
        owner: u32,
        /// The user of this process.
        own: u32,
    },
    /// It holds so few bytes that they can be guessed.
    #[error(
        "holds {0} bytes; at least {SECRET_LEN_MIN} are needed, for example \
         `head -c 32 /dev/urandom | base64`"
    )]
    Short(usize),
    /// The file is too long to be a secret.
    #[error("is longer than {FILE_LEN_MAX} bytes")]
    Long,
}

/// Reads a file that only its owner may read, who is root or this process's user, and strips the
/// white space at its end.
pub fn read_private(path: &Path) -> Result<Vec<u8>, SecretError> {
    let file = std::fs::File::open(path)?;
    let found = file.metadata()?;
    if found.permissions().mode() & 0o077 != 0 {
        return Err(SecretError::Exposed);
    }
    let (owner, own) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != own && owner != 0 {
        return Err(SecretError::Foreign { owner, own });
    }
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err(SecretError::Long);
    }
    bytes.truncate(bytes.trim_ascii_end().len());
    Ok(bytes)
}

/// The secret that a site's forwarders and clients share. It is never printed.
pub struct Secret(Vec<u8>);

impl Secret {
    /// Reads a secret by the rules of [`read_private`]; an error if it has less than 16 bytes.
    pub fn read(path: &Path) -> Result<Secret, SecretError> {
        let bytes = read_private(path)?;
        match bytes.len() {
            len if len < SECRET_LEN_MIN => Err(SecretError::Short(len)),
            _ => Ok(Secret(bytes)),
        }
    }

    /// The proof with which a client answers a challenge: HMAC-SHA-256(secret, challenge || client
    /// id little endian).
    pub fn prove(&self, challenge: &Challenge, client: u64) -> [u8; 32] {
        self.mac(challenge, client).finalize().into_bytes().into()
    }

    /// Whether a client's proof is right. Every wrong proof takes the same time to refuse.
    pub fn is_proved(&self, challenge: &Challenge, client: u64, proof: &[u8]) -> bool {
        self.mac(challenge, client).verify_slice(proof).is_ok()
    }

    fn mac(&self, challenge: &Challenge, client: u64) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes any key length");
        mac.update(challenge);
        mac.update(&client.to_le_bytes());
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Draws a challenge from the system's random source.
pub fn challenge() -> Result<Challenge, getrandom::Error> {
    let mut challenge = Challenge::default();
    getrandom::fill(&mut challenge)?;
    Ok(challenge)
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

    #[test]
    fn a_proof_holds_for_one_challenge_and_one_client() {
        let secret = Secret(b"0123456789abcdef".to_vec());
        let challenge = challenge().expect("the kernel has random bytes");
        let proof = secret.prove(&challenge, 7);
        assert!(secret.is_proved(&challenge, 7, &proof));
        assert!(!secret.is_proved(&challenge, 8, &proof));
        assert!(!secret.is_proved(&[1; 32], 7, &proof));
        assert!(!secret.is_proved(&challenge, 7, &proof[..31]));
        assert!(!secret.is_proved(&challenge, 7, b""));
        let other = Secret(b"0123456789abcdeg".to_vec());
        assert!(!other.is_proved(&challenge, 7, &proof));
    }

    #[test]
    fn a_file_is_taken_if_only_its_owner_can_read_it_and_it_is_long_enough() {
        let name = format!("tidegate-secret-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let read = |bytes: &[u8], mode: u32| {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, bytes).expect("it is ours");
            let mode = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).expect("it is ours");
            Secret::read(&path)
        };
        let good = b"0123456789abcdef \n";
        assert_eq!(read(good, 0o600).expect("it is good").0, &good[..16]);
        assert!(read(good, 0o400).is_ok());
        for mode in [0o640, 0o604, 0o644] {
            assert!(matches!(read(good, mode), Err(SecretError::Exposed)));
        }
        if rustix::process::geteuid().is_root() {
            read(good, 0o600).expect("it is good");
            std::os::unix::fs::chown(&path, Some(12_345), None).expect("it is root");
            let theirs = Secret::read(&path).expect_err("it is another user's");
            assert!(theirs.to_string().starts_with("belongs to user 12345; "));
        }
        let short = read(b"0123456789abcde \n", 0o600);
        assert!(matches!(short, Err(SecretError::Short(15))));
        let long = read(&vec![b'x'; (64 << 10) + 1], 0o600);
        assert!(matches!(long, Err(SecretError::Long)));
        std::fs::remove_file(&path).expect("it is ours");
        assert!(matches!(Secret::read(&path), Err(SecretError::Read(_))));
    }
}
