//! What both ends of a link tell each other over the socket before the first message.

use crate::endpoint::NAME_MAX;

const MAGIC: [u8; 8] = *b"TGFABRC1";
/// Fixed part: length of the whole, magic, key, window, bytes of a message, lengths of both names.
const FIXED: usize = 2 + 8 + 8 + 2 + 4 + 1 + 2;
/// Longest provider's name.
const PROVIDER_MAX: usize = 63;
/// Longest greeting.
pub(crate) const GREETING_MAX: usize = FIXED + PROVIDER_MAX + NAME_MAX;

/// See the head of the file. Numbers are little endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// What every message to the sender of this begins with.
    pub(crate) key: u64,
    /// Messages that may be under way to it.
    pub(crate) window: u16,
    /// Bytes of the longest one.
    pub(crate) message_len: u32,
    /// Its provider, in libfabric's words.
    pub(crate) provider: String,
    /// Address of its endpoint.
    pub(crate) name: Vec<u8>,
}

impl Greeting {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let provider = &self.provider.as_bytes()[..self.provider.len().min(PROVIDER_MAX)];
        let len = FIXED + provider.len() + self.name.len();
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&(len as u16).to_le_bytes());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.key.to_le_bytes());
        out.extend_from_slice(&self.window.to_le_bytes());
        out.extend_from_slice(&self.message_len.to_le_bytes());
        out.push(provider.len() as u8);
        out.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        out.extend_from_slice(provider);
        out.extend_from_slice(&self.name);
        out
    }

    /// How long the greeting is whose first bytes these are; None: more of them are needed.
    /// An error says what is wrong.
    pub(crate) fn len(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        let magic = &bytes[2.min(bytes.len())..10.min(bytes.len())];
        if !MAGIC.starts_with(magic) {
            return Err("the peer does not speak the protocol of fabric addresses");
        }
        let Some(len) = bytes.first_chunk::<2>() else {
            return Ok(None);
        };
        match usize::from(u16::from_le_bytes(*len)) {
            len @ FIXED..=GREETING_MAX => Ok(Some(len)),
            _ => Err("the peer's greeting has a wrong length"),
        }
    }

    /// Reads a whole greeting.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Greeting, &'static str> {
        let wrong = "the peer's greeting is malformed";
        if Greeting::len(bytes)? != Some(bytes.len()) {
            return Err(wrong);
        }
        let array = |at: usize| *bytes[at..].first_chunk::<8>().expect("FIXED has them");
        let key = u64::from_le_bytes(array(10));
        let window = u16::from_le_bytes([bytes[18], bytes[19]]);
        let message_len = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
        let provider_len = usize::from(bytes[24]);
        let name_len = usize::from(u16::from_le_bytes([bytes[25], bytes[26]]));
        let names = &bytes[FIXED..];
        if names.len() != provider_len + name_len || name_len >= NAME_MAX || window == 0 {
            return Err(wrong);
        }
        let (provider, name) = names.split_at(provider_len);
        Ok(Greeting {
            key,
            window,
            message_len,
            provider: String::from_utf8(provider.to_vec()).map_err(|_| wrong)?,
            name: name.to_vec(),
        })
    }
}

/// The greeting that these bytes are, as this end writes it; None if they are none. For programs
/// that hand in any bytes.
pub fn greeting_in(bytes: &[u8]) -> Option<Vec<u8>> {
    Greeting::decode(bytes)
        .ok()
        .map(|greeting| greeting.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        Greeting {
            key: 0x0102_0304_0506_0708,
            window: 16,
            message_len: 8192,
            provider: "tcp;ofi_rxm".to_string(),
            name: vec![2, 0, 9, 9],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = greeting().encode();
        assert_eq!(Greeting::decode(&bytes), Ok(greeting()));
        for end in 0..bytes.len() {
            let len = Greeting::len(&bytes[..end]).expect("it is the beginning of one");
            assert_eq!(len, (end >= 2).then_some(bytes.len()));
            assert!(Greeting::decode(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn no_byte_that_is_changed_ends_in_a_panic() {
        let bytes = greeting().encode();
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                let _ = Greeting::decode(&bytes);
            }
        }
        assert!(Greeting::decode(b"GET / HTTP/1.1\r\n").is_err());
    }
}
