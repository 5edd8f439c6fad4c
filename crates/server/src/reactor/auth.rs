//! The shared secret of TCP connections: a challenge, and the proof in the hello.

use crate::private::read_private;
use crate::start::StartError;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::path::Path;
use tidegate_wire::{Challenge, Hello};

/// Fewest bytes of a secret.
const SECRET_LEN_MIN: usize = 16;

/// What both sides know.
pub struct Secret {
    bytes: Vec<u8>,
}

impl Secret {
    /// Reads a secret: the file's bytes without white space at the end.
    pub fn read(path: &Path) -> Result<Secret, StartError> {
        let refuse = |what: String| StartError::Secret {
            path: path.to_path_buf(),
            what,
        };
        let bytes = read_private(path).map_err(refuse)?;
        if bytes.len() < SECRET_LEN_MIN {
            return Err(refuse(format!(
                "holds {} bytes; at least {SECRET_LEN_MIN} are needed, for example \
                 `head -c 32 /dev/urandom | base64`",
                bytes.len()
            )));
        }
        Ok(Secret { bytes })
    }

    /// What a client that knows the secret answers.
    pub fn proof(&self, challenge: &Challenge, client: u64) -> [u8; 32] {
        self.mac(challenge, client).finalize().into_bytes().into()
    }

    /// Whether the hello proves the secret; takes the same time for every wrong proof.
    pub fn proves(&self, challenge: &Challenge, hello: &Hello) -> bool {
        self.mac(challenge, hello.client)
            .verify_slice(&hello.proof)
            .is_ok()
    }

    fn mac(&self, challenge: &Challenge, client: u64) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.bytes).expect("HMAC takes any key");
        mac.update(challenge);
        mac.update(&client.to_le_bytes());
        mac
    }
}

/// A fresh challenge.
pub fn challenge() -> Result<Challenge, getrandom::Error> {
    let mut challenge = Challenge::default();
    getrandom::fill(&mut challenge)?;
    Ok(challenge)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(client: u64, proof: &[u8]) -> Hello {
        Hello {
            version: tidegate_wire::frame::VERSION,
            client,
            incarnation: 1,
            joins: false,
            asks: false,
            wall_ns: 0,
            payload_max: 4096,
            pipeline: Default::default(),
            uid: 0,
            gid: 0,
            name: (*b"test").into(),
            proof: proof.into(),
        }
    }

    #[test]
    fn a_proof_holds_for_one_challenge_and_one_client() {
        let secret = Secret {
            bytes: b"0123456789abcdef".to_vec(),
        };
        let challenge = challenge().expect("the kernel has random bytes");
        let proof = secret.proof(&challenge, 7);
        assert!(secret.proves(&challenge, &hello(7, &proof)));
        assert!(!secret.proves(&challenge, &hello(8, &proof)));
        assert!(!secret.proves(&[1; 32], &hello(7, &proof)));
        assert!(!secret.proves(&challenge, &hello(7, &proof[..31])));
        assert!(!secret.proves(&challenge, &hello(7, b"")));
        let other = Secret {
            bytes: b"0123456789abcdeg".to_vec(),
        };
        assert!(!other.proves(&challenge, &hello(7, &proof)));
    }
}
